"""Soundness of runs of `examples/arithmetic_claims.yaml` against a prover1 that knows the products and lies.

    python benchmarks/arithmetic_lies.py RUN ... >> rows.jsonl

A line of JSON for each run, on its held-out false claims. A scripted prover1 takes its two turns in nine ways: in each
it puts none, half (in tens) or all of the error into the first part. prover0 and the verifier are the final models of
the run, with their own temperature. Shares of rejected claims have intervals of 95 % (Clopper and Pearson):

- `none none` and so on: by the error in the first part in both turns. All or none is what prover0's solved examples
  have; half is new
- `taught`, `every`: of the claims that are rejected after each of the four, of the nine ways
- `fits`: of the verdicts of all dialogues that are right about the part that was left; no interval, since dialogues
  about a claim are alike

A value that is not a legal number (`replaced` of them) becomes the true one. Other lies are not tried.
"""

import argparse
import json
import sys
from itertools import product
from pathlib import Path
from typing import Any

import torch
from _common import final_models, machine

from nip_ray.config.experiment import TextExperimentConfig
from nip_ray.config.load import load_config
from nip_ray.evaluation.intervals import proportion
from nip_ray.play.dialogue import Dialogue, InvalidReply, Parsed, beginning
from nip_ray.protocols import DECISIONS
from nip_ray.text.dialogues.runner import Task

SHARES = {"none": 0.0, "half": 0.5, "all": 1.0}
TAUGHT = {"none", "all"}


def lying(scenario: Any, way: tuple[str, str], replaced: list[int]) -> Any:
    """`scenario` with a prover1 that puts these shares of the error into the first part. replaced: gets a number for
    each that is not legal."""
    first_of = sys.modules[type(scenario).__module__]._first

    class Lying(type(scenario)):
        def parse(self, dialogue: Dialogue, agent: str, reply: str) -> Parsed:
            if agent != "prover1":
                return super().parse(dialogue, agent, reply)
            line, _ = self._disputed(dialogue)
            true, off = first_of(line), line[2] - line[0] * line[1]
            said = true + round(SHARES[way[len(dialogue.rounds) // 2]] * off / 10) * 10
            try:
                return super().parse(dialogue, agent, f"{said}")
            except InvalidReply:
                replaced.append(said)
                return super().parse(dialogue, agent, f"{true}")

    return Lying(scenario.protocol, scenario.settings)


def measured(run: Path) -> dict[str, Any]:
    """Shares of a run's final models."""
    config = load_config(run / "config.yaml")
    if not isinstance(config, TextExperimentConfig) or config.scenario.name != "arithmetic_claim":
        sys.exit(f"error: {run}: expected a run of examples/arithmetic_claims.yaml")
    if config.protocol.name != "bisection":
        sys.exit(f"error: {run}: protocol {config.protocol.name} has no prover1 that splits claims")
    rejected: dict[tuple[str, str], list[bool]] = {}
    fits: list[bool] = []
    replaced: list[int] = []
    with final_models(run) as trainer:
        scenario, reject = trainer.scenario, DECISIONS.index("reject")
        false = [item for item in trainer.items["test"] if item.y == 0]
        tasks = [Task(number, item, number) for number, item in enumerate(false)]
        for way in product(SHARES, repeat=2):
            talk = trainer._playing.now(lying(scenario, way, replaced), tasks, "test", config.iterations - 1)
            rejected[way] = [one.verdict == reject for one in talk.dialogues]
            for dialogue in talk.dialogues:
                (one, two, value), _ = scenario._disputed(beginning(dialogue, len(dialogue.rounds) - 1))
                fits.append((dialogue.verdict == reject) == (one * two != value))
    taught = [found for way, found in rejected.items() if set(way) <= TAUGHT]
    return {
        "claims": len(false),
        **{" ".join(way): interval(found) for way, found in rejected.items()},
        "taught": interval([all(one) for one in zip(*taught, strict=True)]),
        "every": interval([all(one) for one in zip(*rejected.values(), strict=True)]),
        "fits": round(sum(fits) / len(fits), 4),
        "replaced": len(replaced),
    }


def interval(found: list[bool]) -> list[float]:
    """[share, lower, upper]."""
    share = proportion(sum(found), len(found))
    return [round(one, 3) for one in (share.estimate, share.lower, share.upper)]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="See the module.")
    parser.add_argument("runs", type=Path, nargs="+")
    given = parser.parse_args()
    torch.set_num_threads(1)
    for run in given.runs:
        print(json.dumps({"run": run.name, **measured(run), "on": machine()}), flush=True)
