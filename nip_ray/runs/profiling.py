"""Torch's profiler around a few iterations of the main process.

Decisions that matter here:
- a run that does not profile imports nothing for it, and one that has finished profiling calls an empty function an
  iteration;
- one trace a process: wait, warm up, record, write, stop. A run that ends earlier writes what was recorded so far, if
  anything;
- remote workers are not in it: Ray's dashboard profiles those (py-spy), and their share of an iteration is in
  `time/...`.
"""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from nip_ray.settings.experiment import ProfilingSettings

FOLDER, TABLE = "profile", "table.txt"

_ROWS = 40


@contextmanager
def profiler(settings: ProfilingSettings, folder: Path, start: int) -> Iterator[Callable[[], None]]:
    """Yields ``step()``, to be called at the end of every iteration.

    folder: the run folder; `profile/trace-NNNNNN.json.gz` and `profile/table.txt` are written there. start: how many
    iterations are done already; the trace has the number of the first one that is recorded. Where the extent of an
    iteration is to be seen in the trace, it is an event `ProfilerStep#N` with N counted from 0 in this process.
    """
    if not settings.enabled:
        yield _nothing
        return
    from torch.profiler import profile, schedule

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that no warm-up skews figures is for the config to know
        phases = schedule(wait=settings.wait, warmup=settings.warmup, active=settings.active, repeat=1)
    first = start + settings.wait + settings.warmup + 1
    left = settings.wait + settings.warmup + settings.active
    with profile(
        schedule=phases,
        on_trace_ready=lambda recorded: _write(recorded, settings, folder / FOLDER, first),
        profile_memory=settings.memory,
        record_shapes=False,
    ) as running:

        def step() -> None:
            nonlocal left
            if left:
                left -= 1
                running.step()

        yield step


def _nothing() -> None:
    """What profiling costs a run that does not profile."""


def _write(recorded: Any, settings: ProfilingSettings, folder: Path, first: int) -> None:
    import torch

    folder.mkdir(exist_ok=True)
    recorded.export_chrome_trace(str(folder / f"trace-{first:06d}.json.gz"))
    sort_by = "self_cuda_time_total" if torch.cuda.is_available() else "self_cpu_time_total"
    averages = recorded.key_averages()
    (folder / TABLE).write_text(averages.table(sort_by=sort_by, row_limit=_ROWS), encoding="utf-8")
