"""What is known of one trial when a sweep ends, or while it continues."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

Status = Literal["done", "stopped", "failed", "unfinished"]
STATUSES: tuple[Status, ...] = ("done", "stopped", "failed", "unfinished")
"""Ran to its end; stopped early by the scheduler; broke down for good; neither yet (the sweep was interrupted, or out of time)."""


@dataclass(frozen=True)
class TrialRecord:
    """One trial.

    trial_id: its name below `trials/`. values: dotted key -> value of every space (under PBT: the newest). run_dir: its run folder, None
    where it has none yet. iterations: how many were done. metrics: the last known value of each figure. curve: (iteration, metric) pairs
    in order. seconds: of wall clock in which it ran. error: why it failed, in one line.
    """

    trial_id: str
    values: Mapping[str, Any]
    seed: int
    status: Status
    run_dir: Path | None = None
    iterations: int = 0
    metrics: Mapping[str, float] = field(default_factory=dict)
    curve: Sequence[tuple[int, float]] = ()
    seconds: float = 0.0
    error: str | None = None
