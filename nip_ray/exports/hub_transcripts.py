"""The transcripts of a run as a data set: a Parquet file per split, one row per episode, typed columns (`COLUMNS`)."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from nip_ray.config.yaml_text import parse_yaml
from nip_ray.evaluation.report.describe import verdicts_of
from nip_ray.protocols import DECISIONS
from nip_ray.storage.folder import CONFIG, RunFolder, write_document

TURN = {
    "round": (pa.int64(), "from 0"),
    "agent": (pa.string(), "who speaks"),
    "channel": (pa.string(), "where; empty where nothing was written"),
    "message": (pa.string(), "what was said; of networks the symbols, with spaces between them"),
    "symbols": (pa.list_(pa.int64()), "of networks: the symbols; null of language models"),
    "decision": (
        pa.string(),
        f"of the verifier: {', '.join(DECISIONS)}, the name of another verdict, or undecided; else null",
    ),
    "confidence": (pa.float64(), "of a language model's verdict: its probability of acceptance"),
    **{
        f"p_{name}": (pa.float64(), f"of a network's decision that could count: its probability of {name}")
        for name in DECISIONS
    },
    "reasoning": (pa.string(), "private reasoning of a language model, which no agent was shown"),
    "more": (
        pa.string(),
        "JSON of what else the record has, such as retries, truncated, invalid, linear; null for nothing",
    ),
}
_REWARD = pa.struct([("agent", pa.string()), ("reward", pa.float64())])
COLUMNS: dict[str, tuple[pa.DataType, str]] = {
    "iteration": (pa.int64(), "after which it was played"),
    "instance": (pa.int64(), "number of the instance"),
    "label": (
        pa.string(),
        "the right answer: accept or reject, or the name of another verdict; null in a game without a verifier",
    ),
    "verdict": (pa.string(), "accept, reject, the name of another verdict, or undecided"),
    "correct": (pa.bool_(), "whether the verdict is the label"),
    "seed": (pa.int64(), "of the episode"),
    "length": (pa.int64(), "rounds that were played"),
    "rewards": (pa.list_(_REWARD), "what each agent was paid, in sum"),
    "turns": (pa.list_(pa.struct([(name, kind) for name, (kind, _) in TURN.items()])), "in order"),
    "more": (pa.string(), "JSON of what else the scenario records; null for nothing"),
}
_SCHEMA = pa.schema([(name, kind) for name, (kind, _) in COLUMNS.items()])
_KNOWN = {"instance", "label", "verdict", "correct", "seed", "length", "reward", "rounds", "version"}
_KNOWN_OF_TURN = {"agent", "channel", "message", "decision", "confidence", "probabilities", "reasoning"}


def write_transcripts(folder: RunFolder, of_language: bool, target: Path) -> dict[str, int]:
    """Write all transcripts of a run and the schema below `target`; returns split -> episodes, {} if there are none.

    Raises UserError for a damaged file.
    """
    rows: dict[str, list[dict[str, Any]]] = {}
    verdicts = verdicts_of(parse_yaml((folder.path / CONFIG).read_text(encoding="utf-8"), CONFIG))
    for name in folder.transcript_names():
        prefix, _, iteration = name.rpartition("-")
        split = "train" if of_language and not prefix else "test"
        rows.setdefault(split, []).extend(
            _row(record, int(iteration), verdicts) for record in folder.read_transcripts(name)
        )
    rows = {split: found for split, found in sorted(rows.items()) if found}
    for split, found in rows.items():
        path = target / "data" / f"{split}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.Table.from_pylist(found, _SCHEMA), path)
    if rows:
        write_document(target / "schema.json", {"columns": described(COLUMNS), "turns": described(TURN)})
    return {split: len(found) for split, found in rows.items()}


def described(columns: Mapping[str, tuple[pa.DataType, str]]) -> dict[str, dict[str, str]]:
    """Column -> its type and meaning: of `COLUMNS`, or of `TURN`, the entries of `turns`."""
    return {
        name: {"type": "list of turns" if name == "turns" else str(kind), "what": told}
        for name, (kind, told) in columns.items()
    }


def _row(record: Mapping[str, Any], iteration: int, verdicts: Sequence[str]) -> dict[str, Any]:
    label = record.get("label")
    return {
        "iteration": iteration,
        **{name: record.get(name) for name in ("instance", "verdict", "correct", "seed", "length")},
        "label": None if label is None else verdicts[label],
        "rewards": [{"agent": agent, "reward": paid} for agent, paid in record.get("reward", {}).items()],
        "turns": [_turn(turn, played["round"]) for played in record.get("rounds", []) for turn in played["turns"]],
        "more": _rest(record, _KNOWN),
    }


def _turn(turn: Mapping[str, Any], number: int) -> dict[str, Any]:
    said = turn.get("message")
    chances = turn.get("probabilities", {})
    return {
        "round": number,
        **{name: turn.get(name) for name in ("agent", "channel", "decision", "confidence", "reasoning")},
        "message": " ".join(map(str, said)) if isinstance(said, list) else said,
        "symbols": said if isinstance(said, list) else None,
        **{f"p_{name}": chances.get(name) for name in DECISIONS},
        "more": _rest(turn, _KNOWN_OF_TURN - (set() if chances.keys() <= set(DECISIONS) else {"probabilities"})),
    }


def _rest(record: Mapping[str, Any], known: set[str]) -> str | None:
    rest = {key: value for key, value in record.items() if key not in known}
    return json.dumps(rest, ensure_ascii=False) if rest else None
