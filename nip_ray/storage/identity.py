"""The name of a run, and whether it is finished: `run.json` in its folder."""

import re
import secrets
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from nip_ray.errors import UserError
from nip_ray.storage.folder import IDENTITY as IDENTITY
from nip_ray.storage.folder import RunFolder


@dataclass(frozen=True)
class ExperimentResult:
    """The result of a run. metrics: the last row of `metrics.jsonl`, with the last evaluation's metrics. iterations:
    completed ones."""

    run_dir: Path
    metrics: dict[str, Any]
    iterations: int


def run_id(folder: RunFolder, name: str, seed: int) -> str:
    """The name by which trackers identify the run: made once, kept in the folder. No computation depends on it."""
    if (folder.path / IDENTITY).is_file():
        known = folder.read_json(IDENTITY).get("run_id")
        if not isinstance(known, str):
            raise UserError(
                f"{folder.path / IDENTITY} is damaged: it has no run_id; go back to a copy, or remove it for a new name"
            )
        return known
    made = f"{re.sub('[^A-Za-z0-9_-]', '-', name)}-{seed}-{secrets.token_hex(4)}"
    folder.write_json(IDENTITY, {"run_id": made})
    return made


def mark_finished(folder: RunFolder) -> None:
    """Record that the run is complete under its present config, including its report."""
    folder.write_json(IDENTITY, {**folder.read_json(IDENTITY), "finished": _digest(folder)})


def is_finished(folder: RunFolder) -> bool:
    """True if `mark_finished` was called under the present config."""
    return (folder.path / IDENTITY).is_file() and folder.read_json(IDENTITY).get("finished") == _digest(folder)


def _digest(folder: RunFolder) -> str:
    return sha256(folder.config_yaml().encode()).hexdigest()
