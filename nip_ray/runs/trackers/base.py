"""What a tracker is: somebody who is told of a run's figures and files while it goes on."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol


@dataclass(frozen=True)
class RunInfo:
    """Who is running. run_id: the same after a resume; letters, digits, - and _ only. group: the sweep's name, if there is one.

    config: every key of the config, as plain values. resumed_from: the iteration that it goes on from (0: a new run).
    """

    run_dir: Path
    run_id: str
    name: str
    config: Mapping[str, Any]
    group: str | None = None
    resumed_from: int = 0


class Tracker(Protocol):
    """Told of everything once, in order of iterations. Rows have the keys of docs/metrics.md, flat, with an integer "iteration"."""

    def log(self, row: Mapping[str, Any]) -> None:
        """One row of `metrics.jsonl`."""
        ...

    def checkpoint(self, folder: Path, iteration: int) -> None:
        """A finished checkpoint; the folder may be pruned later."""
        ...

    def transcripts(self, file: Path, iteration: int) -> None:
        """A finished file of transcripts."""
        ...

    def finish(self, failed: bool) -> None:
        """The run is over, or has stopped and can be resumed (`failed`)."""
        ...
