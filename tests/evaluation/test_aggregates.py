"""Paired differences, means of the middle half, and intervals by resampling."""

import numpy as np
import pytest
from scipy import stats

from nip_ray.evaluation.aggregates import crossed_interval, interquartile_mean, paired_difference, stratified_interval


def pairs(both: int, only: int, other: int, neither: int) -> tuple[list[bool], list[bool]]:
    cells = [(True, True)] * both + [(True, False)] * only + [(False, True)] * other + [(False, False)] * neither
    return [first for first, _ in cells], [second for _, second in cells]


def test_a_paired_difference_knows_that_nothing_changed() -> None:
    found = paired_difference(*pairs(30, 0, 0, 10))
    assert found.estimate == 0
    assert found.lower < 0 < found.upper
    assert found.upper < 0.1, "the same answers to 40 questions: far surer than two samples of 40"


def test_a_paired_difference_turns_round_with_its_arguments() -> None:
    first, second = pairs(20, 9, 3, 8)
    one, other = paired_difference(first, second), paired_difference(second, first)
    assert one.estimate == pytest.approx(6 / 40)
    assert (one.lower, one.upper) == pytest.approx((-other.upper, -other.lower))  # type: ignore[operator]


def test_without_correlation_it_is_the_interval_of_two_samples() -> None:
    """Newcombe's method for independent shares: the squares of both distances simply add up."""
    found = paired_difference(*pairs(16, 16, 4, 4))  # both * neither = only * other
    wilson = [stats.binomtest(k, 40).proportion_ci(method="wilson") for k in (32, 20)]
    below = np.hypot(0.8 - wilson[0].low, wilson[1].high - 0.5)
    above = np.hypot(wilson[0].high - 0.8, 0.5 - wilson[1].low)
    assert (found.lower, found.upper) == pytest.approx((0.3 - below, 0.3 + above), abs=1e-9)


def test_a_paired_interval_covers_the_truth_as_often_as_it_says() -> None:
    random, covered = np.random.default_rng(0), 0
    for _ in range(2000):
        first = random.random(60) < 0.85
        second = np.where(random.random(60) < 0.2, random.random(60) < 0.4, first)
        found = paired_difference(first, second)
        covered += found.lower <= 0.85 - (0.8 * 0.85 + 0.2 * 0.4) <= found.upper
    assert 0.94 <= covered / 2000 <= 0.97


@pytest.mark.parametrize("n", [1, 2, 3, 4, 7, 8, 33])
def test_the_interquartile_mean_is_scipys_trimmed_one(n: int) -> None:
    values = np.random.default_rng(n).normal(size=n)
    assert interquartile_mean(values) == pytest.approx(stats.trim_mean(values, 0.25))


def test_strata_are_not_mixed() -> None:
    """Drawn within their stratum, runs that are alike stay what they are, however far the strata are apart."""
    found = stratified_interval([[0.1] * 4 + [0.1001], [0.9] * 4 + [0.9001]], 0)
    assert (found.lower, found.estimate, found.upper) == pytest.approx((0.5, 0.5, 0.5), abs=0.001)


def test_pairs_of_seeds_are_not_independent() -> None:
    """Ten verifiers against ten provers are 100 scores, but where the verifiers alone make the difference they are
    ten."""
    strength_V = np.random.default_rng(2).normal(0.5, 0.1, 10)
    score_VP = np.repeat(strength_V[:, None], 10, axis=1)
    crossed = crossed_interval(score_VP, 0)
    pretended = stratified_interval([score_VP.reshape(-1).tolist()], 0)
    assert crossed.estimate == pretended.estimate
    assert crossed.upper - crossed.lower > 2 * (pretended.upper - pretended.lower)  # type: ignore[operator]


@pytest.mark.parametrize(("runs", "spread"), [(2, 0.02), (2, 0.1), (3, 0.02), (3, 0.1), (5, 0.1)])
def test_the_interval_of_a_few_seeds_holds_the_truth_as_often_as_it_says(runs: int, spread: float) -> None:
    random, held, trials = np.random.default_rng(runs), 0, 250
    for _ in range(trials):
        score_L = random.binomial(1000, random.normal(0.7, spread, runs).clip(0, 1)) / 1000
        found = stratified_interval([score_L.tolist()], 0, 300, n_KL=[[1000] * runs])
        assert found.lower <= found.estimate <= found.upper
        held += found.lower <= 0.7 <= found.upper
    assert held / trials > 0.9


def test_intervals_are_as_wide_as_the_runs_that_are_free_to_vary_ask_for() -> None:
    """Student's factors by hand: two strata of two runs leave two degrees of freedom, two verifiers one, however many
    provers they meet."""
    found = stratified_interval([[10.0, 20.0], [10.0, 20.0]], 0)
    half = 5 * 4.3027 / 1.96 * 2**0.5
    assert (found.lower, found.upper) == pytest.approx((15 - half, 15 + half), rel=1e-3)
    half = 10 * 12.706 / 1.96 * 2**0.5
    for provers in (2, 9):
        crossed = crossed_interval(np.repeat([[60.0], [80.0]], provers, axis=1), 0)
        assert (crossed.lower, crossed.upper) == pytest.approx((70 - half, 70 + half), rel=1e-3)


def test_the_crossed_interval_of_a_few_seeds_holds_the_truth_as_often_as_it_says() -> None:
    random, held, trials = np.random.default_rng(4), 0, 100
    for _ in range(trials):
        share_VP = (0.7 + random.normal(0, 0.06, (3, 1)) + random.normal(0, 0.06, (1, 3))).clip(0, 1)
        found = crossed_interval(random.binomial(300, share_VP) / 300, 0, 200, n_VP=np.full((3, 3), 300))
        held += found.lower <= 0.7 <= found.upper
    assert held / trials > 0.9


def test_seeds_that_agree_by_chance_are_no_surer_than_their_episodes() -> None:
    for found in (
        stratified_interval([[0.8] * 3], 0, n_KL=[[1000] * 3]),
        crossed_interval(np.full((2, 2), 0.8), 0, n_VP=np.full((2, 2), 750)),
    ):
        half = 1.96 * np.sqrt(0.8 * 0.2 / 3000)
        assert (found.lower, found.upper) == pytest.approx((0.8 - half, 0.8 + half), abs=0.002)
    perfect = stratified_interval([[1.0] * 3], 0, n_KL=[[100] * 3])
    assert 0.97 < perfect.lower < 1
    assert perfect.upper == 1
