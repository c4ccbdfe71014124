"""The effect of past opponents on networks: the exploitability of two players of a matrix game, and the provers that a
verifier has forgotten.

    python benchmarks/opponents.py rock_paper_scissors --seeds 0 1 2
    python benchmarks/opponents.py matching_pennies --seeds 0 1 2 --arms past plain
    python benchmarks/opponents.py message_game --seeds 0 1 2 --arms past prioritised plain

A line for each seed and arm. Of matrix games (`tune_configs/rock_paper_scissors.yaml`) the exact exploitability of the
policies after every iteration but the first tenth (the largest, the last), and of their mean over these iterations. Of
the message game the accuracy of the final verifier with its own prover and the least with an earlier one, from
checkpoints every ten iterations.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from _common import config, machine, show

from nip_ray.config.rules import check
from nip_ray.evaluation.verbs.over_time import cross_play_checkpoints
from nip_ray.rllib.cluster import build_algorithm
from nip_ray.runs.experiment import run_experiment

ARMS = {
    "past": (),
    "plain": ("opponents=null", "algorithm.entropy_coefficient=0", "algorithm.anneal_lr=false"),
    "bonus_alone": ("opponents=null",),
    "past_alone": ("algorithm.entropy_coefficient=0", "algorithm.anneal_lr=false"),
}
MESSAGE_ARMS = {
    "past": ("opponents={agents: [verifier], latest: 0.5, every: 5, size: 30}",),
    "prioritised": (
        "opponents={agents: [verifier], latest: 0.5, every: 5, size: 30, sampling: prioritised, draws: 4}",
    ),
    "plain": (),
    "first_prover": (),
}


def matrix_game(game: str, arm: str, seed: int) -> dict[str, Any]:
    """Exploitability over the iterations of a run."""
    made: Any = config(
        "rock_paper_scissors", f"scenario.game={game}", f"seed={seed}", "runtime.num_threads=1", *ARMS[arm]
    )
    check(made)
    algorithm: Any = build_algorithm(made)
    scenario, skipped = algorithm.scenario, made.iterations // 10
    found, total = [], [torch.zeros(()), torch.zeros(())]
    for iteration in range(made.iterations):
        algorithm.train()
        tables = [scenario.policy_table(agent, network) for agent, network in sorted(algorithm.networks().items())]
        found.append(scenario.game.figures(tuple(tables))["exploitability"])
        if iteration >= skipped:
            total = [sum_ + table for sum_, table in zip(total, tables, strict=True)]
    algorithm.stop()
    mean = tuple(sum_ / (made.iterations - skipped) for sum_ in total)
    return {
        "largest": max(found[skipped:]),
        "last": found[-1],
        "mean_policy": scenario.game.figures(mean)["exploitability"],
    }


def message_game(arm: str, seed: int) -> dict[str, Any]:
    """The final verifier's accuracy with every prover of the run."""
    keys = ("iterations=150", f"seed={seed}", "checkpoint.interval=10", "checkpoint.keep=null", "runtime.num_threads=1")
    made = config("message_game", *keys, *MESSAGE_ARMS[arm])
    with tempfile.TemporaryDirectory() as folder:
        run_experiment(made, Path(folder) / "run", quiet=True)
        found = cross_play_checkpoints(Path(folder) / "run")
    final = found["runs"][-1]["name"]
    accuracy = {cell["prover"]: cell["accuracy"]["estimate"] for cell in found["matrix"] if cell["verifier"] == final}
    return {
        "final": accuracy[final],
        "with": {int(name): value for name, value in accuracy.items()},
        "least": min(accuracy.values()),
    }


def first_prover(seed: int) -> dict[str, Any]:
    """A new verifier that learns against the frozen prover of iteration 10 alone: the accuracy that is possible with
    that prover."""
    keys = (f"seed={seed}", "checkpoint.interval=10", "runtime.num_threads=1")
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        run_experiment(config("message_game", "iterations=10", *keys), run, quiet=True)
        frozen = (
            f"initial_weights={{prover: {{run_dir: {run}}}}}",
            "scenario.agents.prover.agent_lr_factor={actor: 0, critic: 0}",
        )
        result = run_experiment(
            config("message_game", "iterations=300", *keys, *frozen), Path(folder) / "alone", quiet=True
        )
    return {"sampled": result.metrics["train/verifier/accuracy"], "likeliest": result.metrics["eval/verifier/accuracy"]}


def main() -> None:
    """Run the requested arms, seed by seed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("game", choices=["rock_paper_scissors", "matching_pennies", "message_game"])
    parser.add_argument(
        "--arms", nargs="+", default=["past", "plain"], choices=[*dict.fromkeys([*ARMS, *MESSAGE_ARMS])]
    )
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    args = parser.parse_args()
    if unknown := set(args.arms) - {*(MESSAGE_ARMS if args.game == "message_game" else ARMS)}:
        parser.error(f"{args.game} has no arm {', '.join(sorted(unknown))}")
    torch.set_num_threads(1)
    print(json.dumps({"machine": machine()}))
    for seed in args.seeds:
        for arm in args.arms:
            began = time.perf_counter()
            if arm == "first_prover":
                found = first_prover(seed)
            else:
                found = message_game(arm, seed) if args.game == "message_game" else matrix_game(args.game, arm, seed)
            show(
                f"opponents {args.game}",
                {"arm": arm, "seed": seed, **found, "seconds": round(time.perf_counter() - began)},
            )


if __name__ == "__main__":
    main()
