"""The exact reduction against a brute force in fractions."""

import pytest
import torch
from hypothesis import given, settings

from nip_ray.scenarios.hironaka import polytope, rules
from nip_ray.seeding import generator
from tests.scenarios.hironaka import lists
from tests.scenarios.hironaka.lists import Point, plain, point_sets, tensor

Games = list[list[Point]]


@settings(max_examples=25, deadline=None)
@given(point_sets(most=7, value=8, dimensions=(2, 3)))
def test_the_linear_programme_finds_the_vertices_that_enumeration_in_fractions_finds(games: Games) -> None:
    assert plain(rules.ordered(polytope.exact(tensor(games)))) == [lists.vertices(game) for game in games]


@settings(max_examples=25, deadline=None)
@given(point_sets())
def test_the_vertices_are_among_the_minimal_points_and_one_is_left_of_either_or_of_none(games: Games) -> None:
    points = tensor(games)
    exact, minimal = polytope.exact_mask(points), rules.minimal_mask(points)
    assert not (exact & ~minimal).any()
    assert torch.equal(exact.sum(1) <= 1, minimal.sum(1) <= 1)
    assert exact.any(1).all()


def test_a_point_above_a_facet_goes_and_one_on_it_goes_too() -> None:
    kept = polytope.exact(tensor([[(3, 1), (2, 2), (1, 3), (0, 9)], [(4, 0), (0, 4), (1, 2), (3, 3)]]))
    assert plain(kept) == [[(3, 1), (1, 3), (0, 9)], [(4, 0), (0, 4), (1, 2)]]


def test_vertices_far_out_and_vertices_that_hardly_stick_out_are_kept() -> None:
    """What the published precise mode loses, and a vertex 0.0002 below the facet of points a thousand apart."""
    points = torch.tensor(
        [[[1.0, 1.0], [5.0, 0.9], [-1.0, -1.0]], [[1000.0, 0.0], [0.0, 1000.0], [500.0, 499.9996]]], dtype=torch.float64
    )
    assert polytope.exact_mask(points).tolist() == [[True, True, False], [True, True, True]]
    points[1, 2, 1] = 500.0
    assert polytope.exact_mask(points)[1].tolist() == [True, True, False]


def grown(seed: int) -> list[Point]:
    """A few points after twenty to sixty rounds in which two coordinates outgrow the others by turns, whole numbers
    below 2^53."""
    draw = generator(seed, "grown")
    d, m, rounds = (int(torch.randint(low, high, (), generator=draw)) for low, high in ((2, 5), (2, 5), (20, 60)))
    game: list[Point] = [tuple(row) for row in torch.randint(20, (m, d), generator=draw).tolist()]
    pair = tuple(torch.randperm(d, generator=draw)[:2].tolist())
    for round in range(rounds):
        game = lists.shift(game, pair, pair[round % 2])
    return game


@pytest.mark.parametrize("seed", range(0, 60, 10))
def test_positions_in_which_coordinates_have_outgrown_the_others_lose_no_vertex(seed: int) -> None:
    games = [grown(number) for number in range(seed, seed + 10)]
    assert [set(*plain(polytope.exact(tensor([game])))) for game in games] == [
        set(lists.vertices(game)) for game in games
    ]


@pytest.mark.parametrize("large", [1e9, 1e15, 2.0**60])
def test_a_small_difference_beside_a_large_number_is_seen(large: float) -> None:
    points = torch.tensor([[[large, 0.0, 4.0], [0.0, 1.0, 4.0], [large, 1.0, 3.0]]], dtype=torch.float64)
    assert polytope.exact_mask(points).all()
    assert polytope.exact_mask(points[:, :2]).all()
