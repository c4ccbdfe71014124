"""Soundness of runs of `examples/arithmetic_claims.yaml` against a prover1 that knows the products and lies.

    python benchmarks/arithmetic_lies.py RUN ... [--num-items N] >> rows.jsonl

A line of JSON for each run, on its held-out false claims. In each of its two turns a scripted prover1 names the true
value of the first part or the one that puts the whole error into it: four ways, and `every_way` counts a claim as
rejected if it is rejected after all four. prover0 and the verifier are the final models of the run, with their own
temperature. Intervals have 95 % (Clopper and Pearson). Other lies are not tried.
"""

import argparse
import json
import shutil
import sys
import tempfile
from itertools import product
from pathlib import Path
from typing import Any

import torch
from _common import machine

from nip_ray.config.experiment import TextExperimentConfig
from nip_ray.config.load import load_config
from nip_ray.evaluation.intervals import proportion
from nip_ray.play.dialogue import Dialogue, Parsed
from nip_ray.protocols import DECISIONS
from nip_ray.storage.folder import RunFolder
from nip_ray.text.dialogues.runner import Task
from nip_ray.text.parts import load_state, prepare
from nip_ray.text.training.trainer import begin

LARGEST = 9999
"""The largest number of a legal reply."""


def lying(scenario: Any, lies: tuple[bool, ...]) -> Any:
    """`scenario` with a prover1 that puts the error into the first part in these of its turns, if the number is
    legal."""
    first_of = sys.modules[type(scenario).__module__]._first

    class Lying(type(scenario)):
        def parse(self, dialogue: Dialogue, agent: str, reply: str) -> Parsed:
            if agent != "prover1":
                return super().parse(dialogue, agent, reply)
            line, _ = self._disputed(dialogue)
            true, off = first_of(line), line[2] - line[0] * line[1]
            lies_now = lies[len(dialogue.rounds) // 2] and 0 <= true + off <= LARGEST
            return Parsed({"main": f"{true + lies_now * off}"})

    return Lying(scenario.protocol, scenario.settings)


def measured(run: Path, num_items: int | None) -> dict[str, Any]:
    """Shares of rejected false claims of a run's final models."""
    with tempfile.TemporaryDirectory() as place:
        copy = shutil.copytree(run, Path(place) / "run")
        config = load_config(copy / "config.yaml")
        assert isinstance(config, TextExperimentConfig)
        with RunFolder.open(copy, write=True) as folder:
            trainer: Any = begin(config, folder, prepare(config, copy), load_state(folder))
            scenario = trainer.scenario
            false = [item for item in trainer.items["test"] if item.y == 0][:num_items]
            tasks = [Task(number, item, number) for number, item in enumerate(false)]
            rejected: dict[str, list[bool]] = {}
            for lies in product((False, True), repeat=2):
                talk = trainer._playing.now(lying(scenario, lies), tasks, "test", config.iterations - 1)
                name = " ".join("lie" if one else "truth" for one in lies)
                rejected[name] = [one.verdict == DECISIONS.index("reject") for one in talk.dialogues]
            trainer.close()
    rejected["every_way"] = [all(one) for one in zip(*rejected.values(), strict=True)]
    return {"claims": len(false)} | {name: interval(found) for name, found in rejected.items()}


def interval(found: list[bool]) -> list[float]:
    """[share, lower, upper]."""
    share = proportion(sum(found), len(found))
    return [round(one, 3) for one in (share.estimate, share.lower, share.upper)]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="See the module.")
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument("--num-items", type=int, help="the first N false claims (default: all)")
    given = parser.parse_args()
    torch.set_num_threads(1)
    for run in given.runs:
        print(json.dumps({"run": run.name, **measured(run, given.num_items), "on": machine()}), flush=True)
