"""The tensor rules against plain lists, and what holds of them whatever the points are."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nip_ray.scenarios.hironaka import encode, rules
from tests.scenarios.hironaka import lists
from tests.scenarios.hironaka.lists import Point, plain, point_sets, tensor

Games = list[list[Point]]


def moves(data: st.DataObject, games: Games) -> tuple[torch.Tensor, torch.Tensor]:
    """A legal move a game."""
    table = encode.choices(len(games[0][0]))
    class_B = torch.tensor([data.draw(st.integers(0, len(table) - 1)) for _ in games])
    axis_B = torch.tensor([data.draw(st.sampled_from(table[k].nonzero().flatten().tolist())) for k in class_B])
    return table[class_B], axis_B


@settings(max_examples=40, deadline=None)
@given(point_sets())
def test_the_minimal_points_are_those_of_plain_lists(games: Games) -> None:
    points = tensor(games)
    assert plain(rules.minimal_ordered(points)) == [lists.minimal(game) for game in games]
    assert torch.equal(rules.minimal_ordered(points), rules.ordered(rules.keep(points, rules.minimal_mask(points))))


@settings(max_examples=40, deadline=None)
@given(point_sets())
def test_of_equal_points_the_first_row_stays_and_rows_do_not_move(games: Games) -> None:
    points = tensor(games, rows=10)
    mask = rules.minimal_mask(points)
    for game, row in zip(games, mask.tolist()):
        kept = [i for i, keep in enumerate(row) if keep]
        assert kept == sorted(game.index(p) for p in lists.minimal(game))


@settings(max_examples=40, deadline=None)
@given(point_sets(), st.data())
def test_a_shift_is_that_of_plain_lists(games: Games, data: st.DataObject) -> None:
    choice, axis = moves(data, games)
    shifted = plain(rules.shift(tensor(games, rows=10), choice, axis))
    expected = [lists.shift(g, tuple(c.nonzero().flatten().tolist()), int(a)) for g, c, a in zip(games, choice, axis)]
    assert shifted == expected


@settings(max_examples=40, deadline=None)
@given(point_sets())
def test_features_are_padded_contiguous_and_at_most_one(games: Games) -> None:
    points = rules.minimal_ordered(tensor(games))
    seen = rules.features(points, 12)
    assert seen.shape == (len(games), 12, points.shape[2])
    assert seen.is_contiguous()
    for game, row in zip(plain(points), seen):
        largest = max(max(p) for p in game) or 1
        assert torch.equal(row[: len(game)], torch.tensor(game, dtype=row.dtype) / largest)
        assert (row[len(game) :] == rules.PADDING).all()
    assert torch.equal(rules.features(points, points.shape[1], scale=False), points)


def test_reposition_touches_every_plane_and_leaves_padding() -> None:
    points = tensor([[(3, 2), (2, 5)], [(7, 7)]], rows=3)
    assert rules.reposition(points).tolist() == [[[1, 0], [0, 3], [-1, -1]], [[0, 0], [-1, -1], [-1, -1]]]


def test_games_in_parts_are_the_same_games(monkeypatch: pytest.MonkeyPatch) -> None:
    points = torch.randint(0, 9, (50, 7, 3), generator=torch.Generator().manual_seed(0)).float()
    whole = rules.minimal_ordered(points), rules.minimal_mask(points), rules.ordered(points)
    monkeypatch.setattr(rules, "PAIRS_AT_ONCE", 49 * 8)
    parts = rules.minimal_ordered(points), rules.minimal_mask(points), rules.ordered(points)
    assert all(torch.equal(a, b) for a, b in zip(whole, parts))


def test_values_without_bound_stay_finite_and_keep_their_ratios() -> None:
    points = torch.tensor([[[1.0, 3.0], [2.0, 1.0]]])
    choice = torch.tensor([[True, True]])
    exact, largest = [[1, 3], [2, 1]], 0
    for step in range(400):  # Fibonacci numbers: beyond float32 after some 186 moves
        axis = step % 2
        points = rules.guard(rules.shift(points, choice, torch.tensor([axis])))
        exact = [[sum(p) if i == axis else x for i, x in enumerate(p)] for p in exact]
        largest = max(max(p) for p in exact)
        assert torch.isfinite(points).all()
        expected = torch.tensor([[x / largest for x in p] for p in exact])
        assert torch.allclose(points[0] / points.max(), expected, rtol=1e-4)
    assert largest > 2**270


def test_the_guard_divides_by_a_power_of_two_and_leaves_other_games_alone() -> None:
    points = torch.tensor([[[2.0**65, 3.0], [-1.0, -1.0]], [[2.0**64, 3.0], [1.0, 5.0]]])
    assert torch.equal(rules.guard(points)[1], points[1])
    assert rules.guard(points)[0].tolist() == [[2.0, 3 * 2.0**-64], [-1.0, -1.0]]
