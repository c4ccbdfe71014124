"""Intervals against published values, against their definition, and at their edges."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nip_ray.evaluation.intervals import Mean, Proportion, mean, proportion, ratio


@pytest.mark.parametrize(
    ("successes", "n", "level", "lower", "upper"),
    [
        # Newcombe, "Two-sided confidence intervals for the single proportion", Statistics in Medicine 17 (1998), table I
        (81, 263, 0.95, 0.2527, 0.3676),
        (15, 148, 0.95, 0.0578, 0.1617),
        (0, 20, 0.95, 0.0, 0.1684),
        (1, 29, 0.95, 0.0009, 0.1776),
        # closed forms: 1 - (alpha / 2)^(1 / n) for no success
        (0, 10, 0.9, 0.0, 1 - 0.05 ** (1 / 10)),
        (1000, 1000, 0.95, 0.025 ** (1 / 1000), 1.0),
        (1, 1, 0.95, 0.025, 1.0),
    ],
)
def test_known_values(successes: int, n: int, level: float, lower: float, upper: float) -> None:
    found = proportion(successes, n, level)
    assert found.estimate == successes / n
    assert (found.lower, found.upper) == pytest.approx((lower, upper), abs=5.1e-5)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 60).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))), st.sampled_from([0.8, 0.95, 0.99]))
def test_bounds_solve_the_binomial_tails(counts: tuple[int, int], level: float) -> None:
    """The definition: at each bound, what was seen or more extreme has probability (1 - level) / 2."""
    k, n = counts
    found, tail = proportion(k, n, level), (1 - level) / 2
    chance = {share: [math.comb(n, i) * share**i * (1 - share) ** (n - i) for i in range(n + 1)] for share in (found.lower, found.upper)}
    assert found.lower <= found.estimate <= found.upper
    if k > 0:
        assert sum(chance[found.lower][k:]) == pytest.approx(tail, rel=1e-6)
    if k < n:
        assert sum(chance[found.upper][: k + 1]) == pytest.approx(tail, rel=1e-6)
    mirrored = proportion(n - k, n, level)
    assert (1 - mirrored.upper, 1 - mirrored.lower) == pytest.approx((found.lower, found.upper), abs=1e-9)


def test_no_trials_say_nothing() -> None:
    assert proportion(0, 0) == Proportion(None, 0.0, 1.0, 0)
    assert mean([]) == Mean(None, None, None, 0)


@pytest.mark.parametrize("values", [[0.5], [1.0, 1.0, 1.0]])
def test_a_mean_without_spread_has_no_interval(values: list[float]) -> None:
    assert mean(values) == Mean(values[0], None, None, len(values))


def test_mean_known_value() -> None:
    found = mean(np.array([1.0, 2.0, 3.0, 4.0, 5.0]))
    half = 2.7764451 * math.sqrt(2.5 / 5)
    assert (found.estimate, found.lower, found.upper, found.n) == pytest.approx((3.0, 3.0 - half, 3.0 + half, 5))


@pytest.mark.parametrize(("successes", "n", "level"), [(-1, 3, 0.95), (4, 3, 0.95), (0, -1, 0.95), (1, 2, 1.0), (1, 2, 0.0)])
def test_impossible_counts_are_refused(successes: int, n: int, level: float) -> None:
    with pytest.raises(ValueError, match="expected"):
        proportion(successes, n, level)


def test_the_interval_of_a_ratio_covers_as_often_as_it_says() -> None:
    random = np.random.default_rng(0)
    covered = 0
    for _ in range(400):
        length_G = random.geometric(0.2, 200)
        found = ratio(np.ones(200), length_G)
        covered += found.lower <= 0.2 <= found.upper
    assert 0.92 <= covered / 400 <= 0.98


def test_a_ratio_that_is_a_share_of_draws_has_the_exact_interval() -> None:
    assert ratio([0, 0, 1, 0], [1, 1, 1, 1]) == proportion(1, 4)


def test_a_ratio_to_nothing_is_unknown() -> None:
    assert ratio([0, 0], [0, 0]).estimate is None
