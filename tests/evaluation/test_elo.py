"""Ratings: what is known of them in closed form, and that intervals hold the truth."""

import numpy as np
import pytest
from scipy.special import stdtrit

from nip_ray.evaluation.elo import fitted, ratings


def test_two_players_have_the_odds_of_their_score() -> None:
    """With the drawn game added, 7.5 of 11; a row and a column lie as far from 0."""
    row, column = fitted([[7.0]], 10)
    assert row - column == pytest.approx(400 * np.log10(7.5 / 3.5))
    assert row == pytest.approx(-column)


def test_who_wins_everything_has_a_rating_above_all_others() -> None:
    found = fitted([[10.0, 10.0], [5.0, 0.0]], 10)
    assert np.isfinite(found).all()
    assert found.sum() == pytest.approx(0)
    assert found[0] > max(found[1:])
    assert found[3] > found[2]


def test_the_interval_of_two_players_is_that_of_their_odds() -> None:
    """The drawn game added to 100 games with 70 wins; half of the difference of log odds is the row's."""
    score_N = (np.arange(100) < 70).astype(float)
    (row,), (column,) = ratings(score_N[None, None])
    chance = 70.5 / 101
    error = np.sqrt(100 / 99 * 100 * 0.7 * 0.3) / (101 * chance * (1 - chance))
    half = stdtrit(99, 0.975) * error * 200 / np.log(10)
    assert row.estimate == pytest.approx(200 * np.log10(70.5 / 30.5), abs=1e-9)
    assert (row.lower, row.upper) == pytest.approx((row.estimate - half, row.estimate + half), abs=1e-9)
    assert (column.lower, column.upper) == pytest.approx((-row.estimate - half, -row.estimate + half), abs=1e-9)


def test_who_won_everything_is_not_sure_of_it() -> None:
    score_RCN = np.ones((2, 1, 50))
    score_RCN[1, 0, ::2] = 0
    (best, _), _ = ratings(score_RCN)
    assert best.lower is not None
    assert best.estimate is not None
    assert best.estimate - best.lower > 100
    assert ratings(np.ones((1, 1, 1)))[0][0].lower is not None


@pytest.mark.parametrize("transitive", [True, False])
def test_intervals_cover_as_often_as_they_say(transitive: bool) -> None:
    """Also where no ratings explain the scores, and hard instances are hard for all: then of what endlessly many games
    would give."""
    chances = np.random.default_rng(0)
    row_R, column_C = np.array([-150.0, 0.0, 250.0]), np.array([-60.0, -40.0])
    expected_RC = 1 / (1 + 10 ** ((column_C - row_R[:, None]) / 400))
    if not transitive:
        expected_RC[0] = [0.8, 0.3]
    games, hard = 300, 0.0 if transitive else 0.14
    many = 10**7
    truth = fitted(expected_RC * many, many)
    held = np.zeros(5)
    for _ in range(2000):
        shifted_RCN = expected_RC[..., None] + hard * chances.choice([-1, 1], games)
        found = [one for role in ratings(chances.random((3, 2, games)) < shifted_RCN) for one in role]
        held += [one.lower <= x <= one.upper for one, x in zip(found, truth, strict=True)]  # pyright: ignore[reportOptionalOperand]
    assert 0.94 <= held.mean() / 2000 <= 0.97
    assert held.min() / 2000 > 0.93, "of a single rating by what 2,000 draws leave to chance"
