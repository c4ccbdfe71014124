"""Learning claims on handwritten digits; minutes, with `pytest -m learning`."""

from pathlib import Path

import pytest

from nip_ray.config.load import load_config
from nip_ray.runs.experiment import run_experiment

CONFIGS = Path(__file__).resolve().parents[3] / "tune_configs"
SEEDS = (0, 1, 2)


def accuracy(folder: Path, name: str, seed: int, *overrides: str) -> float:
    """On held-out images, at the end of a run."""
    settings = [f"seed={seed}", "evaluation.interval=0", "evaluation.attack.enabled=false", *overrides]
    return run_experiment(load_config(CONFIGS / f"{name}.yaml", settings), folder, quiet=True).metrics[
        "eval/verifier/accuracy"
    ]


@pytest.mark.learning
@pytest.mark.parametrize("seed", SEEDS)
def test_on_digits_a_proof_takes_the_verifier_past_what_it_sees_alone(tmp_path: Path, seed: int) -> None:
    alone = accuracy(tmp_path / "alone", "digits_solo", seed)
    proved = accuracy(tmp_path / "nip", "digits_nip", seed)
    assert alone < 0.80
    assert proved > 0.86
    assert proved - alone > 0.10  # four standard errors of 358 images


@pytest.mark.learning
def test_a_prover_that_wants_to_be_believed_shows_more_than_one_at_random(tmp_path: Path) -> None:
    random = accuracy(tmp_path / "random", "digits_nip", 0, "scenario.agents.prover.kind=random")
    assert accuracy(tmp_path / "nip", "digits_nip", 0) > random + 0.02
