"""Resolution trees and forced lengths against recursion over plain lists."""

import json

import pytest
import torch

from nip_ray.errors import UserError
from nip_ray.scenarios.hironaka.game import Game
from nip_ray.scenarios.hironaka.players import scripted
from nip_ray.scenarios.hironaka.tree import Node, SearchResult, resolution_tree, search_depth
from nip_ray.settings.hironaka import HironakaSettings
from tests.scenarios.hironaka import lists
from tests.scenarios.hironaka.lists import Point, plain, tensor

GAME = Game(HironakaSettings(max_points=6, max_value=5))
ZEILLINGER = scripted("host", "zeillinger", 3)


def starts(count: int) -> torch.Tensor:
    return GAME.random_points(count, torch.Generator().manual_seed(0))


def longest(game: list[Point]) -> int:
    if len(game) == 1:
        return 0
    choice = lists.zeillinger(game)
    return 1 + max(longest(lists.minimal(lists.shift(game, choice, axis))) for axis in choice)


def test_the_longest_game_is_that_of_recursion_over_all_answers() -> None:
    games = starts(6)
    expected = [longest(lists.minimal(game)) for game in plain(games)]
    assert max(expected) > 3
    for points, rounds in zip(games, expected):
        result = search_depth(GAME, ZEILLINGER, points[None])
        assert (result.rounds, result.complete) == (rounds, True)
    assert search_depth(GAME, ZEILLINGER, games).rounds == max(expected)


def test_a_search_that_does_not_end_says_so() -> None:
    """Under all coordinates an agent that always takes the first keeps these two points apart for ever."""
    points, host = tensor([[(0, 2, 0), (0, 0, 1)]]), scripted("host", "all_coordinates", 3)
    assert search_depth(GAME, host, points, limit=8) == SearchResult(8, complete=False)
    assert search_depth(GAME, ZEILLINGER, starts(50), max_positions=3).complete is False


def check(node: Node, game: list[Point], depth: int) -> int:
    """Compare a subtree with plain lists; the number of its nodes."""
    assert [tuple(int(x) for x in p) for p in node.points] == game
    assert node.over is (len(game) == 1)
    if node.over or depth == 0:
        assert (node.choice, node.children) == ((), [])
        return 1
    assert node.choice == lists.zeillinger(game)
    assert tuple(child.axis for child in node.children) == node.choice
    after = [lists.minimal(lists.shift(game, node.choice, axis)) for axis in node.choice]
    return 1 + sum(check(child, g, depth - 1) for child, g in zip(node.children, after))


def test_a_tree_holds_every_answer_down_to_its_depth() -> None:
    sizes = []
    for points, game in zip(starts(4), plain(starts(4))):
        tree = resolution_tree(GAME, ZEILLINGER, points, depth=4)
        sizes.append(check(tree, lists.minimal(game), 4))
        assert json.loads(json.dumps(tree.record()))["count"] == len(tree.points)
    assert max(sizes) > 10


def test_trees_that_grow_too_large_and_hosts_that_draw_are_refused() -> None:
    with pytest.raises(UserError, match="more than 5 positions"):
        resolution_tree(GAME, ZEILLINGER, starts(1)[0], depth=10, max_nodes=5)
    with pytest.raises(UserError, match="always answers the same"):
        search_depth(GAME, scripted("host", "random", 3), starts(1))
