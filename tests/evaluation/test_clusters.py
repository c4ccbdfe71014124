"""Intervals over data points that were tried several times."""

import numpy as np
import pytest

from nip_ray.evaluation.clusters import clustered_mean, clustered_share
from nip_ray.evaluation.intervals import mean, proportion


@pytest.mark.parametrize("level", [0.9, 0.95])
@pytest.mark.parametrize("repeats", [1, 3])
def test_equal_repeats_are_students_interval_of_the_items_means(repeats: int, level: float) -> None:
    random = np.random.default_rng(0)
    x_I = random.normal(size=12)
    found, wanted = clustered_mean(x_I * repeats, [repeats] * 12, level), mean(x_I, level)
    assert (found.estimate, found.lower, found.upper) == pytest.approx((wanted.estimate, wanted.lower, wanted.upper))
    assert found.n == wanted.n == 12


def test_unequal_repeats_by_hand() -> None:
    """Sums 1, 4 of 1, 2 trials: 5/3; residuals -2/3 and 2/3; error sqrt(2 * 8/9) / 3 = 4/9; quantile tan(0.475 pi)."""
    found = clustered_mean([1.0, 4.0], [1, 2])
    assert found.estimate == pytest.approx(5 / 3)
    assert found.upper - 5 / 3 == pytest.approx(np.tan(0.475 * np.pi) * 4 / 9)


@pytest.mark.parametrize("repeats", [1, 4])
def test_items_that_speak_with_one_voice_have_the_exact_interval(repeats: int) -> None:
    """Played four times with the same outcome, an item says no more than played once."""
    assert clustered_share([repeats] * 7 + [0] * 3, [repeats] * 10) == proportion(7, 10)


def test_unequal_repeats_are_pooled_even_where_each_item_is_unanimous() -> None:
    found = clustered_share([3, 0, 3], [3, 1, 3])
    assert found.estimate == pytest.approx(6 / 7)
    assert found.record() != proportion(2, 3).record()


def test_coverage_with_dependent_repeats() -> None:
    """Items differ in how hard they are, five plays each. The interval over items covers the true share as often as it says; that of
    independent trials does not."""
    random, items, repeats, runs, truth = np.random.default_rng(1), 60, 5, 800, 0.6
    covered = naive = 0
    for _ in range(runs):
        hardness_I = random.beta(0.6, 0.4, size=items)
        right_I = random.binomial(repeats, hardness_I)
        found = clustered_share(right_I, np.full(items, repeats))
        covered += found.lower <= truth <= found.upper
        plain = proportion(int(right_I.sum()), items * repeats)
        naive += plain.lower <= truth <= plain.upper
    assert 0.92 < covered / runs < 0.98
    assert naive / runs < 0.85


@pytest.mark.parametrize(("items", "repeats", "truth"), [(20, 4, 0.95), (50, 2, 0.95), (200, 2, 0.98), (20, 4, 0.7)])
def test_shares_near_1_are_covered_as_often_as_they_say(items: int, repeats: int, truth: float) -> None:
    """Student's interval of the items' means held the first three in 87 to 89 % of such runs: where few items differ, their spread is not
    known from them."""
    random = np.random.default_rng(2)
    right_RI = random.binomial(repeats, random.beta(4 * truth, 4 * (1 - truth), size=(800, items)))
    found = [clustered_share(right_I, np.full(items, repeats)) for right_I in right_RI if right_I.min() < repeats]
    assert np.mean([one.lower <= truth <= one.upper for one in found]) > 0.94
