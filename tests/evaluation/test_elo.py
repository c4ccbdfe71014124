"""Ratings: what is known of them in closed form, and that intervals hold the truth."""

import numpy as np
import pytest

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


def test_the_truth_is_found_and_the_intervals_hold_it() -> None:
    """The same truth in twenty tables of independent games: 8 of 10 ratings or more lie within their intervals."""
    chances = np.random.default_rng(0)
    row_R, column_C = np.array([-150.0, 0.0, 250.0]), np.array([-60.0, -40.0])
    expected_RC = 1 / (1 + 10 ** ((column_C - row_R[:, None]) / 400))
    held = []
    for table in range(20):
        score_RCN = chances.random((3, 2, 300)) < expected_RC[..., None]
        rows, columns = ratings(score_RCN, table)
        for one, truth in zip([*rows, *columns], [*row_R, *column_C], strict=True):
            assert one.estimate is not None
            assert one.lower is not None
            assert one.upper is not None
            assert one.lower <= one.estimate <= one.upper
            held.append(one.lower <= truth <= one.upper)
    assert 0.8 <= np.mean(held) < 1
