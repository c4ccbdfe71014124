"""Learning claims: each fails when learning breaks. The quick one runs always, the long ones with `pytest -m learning`."""

from pathlib import Path

import pytest

from nip_ray.config.load import load_config
from nip_ray.runs.experiment import run_experiment

ROOT = Path(__file__).resolve().parents[1]
CONFIGS = ROOT / "tune_configs"
PUBLISHED_TEST = ROOT.parent / "shared" / "data" / "graph_isomorphism" / "eru10000_test.npz"
SEEDS = (0, 1, 2)


def final(tmp_path: Path, config: str, seed: int, iterations: int, *overrides: str) -> dict[str, float]:
    """The last figures of a run."""
    held_out = [f"scenario.data.test={PUBLISHED_TEST}"] if PUBLISHED_TEST.exists() and config.startswith("gi_") else []
    settings = [f"seed={seed}", f"iterations={iterations}", "evaluation.interval=0", *held_out, *overrides]
    return run_experiment(load_config(CONFIGS / f"{config}.yaml", settings), tmp_path / f"{config}-{seed}", quiet=True).metrics


def message_game(tmp_path: Path, seed: int) -> float:
    return final(tmp_path, "message_game", seed, 40)["eval/verifier/accuracy"]


def test_the_message_game_is_learned(tmp_path: Path) -> None:
    assert message_game(tmp_path, 0) > 0.9  # a verifier that ignores the prover is right half of the time


@pytest.mark.learning
@pytest.mark.parametrize("seed", SEEDS)
def test_the_message_game_is_learned_whatever_the_seed(tmp_path: Path, seed: int) -> None:
    assert message_game(tmp_path, seed) > 0.9


@pytest.mark.learning
@pytest.mark.parametrize("seed", SEEDS)
def test_nip_passes_the_ceiling_of_the_verifier_alone(tmp_path: Path, seed: int) -> None:
    figures = final(tmp_path, "gi_fast", seed, 300)
    assert figures["eval/verifier/accuracy"] >= 0.70 > figures["eval/verifier/wl_ceiling"]


@pytest.mark.learning
@pytest.mark.parametrize("seed", SEEDS)
def test_the_verifier_alone_stays_below_its_ceiling(tmp_path: Path, seed: int) -> None:
    figures = final(tmp_path, "gi_solo", seed, 100, "algorithm.lr=1e-3")
    assert 0.52 < figures["eval/verifier/accuracy"] <= figures["eval/verifier/wl_ceiling"]


@pytest.mark.learning
@pytest.mark.parametrize("seed", SEEDS)
def test_the_quickstart_beats_chance(tmp_path: Path, seed: int) -> None:
    figures = final(tmp_path, "quickstart", seed, load_config(CONFIGS / "quickstart.yaml").iterations)
    assert figures["eval/verifier/accuracy"] > 0.55  # the 95 % interval of 1,000 instances then lies above chance
