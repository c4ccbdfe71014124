"""The interface of trackers, which receive a run's metrics and files while it continues."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from nip_ray.storage.folder import json_ready


@dataclass(frozen=True)
class RunInfo:
    """The tracked run. run_id: the same after a resume; letters, digits, - and _ only. group: the sweep's name, if any.

    config: every key of the config, as plain values. resumed_from: the iteration that it continues from
    (0: a new run; -1: one that logs an iteration 0). taken_over: its later checkpoints are of other settings, and give
    way.
    """

    run_dir: Path
    run_id: str
    name: str
    config: Mapping[str, Any]
    group: str | None = None
    resumed_from: int = 0
    taken_over: bool = False


class Tracker(Protocol):
    """Receives everything once, in order of iterations; a subclass overrides the methods that it needs.

    Rows have the keys of docs/metrics.md, flat, with an integer "iteration".
    """

    def log(self, row: Mapping[str, Any]) -> None:
        """One row of `metrics.jsonl`."""

    def checkpoint(self, folder: Path, iteration: int) -> None:
        """A finished checkpoint; the folder may be pruned later."""

    def transcripts(self, file: Path, iteration: int) -> None:
        """A finished file of transcripts."""

    def finish(self, failed: bool) -> None:
        """The run is over, or has stopped and can be resumed (`failed`)."""


def values(row: Mapping[str, Any]) -> dict[str, float | int | str]:
    """A row as plain values: booleans as 0 and 1, without keys whose value is None or not finite."""
    plain = json_ready(row)
    return {key: int(value) if isinstance(value, bool) else value for key, value in plain.items() if value is not None}


def numbers(row: Mapping[str, Any]) -> dict[str, float | int]:
    """The same without texts: values of curves."""
    return {key: value for key, value in values(row).items() if not isinstance(value, str)}


def flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Every key of a config as "a.b.c" with its scalar; a list is one value, as JSON."""
    made: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, Mapping):
            made |= flat(value, f"{prefix}{key}.")
        else:
            made[f"{prefix}{key}"] = json.dumps(json_ready(value)) if isinstance(value, list | tuple) else value
    return made
