"""Scripted players against plain lists, and what they may and may not do."""

from collections import Counter
from itertools import combinations

import pytest
import torch
from hypothesis import given, settings

from nip_ray.scenarios.hironaka import encode, rules
from nip_ray.scenarios.hironaka.game import Game
from nip_ray.scenarios.hironaka.players import AGENTS, Player, choose, scripted
from nip_ray.settings.hironaka import HironakaSettings
from tests.scenarios.hironaka import lists
from tests.scenarios.hironaka.lists import Point, point_sets, tensor


def chosen(host: Player, games: list[list[Point]]) -> list[tuple[int, ...]]:
    """The host's choices on ordered, unreduced points."""
    table = encode.choices(len(games[0][0]))
    return [tuple(table[k].nonzero().flatten().tolist()) for k in host(rules.ordered(tensor(games))).argmax(1)]


@settings(max_examples=60, deadline=None)
@given(point_sets(most=8, value=4, dimensions=(2, 3, 4, 5)))
def test_zeillinger_answers_as_on_plain_lists_ties_and_equal_points_included(games: list[list[Point]]) -> None:
    found = chosen(scripted("host", "zeillinger", len(games[0][0])), games)
    for game, choice in zip(games, found):
        if len(game) > 1:
            assert choice == lists.zeillinger(sorted(game, reverse=True))


def smallest_hitting_set(game: list[Point]) -> tuple[int, ...]:
    d, low = len(game[0]), [min(column) for column in zip(*game)]
    supports = [{k for k in range(d) if p[k] > low[k]} for p in game]
    subsets = (c for size in range(2, d + 1) for c in combinations(range(d), size))
    return next(c for c in subsets if all(not s or s & set(c) for s in supports))


@settings(max_examples=60, deadline=None)
@given(point_sets(most=6, value=3, dimensions=(2, 3, 4, 5)))
def test_weak_spivakovsky_answers_the_smallest_set_that_meets_every_support(games: list[list[Point]]) -> None:
    assert chosen(scripted("host", "weak_spivakovsky", len(games[0][0])), games) == [
        smallest_hitting_set(game) for game in games
    ]


@pytest.mark.parametrize(("name", "classes"), [("random", {0, 1, 2, 4, 5, 7}), ("random_all", set(range(11)))])
def test_random_hosts_are_uniform_over_pairs_or_over_all_subsets(name: str, classes: set[int]) -> None:
    draw = torch.Generator().manual_seed(0)
    counts = Counter(scripted("host", name, 4)(torch.zeros(20_000, 2, 4), None, draw).argmax(1).tolist())
    assert set(counts) == classes
    expected = 20_000 / len(classes)
    # chi square, at most 10 degrees of freedom: p of 2e-5
    assert sum((n - expected) ** 2 / expected for n in counts.values()) < 40


def test_agents_take_first_last_and_any_coordinate_of_the_choice() -> None:
    game, draw = Game(HironakaSettings(dimension=4)), torch.Generator().manual_seed(0)
    class_B = torch.arange(11).repeat(300)
    state, choice_BD = game.random_start(len(class_B), draw), game.choices_KD[class_B]
    moves = {name: choose(scripted("agent", name, 4), game, state, choice_BD, draw) for name in AGENTS}
    for choice, first, last in zip(choice_BD.tolist(), moves["choose_first"].tolist(), moves["choose_last"].tolist()):
        assert (first, last) == (choice.index(True), 3 - choice[::-1].index(True))
    for k in range(11):
        counts = Counter(moves["random"][class_B == k].tolist())
        legal = game.choices_KD[k].nonzero().flatten().tolist()
        assert set(counts) == set(legal)
        assert all(abs(n - 300 / len(legal)) < 45 for n in counts.values())  # 5 standard deviations
