"""The script that trains a player and counts its games, and that what it trains is strong (`-m learning`)."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from nip_ray.config.load import load_config
from nip_ray.evaluation.verbs.matches import play_match
from nip_ray.runs.experiment import run_experiment

ROOT = Path(__file__).resolve().parents[3]
SCRIPT = ROOT / "scripts" / "dqn_hironaka.py"
TINY = (
    "scenario.max_rounds=5",
    "scenario.num_test=8",
    "scenario.rho_games=5",
    "algorithm.steps_per_iteration=10",
    "algorithm.warm_up=64",
    "runtime.num_threads=1",
)


def trained(out: Path, *arguments: str, settings: tuple[str, ...] = (), limit: float = 280) -> list[dict[str, Any]]:
    words = [*arguments, "--out", str(out), *(word for setting in settings for word in ("--set", setting))]
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *words],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=limit,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.slow
@pytest.mark.parametrize("role", ["host", "agent"])
def test_it_trains_a_run_for_each_seed_and_plays_every_scripted_opponent(role: str, tmp_path: Path) -> None:
    sizes = tuple(f"algorithm.roles.{role}.{key}=16" for key in ("initial_rollout_size", "rollout_size"))
    found = trained(
        tmp_path, "--role", role, "--iterations", "1", "--rounds", "20", "--seeds", "3", "4", settings=(*TINY, *sizes)
    )
    assert [line["seed"] for line in found] == [3, 4]
    opponents = {
        "host": {"random", "choose_first", "choose_last"},
        "agent": {"random", "random_all", "all_coordinates", "zeillinger"},
    }
    for line in found:
        assert opponents[role] <= line["games"].keys()
        assert all(match["games"] >= 1 and match["standard_error"] >= 0 for match in line["games"].values())
        assert (Path(line["run_dir"]) / "evaluation.json").is_file()


@pytest.mark.learning
@pytest.mark.timeout(3600)
def test_a_trained_host_ends_more_games_than_zeillingers_against_choose_first(tmp_path: Path) -> None:
    """719 in 10,000 rounds is the published figure of Zeillinger's host, 488 that of the random one, 326 that of a
    trained one."""
    (found,) = trained(tmp_path, "--role", "host", limit=3600)
    assert found["games"]["choose_first"]["games"] > 719


@pytest.mark.learning
@pytest.mark.timeout(3600)
def test_a_trained_agent_holds_zeillingers_host_better_than_choose_first_does(tmp_path: Path) -> None:
    (found,) = trained(tmp_path, "--role", "agent", limit=3600)
    assert found["games"]["zeillinger"]["games"] < 719


@pytest.mark.learning
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_host_and_agent_that_learn_from_each_other_are_both_stronger_than_what_they_never_met(
    seed: int, tmp_path: Path
) -> None:
    """Whole numbers: the random host ends .053 games a round against choose_first, and choose_first holds Zeillinger's
    host to .073. A match of 10,000 rounds has less of the host where a few of its games never end, which depends on the
    processor's rounding."""
    config = load_config(ROOT / "tune_configs" / "hironaka_dqn.yaml", [f"seed={seed}"])
    run = run_experiment(config, tmp_path / "run", quiet=True)
    assert run.metrics["eval/rho/own-choose_first"] > 0.075
    assert play_match("zeillinger", str(run.run_dir))["games"] < 620
