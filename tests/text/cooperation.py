"""A game of words with a known optimum, played against the test provider.

Merlin's half (adp): the prover sees the program, says one of two things, and the verifier, who in this game can tell
programs apart by nothing but what is said, accepts or rejects. Everyone is paid for right verdicts (`shared_reward`),
so the best is to agree on what the words mean: accuracy 1. The provers' tables begin with a slight habit, from which
that must grow.
"""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from nip_ray.play.dialogue import START

REPLIES = ["Answer: it holds.", "Answer: look again."]
VERIFIER = "You will read one message of"
FENCE = re.compile(r"\[\w+ [0-9a-f]{8}\]\n")
NUM_TEST = 60  # enough that chance, one half, is hardly ever seen as 0.8
PRICES = {"input": 0.15, "output": 0.6, "training": 3.0}


def situation(messages: Sequence[dict[str, Any]]) -> str:
    """What was said last, to whoever speaks second; `start` for the first speaker."""
    said = [FENCE.sub("", str(message["content"])) for message in messages if message["role"] == "user"]
    return "start" if said[-1] == START else said[-1]


def roles(habit: float = 0.7, frozen: Sequence[float] | None = None) -> list[dict[str, Any]]:
    """The provider's roles: the verifier, known by its prompt, and the prover before a good and before a bad
    program."""
    verifier: dict[str, Any] = {
        "name": "verifier",
        "marker": VERIFIER,
        "replies": ["Decision: accept", "Decision: reject"],
    }
    if frozen is not None:
        verifier["prior"] = list(frozen)
    good = {"name": "prover of a good one", "marker": "GOOD", "replies": REPLIES, "prior": [habit, 1 - habit]}
    bad = {"name": "prover of a bad one", "marker": "BAD", "replies": REPLIES, "prior": [1 - habit, habit]}
    return [verifier, good, bad]


def write_items(folder: Path) -> dict[str, str]:
    """Two data files; half of the programs are GOOD, half are BAD."""
    files = {}
    for split, num in (("train", 20), ("test", NUM_TEST)):
        rows = [
            {
                "id": i,
                "question": f"Print {i}. ({split})",
                "solution": f"print({i})  # {'GOOD' if i % 2 else 'BAD'} {split}",
                "y": i % 2,
                "prover_stance": 1,
                "difficulty": "introductory",
                "family": split,
            }
            for i in range(num)
        ]
        path = folder / f"{split}.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        files[split] = str(path)
    return files


def config(folder: Path, algorithm: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """A config of this game; the address of the provider comes from $OPENAI_BASE_URL. changes: of top-level keys."""
    rule = {"rollouts_per_iteration": 80, "test_scheme": "all", "fine_tuning": {"num_epochs": 3}, **algorithm}
    made: dict[str, Any] = {
        "name": "cooperation",
        "iterations": 5,
        "protocol": {"name": "adp", "shared_reward": True},
        "scenario": {
            "name": "code_validation",
            "data": {"train": None, "test": None, "num_train": 20, "num_test": NUM_TEST, **write_items(folder)},
            "agents": {"_default": {"provider": "tables", "model": "base", "max_invalid_replies": 3}},
        },
        "algorithm": rule,
        "providers": {
            "tables": {
                "name": "openai",
                "max_retries": 20,
                "poll_interval_s": 0.05,
                "doubt_s": 0.6,
                "prices": {"_default": PRICES},
            }
        },
    }
    return {**made, **changes}


def dummy(folder: Path, protocol: str = "nip", **changes: Any) -> dict[str, Any]:
    """A config that nobody speaks in."""
    rule = {
        "name": "expert_iteration",
        "rollouts_per_iteration": 24,
        "num_test_items": 6,
        "fine_tuning": {"min_examples": 1},
    }
    made = config(folder, rule, iterations=2)
    made["protocol"] = (
        {"name": protocol, "max_rounds": 5} if protocol in ("nip", "debate", "mnip") else {"name": protocol}
    )
    made["scenario"]["agents"] = {"_default": {"provider": "nobody", "model": "none"}}
    made["providers"] = {"nobody": {"name": "dummy"}}
    return {**made, **changes}


def write_config(folder: Path, data: dict[str, Any]) -> Path:
    """The same as a YAML file."""
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(data))
    return path
