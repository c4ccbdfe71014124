"""Whole runs on this machine alone: the model that is made here answers, is fine-tuned, and answers again."""

import json
from pathlib import Path
from typing import Any

import pytest

from nip_ray.config.load import load_config
from nip_ray.runs.experiment import run_experiment

CONFIGS = Path(__file__).resolve().parents[3] / "tune_configs"


def rows(run_dir: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]


def run(tmp_path: Path, name: str, *settings: str) -> list[dict[str, Any]]:
    run_experiment(
        load_config(CONFIGS / f"{name}.yaml", ["providers.local.num_cpus=0.5", *settings]), tmp_path / "run", quiet=True
    )
    return rows(tmp_path / "run")


SMALL = (
    "iterations=2",
    "algorithm.format_warmup=8",
    "algorithm.format_warmup_tuning.num_epochs=1",
    "algorithm.fine_tuning.num_epochs=1",
    "algorithm.fine_tuning.min_examples=1",
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "rollouts", "data"),
    [
        ("ei_cv_offline", 8, "scenario.data"),
        ("ei_offline", 8, "scenario"),
        ("malt_cv_offline", 3, "scenario.data"),
        ("malt_offline", 3, "scenario"),
    ],
)
def test_offline_configs_run_through(tmp_path: Path, ray_session: None, name: str, rollouts: int, data: str) -> None:
    found = run(
        tmp_path,
        name,
        f"algorithm.rollouts_per_iteration={rollouts}",
        f"{data}.num_train=8",
        f"{data}.num_test=4",
        *SMALL,
    )
    assert [row["iteration"] for row in found] == [1, 2]
    cost = json.loads((tmp_path / "run" / "cost.json").read_text())
    assert cost["jobs"] >= 2, "both models learned the form"
    assert cost["tokens"] > 1000
    assert cost["usd"] == 0


@pytest.mark.learning
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_expert_iteration_raises_the_verifiers_reward(tmp_path: Path, ray_session: None, seed: int) -> None:
    """On held-out easy items, by more than two standard errors of the difference: it learns to decide in time, not to
    judge."""
    found = run(tmp_path, "ei_cv_offline", f"seed={seed}")
    first, last = found[0], found[-1]
    rewards = [row["eval_sampled/verifier/return"] for row in (first, last)]
    errors = [row["eval_sampled/verifier/return_std"] / 48**0.5 for row in (first, last)]
    assert rewards[1] - rewards[0] > 2 * (errors[0] ** 2 + errors[1] ** 2) ** 0.5
    assert last["eval_sampled/verifier/undecided"] < first["eval_sampled/verifier/undecided"]
