"""Trackers of metrics and files: Weights & Biases, TensorBoard, MLflow, OpenTelemetry, an object store, Ray's metrics.

Decisions that matter here:
- all enabled trackers are behind one object, which its caller need not guard: a tracker that raises costs one warning,
  and is not called again. The run folder still has everything;
- faults of settings that are detectable before training (no library, no key) are the user's mistake and are refused by
  `check_trackers`. Later failures (no network, a full disk) are the tracker's, never the run's;
- warnings pass the filter of secrets, since they quote other libraries' errors.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nip_ray.errors import UserError
from nip_ray.progress import say
from nip_ray.secrets import Redactor
from nip_ray.settings.tracking import TrackingSettings
from nip_ray.tracking import mirror, mlflow_runs, ray_metrics, tensorboard, traces, wandb_runs
from nip_ray.tracking.base import RunInfo, Tracker

__all__ = ["TRACKERS", "RunInfo", "Tracker", "TrackerKind", "check_trackers", "open_trackers"]


@dataclass(frozen=True)
class TrackerKind:
    """enabled: True if the settings enable it. check: UserError if it cannot start. open: starts tracking a run."""

    enabled: Callable[[TrackingSettings], bool]
    check: Callable[[TrackingSettings], None]
    open: Callable[[TrackingSettings, RunInfo], Tracker]


TRACKERS: dict[str, TrackerKind] = {
    "wandb": TrackerKind(
        lambda s: s.wandb.enabled, lambda s: wandb_runs.check(s.wandb), lambda s, run: wandb_runs.start(s.wandb, run)
    ),
    "tensorboard": TrackerKind(
        lambda s: s.tensorboard.enabled, lambda s: tensorboard.check(), lambda s, run: tensorboard.start(run)
    ),
    "mlflow": TrackerKind(
        lambda s: s.mlflow.enabled,
        lambda s: mlflow_runs.check(s.mlflow),
        lambda s, run: mlflow_runs.start(s.mlflow, run),
    ),
    "traces": TrackerKind(lambda s: s.traces.enabled, traces.check, traces.start),
    "mirror": TrackerKind(
        lambda s: s.mirror.url is not None, lambda s: mirror.check(s.mirror), lambda s, run: mirror.start(s.mirror, run)
    ),
    "ray_metrics": TrackerKind(lambda s: s.ray_metrics, lambda s: None, lambda s, run: ray_metrics.start(run)),
}
"""Every tracker by its key under `tracking`."""


def check_trackers(settings: TrackingSettings) -> None:
    """Call it before a run folder is made. Raises UserError if an enabled tracker lacks its library, or its key."""
    for kind in TRACKERS.values():
        if kind.enabled(settings):
            kind.check(settings)


def open_trackers(settings: TrackingSettings, run: RunInfo) -> Tracker:
    """All enabled trackers of `run`, as one whose methods raise nothing; only this call raises UserError, as
    `check_trackers` does.

    `run.run_dir` exists and has its `config.yaml`. A failing tracker is reported on stderr, once, and then skipped.
    """
    check_trackers(settings)
    opened = {}
    for name, kind in TRACKERS.items():
        if kind.enabled(settings):
            try:
                opened[name] = kind.open(settings, run)
            except Exception as error:
                _warn(name, error)
    return _Together(opened)


class _Together:
    """Several trackers as one that never raises."""

    def __init__(self, trackers: dict[str, Tracker]) -> None:
        self._trackers = trackers

    def log(self, row: Mapping[str, Any]) -> None:
        self._tell(lambda tracker: tracker.log(row))

    def checkpoint(self, folder: Path, iteration: int) -> None:
        self._tell(lambda tracker: tracker.checkpoint(folder, iteration))

    def transcripts(self, file: Path, iteration: int) -> None:
        self._tell(lambda tracker: tracker.transcripts(file, iteration))

    def finish(self, failed: bool) -> None:
        self._tell(lambda tracker: tracker.finish(failed))
        self._trackers = {}

    def _tell(self, news: Callable[[Tracker], None]) -> None:
        for name, tracker in list(self._trackers.items()):
            try:
                news(tracker)
            except Exception as error:
                del self._trackers[name]
                _warn(name, error)


def _warn(name: str, error: Exception) -> None:
    lines = str(error).strip().splitlines()
    reason = (
        f"{type(error).__name__}: {lines[0]}"
        if lines and not isinstance(error, UserError)
        else (lines or [type(error).__name__])[0]
    )
    say(f"warning: tracker {name} failed and is left alone from here on ({Redactor()(reason):.300}); the run continues")
