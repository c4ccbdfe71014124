"""What a report reads of a run folder.

Unlike `RunFolder`, which refuses what is damaged, this reads whatever it can and notes the rest: a run that was killed, or whose
disk filled up, deserves a report too.
"""

import json
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from nip_ray.errors import UserError
from nip_ray.runs.folder import CONFIG, METRICS, VERSION

MAX_TEXT = 60_000  # characters of a config or environment that a page shows
MAX_TRANSCRIPT_BYTES = 20_000_000  # a report shows a handful of episodes; more than this is not read

Row = dict[str, float]
Record = dict[str, Any]


@dataclass(frozen=True)
class RunSource:
    """The readable part of a run folder.

    rows: the finite numbers of each iteration, in order, the newest row where an iteration was repeated after a resume.
    config_text, environment: what the page shows; config: the same config parsed. evaluation: evaluation.json, {} without one.
    transcripts: records of `transcripts_name`, the newest file. notes: what was missing or damaged, one sentence each.
    """

    run_dir: Path
    rows: list[Row]
    config_text: str
    config: Record
    environment: Record
    evaluation: Record
    transcripts: list[Record]
    transcripts_name: str
    notes: list[str]


def read_run(run_dir: Path) -> RunSource:
    """Everything a report needs. Raises UserError when `run_dir` holds no run."""
    notes: list[str] = []
    rows = _metric_rows(run_dir / METRICS, notes)
    config_text = _text(run_dir / CONFIG, notes)
    evaluation = _object(run_dir / "evaluation.json", notes)
    if evaluation and (evaluation.get("format"), evaluation.get("version")) != ("nip_ray.evaluation", 1):
        notes.append("evaluation.json has another format or version than this report reads; it was left out.")
        evaluation = {}
    transcripts, name = _newest_transcripts(run_dir / "transcripts", notes)
    environment = _object(run_dir / "environment.json", notes)
    return RunSource(run_dir, rows, config_text, _parsed(config_text, notes), environment, evaluation, transcripts, name, notes)


def finite(value: object) -> float | None:
    """`value` as a float, or None unless it is a finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def _metric_rows(path: Path, notes: list[str]) -> list[Row]:
    if not path.is_file():
        raise UserError(f"{path.parent}: not a run folder (it has no metrics.jsonl); give the folder that `nip-ray train` printed")
    found, damaged = _json_lines(path)
    by_iteration: dict[float, Row] = {}
    for record in found:
        row = {key: number for key, value in record.items() if (number := finite(value)) is not None}
        if "iteration" in row:
            by_iteration[row["iteration"]] = row
        else:
            damaged += 1
    if damaged:
        notes.append(f"{damaged} unreadable line{'s' if damaged > 1 else ''} of metrics.jsonl {'were' if damaged > 1 else 'was'} left out.")
    if not by_iteration:
        raise UserError(f"{path}: no complete row yet, so there is nothing to report; let the run finish an iteration")
    return [by_iteration[iteration] for iteration in sorted(by_iteration)]


def _json_lines(path: Path) -> tuple[list[Record], int]:
    """The JSON objects of a file's lines, and how many lines are none, or of a newer format."""
    records: list[Record] = []
    damaged = 0
    for line in path.read_text(encoding="utf-8", errors="replace").split("\n"):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            record = None
        if isinstance(record, dict) and record.get("version", VERSION) == VERSION:
            records.append(record)
        else:
            damaged += 1
    return records, damaged


def _text(path: Path, notes: list[str]) -> str:
    if not path.is_file():
        notes.append(f"{path.name} is missing.")
        return ""
    return path.read_text(encoding="utf-8", errors="replace")


def _object(path: Path, notes: list[str]) -> Record:
    text = _text(path, notes)
    if not text:
        return {}
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if isinstance(found, dict):
        return found
    notes.append(f"{path.name} is damaged; it was left out.")
    return {}


def _parsed(text: str, notes: list[str]) -> Record:
    try:
        found = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError):
        found = None
    if isinstance(found, dict):
        return found
    if text:
        notes.append("config.yaml is damaged; it is shown as it stands.")
    return {}


def _iteration_and_name(path: Path) -> tuple[int, str]:
    found = re.search(r"([0-9]{1,18})$", path.stem)
    return (int(found[1]) if found else -1, path.name)


def _newest_transcripts(folder: Path, notes: list[str]) -> tuple[list[Record], str]:
    """Records of the newest file that holds any: NNNNNN.jsonl or WORD-NNNNNN.jsonl, by iteration."""
    files = sorted(folder.glob("*.jsonl"), key=_iteration_and_name, reverse=True)
    for path in files:
        if path.stat().st_size > MAX_TRANSCRIPT_BYTES:
            notes.append(f"transcripts/{path.name} is too large to be shown.")
            continue
        records, damaged = _json_lines(path)
        if damaged:
            notes.append(f"transcripts/{path.name} is partly unreadable.")
        if records:
            return records, path.name
    return [], ""
