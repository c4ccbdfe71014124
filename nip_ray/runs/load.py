"""A run's results as pandas tables, read from its folder without Ray, torch or the run's plugins."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nip_ray.errors import UserError, require
from nip_ray.storage.folder import RunFolder
from nip_ray.storage.listing import config_of

if TYPE_CHECKING:
    import pandas as pd

_EVALUATION = "evaluation.json"


@dataclass(frozen=True)
class LoadedRun:
    """A run folder at the time of reading.

    config: its config, {} if that cannot be parsed. evaluation: the content of `evaluation.json`, {} before the final
    evaluation. metrics: a row for each iteration, indexed by `iteration`, a column for each key of docs/metrics.md, NaN
    if an iteration lacks it. instances: a row for each recorded episode; `transcript` (the file), `episode` (its place
    in the file, from 0), `iteration`, `instance`, `label`, `verdict`, `correct`, `length` (rounds) and more, with one
    column `reward/AGENT` for each agent and `votes/MEMBER` for each member of a panel. dialogues: a row for each
    message; `transcript`, `episode`, `iteration`, `instance`, `round`, `agent`, `channel`, `message` (text, or a list
    of symbols), `decision`, and `probabilities/VERDICT`.
    """

    path: Path
    config: Mapping[str, Any]
    evaluation: Mapping[str, Any]
    metrics: pd.DataFrame
    instances: pd.DataFrame
    dialogues: pd.DataFrame


def load_run(folder: Path | str) -> LoadedRun:
    """The results in a run folder as tables. The run may still be in progress.

    Raises UserError when there is no run, when a file of it is damaged, or when pandas is not installed.
    """
    pandas = require("pandas", "pandas")
    run = RunFolder.open(folder)
    rows = {row["iteration"]: row for row in run.metrics()}  # a repeated iteration counts once
    episodes = [
        (name, number, record) for name in run.transcript_names() for number, record in enumerate(_records(run, name))
    ]
    metrics = pandas.DataFrame(
        list(rows.values()), columns=list(dict.fromkeys(key for row in rows.values() for key in row))
    )
    return LoadedRun(
        path=run.path,
        config=config_of(run.config_yaml())[0],
        evaluation=run.read_json(_EVALUATION) if (run.path / _EVALUATION).is_file() else {},
        metrics=metrics.set_index("iteration") if rows else metrics,
        instances=pandas.DataFrame([_instance(*episode) for episode in episodes]),
        dialogues=pandas.DataFrame([message for episode in episodes for message in _messages(*episode)]),
    )


def _records(run: RunFolder, name: str) -> list[dict[str, Any]]:
    try:
        return run.read_transcripts(name)
    except UserError:
        if (run.transcripts / f"{name}.jsonl").is_file():
            raise
        return []  # a resume has just removed it


def _place(name: str, number: int, record: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "transcript": name,
        "episode": number,
        "iteration": int(name.rpartition("-")[2]),
        "instance": record.get("instance"),
    }


def _instance(name: str, number: int, record: Mapping[str, Any]) -> dict[str, Any]:
    """A record without its rounds, flat."""
    return _place(name, number, record) | _flat({key: value for key, value in record.items() if key != "rounds"})


def _messages(name: str, number: int, record: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for found in record.get("rounds", ()):
        for turn in found.get("turns", ()):
            yield _place(name, number, record) | {"round": found.get("round")} | _flat(turn)


def _flat(record: Mapping[str, Any]) -> dict[str, Any]:
    """The record with `key/name` in place of each mapping."""
    flat: dict[str, Any] = {}
    for key, value in record.items():
        flat |= {f"{key}/{name}": part for name, part in value.items()} if isinstance(value, Mapping) else {key: value}
    return flat
