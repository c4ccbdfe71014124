"""Matches reproduce the published table; counting is that of one game after the other."""

import statistics

import pytest
import torch

from nip_ray.scenarios.hironaka.match import Played, _counted, match
from nip_ray.scenarios.hironaka.players import scripted
from tests.tiers import thinned

# host, agent: games in 10,000 rounds as published (one run), and in an independent repeat of the published program
TABLE = [
    ("random", "choose_first", 488, 515),
    ("random", "random", 1481, 1470),
    ("all_coordinates", "choose_first", 10, 11),
    ("all_coordinates", "random", 2139, 2150),
    ("zeillinger", "choose_first", 719, 800),
    ("zeillinger", "random", 1898, 1876),
]
SEEDS = 2


@pytest.mark.parametrize(("host", "agent", "published", "repeated"), thinned(TABLE))
def test_the_published_table_is_within_sampling_error(host: str, agent: str, published: int, repeated: int) -> None:
    """Our mean over two seeds against the mean of the two runs known: at most 3 standard errors of the difference
    apart."""
    players = scripted("host", host, 3), scripted("agent", agent, 3)
    results = [match(*players, seed=seed) for seed in range(SEEDS)]
    mean, error = statistics.mean(r.games for r in results), statistics.mean(r.standard_error for r in results)
    assert abs(mean - (published + repeated) / 2) <= 3 * error * (1 / SEEDS + 1 / 2) ** 0.5


def played(lengths: list[int], over: list[bool] | None = None) -> Played:
    """Games whose first two rounds have the class and the coordinate 0, all later ones 2."""
    rounds = [(game, 2 * (r >= 2)) for r in range(max(lengths)) for game, length in enumerate(lengths) if r < length]
    game_T, move_T = torch.tensor(rounds).unbind(1)
    return Played(torch.tensor(lengths), torch.tensor(over or [True] * len(lengths)), game_T, move_T, move_T)


@pytest.mark.parametrize(
    ("lengths", "rounds", "expected"),
    [
        ([3, 4, 5, 9], 10, (3, 4, 3)),  # the third game is under way
        ([3, 4, 3, 9], 10, (3, 4, 3, 0)),  # a game begins as the match ends: counted, as published
        ([0, 2, 9], 4, (1, 2, 1)),  # a game that is over at the start takes the round in which that is seen
        ([50], 10, (10,)),
    ],
)
def test_games_are_counted_one_after_the_other(lengths: list[int], rounds: int, expected: tuple[int, ...]) -> None:
    result = _counted(played(lengths), rounds, 4, 3)
    assert result.lengths == expected
    assert result.games == len(expected)
    assert result.per_round == len(expected) / rounds
    # no move in a round that finds a game over
    moves = [min(length, taken) for length, taken in zip(lengths, expected)]
    early, late = sum(min(2, n) for n in moves), sum(max(0, n - 2) for n in moves)
    assert result.host_actions == (early, 0, late, 0)
    assert result.agent_actions == (early, 0, late)


def test_a_match_is_as_long_as_asked_and_its_standard_error_is_that_of_its_repeats() -> None:
    players = scripted("host", "random", 3), scripted("agent", "random", 3)
    results = [match(*players, rounds=500, seed=seed) for seed in range(40)]
    assert all(sum(r.lengths) == 500 for r in results)
    assert len({r.games for r in results}) > 5
    assert match(*players, rounds=500, seed=3) == results[3]
    spread = statistics.stdev(r.games for r in results)
    error = statistics.mean(r.standard_error for r in results)
    assert 0.65 < spread / error < 1.4  # a sample of 40 has a standard error of 11 % of its spread


def test_short_matches_are_not_biased_towards_short_games() -> None:
    """All coordinates against choose-first: 88 % of games outlast 100 rounds, and none of those may be left out."""
    result = match(scripted("host", "all_coordinates", 3), scripted("agent", "choose_first", 3), rounds=3000)
    assert result.games <= 12
    assert result.unfinished >= 1
    assert max(result.lengths) == 1001
