"""What is said of verdicts beyond their accuracy: the worst of several, calibration, and what messages are worth."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from nip_ray.evaluation.calibration import calibration, calibration_error, graded_verdicts
from nip_ray.evaluation.metrics import worst_case
from nip_ray.play.core import BatchedPlay, Player
from nip_ray.play.rollout import Rollout
from nip_ray.play.staged import Staged, stage_all
from nip_ray.protocols import build
from tests.builders import graph_scenario


def rollout(verdicts: list[int], labels: list[int], rounds: int = 1) -> Rollout:
    """One with these verdicts, in which nothing was said."""
    play = BatchedPlay(graph_scenario("solo_verifier"))
    network = play.scenario.build_agent("verifier", 0)
    ids = torch.arange(len(labels)) % 6
    made = stage_all(play, {"verifier": Player(network)}, ids, torch.zeros_like(ids)).rollout
    return replace(made, verdict_B=torch.tensor(verdicts), y_B=torch.tensor(labels))


def test_an_instance_counts_if_it_was_right_every_time() -> None:
    labels = [1, 1, 0, 0, 0]
    episodes = [rollout(verdicts, labels) for verdicts in ([1, 1, 0, 0, 2], [1, 0, 0, 2, 2], [1, 1, 0, 0, 0])]
    found = worst_case(build("nip"), episodes, {"kind": torch.tensor([7, 8, 7, 8, 8, 8])})
    shares = {name: (record["estimate"], record["n"]) for name, record in found.items() if name != "episodes"}
    assert found["episodes"] == 3
    assert shares == {
        "verifier/accuracy": (2 / 5, 5),
        "verifier/completeness": (1 / 2, 2),
        "verifier/soundness": (1 / 3, 3),
        "verifier/undecided": (2 / 5, 5),
        "verifier/accuracy/kind=7": (1.0, 2),
        "verifier/accuracy/kind=8": (0.0, 3),
    }


def graded(p_N: np.ndarray, y_N: np.ndarray) -> Staged:
    """Verdicts given with these probabilities of acceptance, in the first round."""
    made = rollout((p_N > 0.5).astype(int).tolist(), y_N.astype(int).tolist())
    chance = torch.zeros(len(p_N), 1, 3)
    # a tenth went to going on
    chance[:, 0, 1], chance[:, 0, 0] = torch.from_numpy(p_N) * 0.9, torch.from_numpy(1 - p_N) * 0.9
    chance[:, 0, 2] = 0.1
    return Staged(made, chance)


def test_grades_are_of_the_two_verdicts_alone() -> None:
    p_N, y_N = np.array([0.2, 0.9]), np.array([0.0, 1.0])
    assert graded_verdicts(graded(p_N, y_N))[0] == pytest.approx(p_N, abs=1e-6)


def test_brier_and_error_by_hand() -> None:
    found = calibration(graded(np.array([0.05, 0.05, 0.95, 0.95]), np.array([0.0, 1.0, 1.0, 1.0])), 0)
    assert found["brier"]["estimate"] == pytest.approx((0.05**2 + 0.95**2 + 2 * 0.05**2) / 4, abs=1e-6)
    assert found["ece"]["estimate"] == pytest.approx((2 * 0.45 + 2 * 0.05) / 4, abs=1e-6)
    assert [(part["from"], part["to"], part["positive"]["n"]) for part in found["bins"]] == [
        (0.0, 0.1, 2),
        (0.9, 1.0, 2),
    ]
    assert found["bins"][0]["positive"]["estimate"] == 0.5


CALIBRATED = {
    "spread": lambda random, n: random.random(n),
    "sure": lambda random, n: random.beta(20, 0.5, n),
    "always 0.99": lambda random, n: np.full(n, 0.99),
}


@pytest.mark.parametrize("n", [50, pytest.param(300, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", CALIBRATED)
def test_the_interval_of_a_calibrated_verifiers_error_begins_at_zero(kind: str, n: int) -> None:
    random, held, trials = np.random.default_rng(5), 0, 40
    for _ in range(trials):
        p_N = CALIBRATED[kind](random, n)
        found = calibration_error(p_N, (random.random(n) < p_N).astype(float), 0)
        assert 0 <= found.lower <= found.estimate <= found.upper <= 1
        held += found.lower == 0
    assert held / trials > 0.9


@pytest.mark.parametrize("n", [50, 300])
def test_the_interval_of_the_calibration_error_holds_the_truth_as_often_as_it_says(n: int) -> None:
    """p is uniform, y follows 0.5 + 0.7 (p - 0.5): in each bin the error is 0.3 |p - 0.5|, 0.075 in all."""
    random, held, trials = np.random.default_rng(6), 0, 60
    for _ in range(trials):
        p_N = random.random(n)
        found = calibration_error(p_N, (random.random(n) < 0.5 + 0.7 * (p_N - 0.5)).astype(float), 0)
        held += found.lower <= 0.075 <= found.upper
    assert held / trials > 0.9


def test_risk_is_of_the_verdict_that_was_given() -> None:
    """A panel that votes, and `force_guess`, may give the less probable verdict."""
    staged = graded(np.array([0.9, 0.8, 0.3]), np.array([0.0, 1.0, 1.0]))
    given = Staged(replace(staged.rollout, verdict_B=staged.rollout.y_B), staged.chance_BRD)
    found = calibration(given, 0)["selective"]
    assert found["area"]["estimate"] == 0.0
    assert found["precision"]["0.8"]["estimate"] == 1.0
    wrong = calibration(Staged(replace(staged.rollout, verdict_B=1 - staged.rollout.y_B), staged.chance_BRD), 0)
    # the confidence of a given verdict orders them: .9, .7 and .2, all wrong
    assert [point["risk"] for point in wrong["selective"]["curve"]] == [1.0, 1.0, 1.0]


def test_the_undecided_have_no_grade() -> None:
    staged = graded(np.array([0.1, 0.6, 0.9]), np.array([0.0, 1.0, 1.0]))
    staged = Staged(replace(staged.rollout, verdict_B=torch.tensor([0, 2, 1])), staged.chance_BRD)
    found = calibration(staged, 0)
    assert (found["brier"]["n"], found["undecided"]["estimate"], found["undecided"]["n"]) == (
        2,
        pytest.approx(1 / 3),
        3,
    )
    nobody = calibration(Staged(replace(staged.rollout, verdict_B=torch.tensor([2, 2, 2])), staged.chance_BRD), 0)
    assert (nobody["brier"]["n"], nobody["bins"]) == (0, [])
