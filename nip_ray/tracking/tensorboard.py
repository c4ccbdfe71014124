"""TensorBoard: event files under `events/` in the run folder.

Decisions that matter here:
- the writer is tensorboardX, which is installed with Ray Tune; viewing the files needs TensorBoard, writing them does
  not;
- its writer of single events is used, not its `SummaryWriter`: that one changes characters in our keys, writes one
  event per key, and passes events to a thread whose `flush` does not wait, so that a checkpoint could be newer than its
  metrics;
- every process writes its own file. After a resume its first event makes TensorBoard drop the steps that are repeated.
"""

import importlib.util
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nip_ray.errors import UserError
from nip_ray.tracking.base import RunInfo, Tracker, numbers

FOLDER = "events"

_FLUSH_S = 1.0  # maximum seconds of metrics lost with the machine


def check() -> None:
    """Raise UserError without tensorboardX."""
    if importlib.util.find_spec("tensorboardX") is None:
        raise UserError(
            "tracking.tensorboard.enabled needs the library tensorboardX: pip install tensorboardX, or set it to false"
        )


def start(run: RunInfo) -> Tracker:
    """Event files of `run`; those of earlier processes stay."""
    from tensorboardX.event_file_writer import EventsWriter

    folder = run.run_dir / FOLDER
    folder.mkdir(exist_ok=True)
    again = any(folder.iterdir())
    # files are read in the order of their names, which begin with the second of their creation
    tracker = _Tensorboard(EventsWriter(str(folder / "events"), f".{run.resumed_from:09d}"))
    if again:
        tracker.forget_from(run.resumed_from + 1)
    return tracker


class _Tensorboard(Tracker):
    def __init__(self, writer: Any) -> None:
        self._writer, self._flushed = writer, 0.0

    def forget_from(self, step: int) -> None:
        """Make TensorBoard drop earlier events of `step` and later ones."""
        from tensorboardX.proto import event_pb2

        start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)  # pyright: ignore[reportAttributeAccessIssue]  # made at run time
        self._write(step, session_log=start)

    def log(self, row: Mapping[str, Any]) -> None:
        # pyright does not see what is made at run time
        from tensorboardX.proto.summary_pb2 import Summary  # pyright: ignore[reportAttributeAccessIssue]

        found = numbers(row)
        step = int(found.pop("iteration"))
        self._write(
            step, summary=Summary(value=[Summary.Value(tag=key, simple_value=value) for key, value in found.items()])
        )
        if time.monotonic() - self._flushed > _FLUSH_S:
            self._flush()

    def checkpoint(self, folder: Path, iteration: int) -> None:
        self._flush()

    def finish(self, failed: bool) -> None:
        self._writer.close()

    def _write(self, step: int, **what: Any) -> None:
        from tensorboardX.proto.event_pb2 import Event  # pyright: ignore[reportAttributeAccessIssue]

        self._writer.write_event(Event(step=step, wall_time=time.time(), **what))

    def _flush(self) -> None:
        self._writer.flush()
        self._flushed = time.monotonic()
