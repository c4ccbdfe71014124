"""The game through the whole of a run, and matches of a run's players."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from nip_ray.cli import app
from nip_ray.config.load import config_from_dict
from nip_ray.runs.experiment import resume_experiment, run_experiment
from nip_ray.storage.checkpoint import load_checkpoint

SCENARIO: dict[str, Any] = {
    "name": "hironaka",
    "max_points": 6,
    "max_rounds": 5,
    "num_train": 100,
    "num_test": 10,
    "rho_games": 10,
    "agents": {"_default": {"point_width": 8, "layers": [{"width": 16, "norm": "batch"}]}},
}


def small(**changes: Any) -> Any:
    data = {
        "iterations": 2,
        "protocol": {"name": "hironaka"},
        "scenario": SCENARIO,
        "algorithm": {"name": "ppo", "minibatch_size": 60, "num_epochs": 1},
        "play": {"num_copies": 12},
        "evaluation": {"interval": 1, "num_transcripts": 3},
        "checkpoint": {"interval": 1},
        "runtime": {"num_threads": 1},
    }
    return config_from_dict({**data, **changes})


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_experiment(small(), tmp_path_factory.mktemp("runs") / "run", quiet=True).run_dir


def matched(*arguments: str) -> dict[str, Any]:
    result = CliRunner().invoke(app, ["match", *arguments, "--json"])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def refused(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["match", *arguments])
    assert result.exit_code == 2
    assert result.stderr.count("\n") == 1
    return result.stderr


def test_a_run_tells_games_per_round_at_each_evaluation_and_in_evaluation_json(run_dir: Path) -> None:
    rows = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    assert all("eval/rho/own-own" in row and "eval/rho/zeillinger-own" in row for row in rows)
    found = json.loads((run_dir / "evaluation.json").read_text())["figures"]
    assert found["rho/own-own"]["estimate"] == rows[-1]["eval/rho/own-own"]
    assert found["rho/own-own"]["lower"] < found["rho/own-own"]["estimate"] < found["rho/own-own"]["upper"]
    assert all(record["n"] > 0 for record in found.values())
    assert {f"actions/agent_{k}" for k in range(3)} <= found.keys()
    shown = CliRunner().invoke(app, ["resume", str(run_dir)]).stdout
    assert "eval/rho/own-own" in shown
    assert "zeillinger" not in shown


def test_a_runs_players_play_matches_and_the_newest_checkpoint_is_the_default(run_dir: Path) -> None:
    newest = matched(str(run_dir), "random", "--rounds", "200")
    assert newest["games"] == matched(f"{run_dir}@2", "random", "--rounds", "200")["games"]
    assert newest["rounds"] == 200
    assert sum(newest["host_actions"]) > 0
    assert matched("all-coordinates", f"{run_dir}@1", "--rounds", "20", "--seed", "3")["seed"] == 3


def test_who_cannot_play_a_match_is_named(run_dir: Path, tmp_path: Path) -> None:
    assert "host: unknown player 'nobody', and no folder of that name; expected one of random, random-all," in refused(
        "nobody", "random"
    )
    assert "agent: unknown player 'zeillinger'" in refused("random", "zeillinger")
    assert "did you mean zeillinger?" in refused("zeilinger", "random")
    assert "no run here" in refused(str(tmp_path), "random")
    assert "no checkpoint of iteration 7" in refused(f"{run_dir}@7", "random")


def test_a_frozen_opponent_of_another_run_stands_still(run_dir: Path, tmp_path: Path) -> None:
    frozen = {**SCENARIO["agents"]["_default"], "agent_lr_factor": {"actor": 0.0, "critic": 0.0}}
    scenario = {**SCENARIO, "agents": {**SCENARIO["agents"], "host": frozen}}
    config = small(seed=1, scenario=scenario, initial_weights={"host": {"run_dir": str(run_dir)}})
    made = run_experiment(config, tmp_path / "run", quiet=True).run_dir
    before, after = (
        load_checkpoint(folder / "checkpoints").tensors["training"]["modules"] for folder in (run_dir, made)
    )
    assert all(torch.equal(before["host"][name], value) for name, value in after["host"].items())
    assert not all(torch.equal(before["agent"][name], value) for name, value in after["agent"].items())


def test_a_resumed_run_gives_the_numbers_of_one_that_never_stopped(run_dir: Path, tmp_path: Path) -> None:
    half = run_experiment(small(iterations=1), tmp_path / "run", quiet=True).run_dir
    resume_experiment(half, iterations=2, quiet=True)
    rows = [json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1]) for folder in (run_dir, half)]
    figures = [{name: value for name, value in row.items() if name.startswith("eval")} for row in rows]
    assert figures[0] == figures[1]


def test_a_match_of_a_run_is_on_the_game_that_it_was_trained_on_unless_asked_otherwise(run_dir: Path) -> None:
    asked = ("random", f"{run_dir}", "--rounds", "20")
    assert matched(*asked)["scale_state"] is False
    assert matched(*asked, "--scale-state")["scale_state"] is True
    assert matched("random", "random", "--rounds", "20")["scale_state"] is True
    assert matched("random", "random", "--rounds", "20", "--whole-numbers")["scale_state"] is False
