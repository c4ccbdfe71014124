"""What deep Q-learning reaches in Hironaka's game, through a whole run: minutes."""

from pathlib import Path

import pytest

from nip_ray.config.load import load_config
from nip_ray.runs.experiment import run_experiment

ROOT = Path(__file__).resolve().parents[2]
RANDOM_HOST = 0.042
"""Games a round of the host that chooses any subset, against the agent that takes the first coordinate (4000 games of
100 rounds)."""


@pytest.mark.learning
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_host_ends_games_sooner_than_a_random_one(tmp_path: Path, seed: int) -> None:
    """Trained for 3000 steps against scripted agents; an untrained one is at 0.01 to 0.03."""
    settings = [
        f"seed={seed}",
        "evaluation.interval=0",
        "scenario.rho_games=500",
        "iterations=30",
        "algorithm.steps_per_iteration=100",
    ]
    config = load_config(ROOT / "tune_configs" / "hironaka_host.yaml", settings)
    figures = run_experiment(config, tmp_path / "run", quiet=True).metrics
    assert figures["eval/rho/own-choose_first"] > RANDOM_HOST
