"""Repeated games against enumeration of everything that can happen."""

from itertools import product

import pytest
import torch
from torch import Tensor

from nip_ray.scenarios.matrix_games.games import Tables, repeated_best_response, repeated_values

SHAPES = [(2, 2), (2, 3), (3, 2), (1, 2)]


def random_game(first: int, second: int, seed: int = 0) -> tuple[Tensor, Tables]:
    """Payoffs (2, n, m) and two random policies with memory one."""
    draw = torch.Generator().manual_seed(seed)
    pay = torch.randn(2, first, second, dtype=torch.float64, generator=draw)
    logits = [
        2 * torch.randn(1 + first * second, moves, dtype=torch.float64, generator=draw) for moves in (first, second)
    ]
    return pay, (logits[0].softmax(-1), logits[1].softmax(-1))


def chances(tables: Tables, shape: tuple[int, int], last: tuple[int, int] | None) -> tuple[Tensor, Tensor]:
    """Both players' next moves after the last joint move (of player0, of player1)."""
    if last is None:
        return tables[0][0], tables[1][0]
    (n, m), (i, j) = shape, last
    return tables[0][1 + i * m + j], tables[1][1 + j * n + i]


def slow_values(pay: Tensor, tables: Tables, rounds: int) -> list[float]:
    """Pay a round, over all histories."""
    shape = (pay.shape[1], pay.shape[2])
    joint_moves = list(product(range(shape[0]), range(shape[1])))
    total = [0.0, 0.0]
    for history in product(joint_moves, repeat=rounds):
        probability, last = 1.0, None
        for i, j in history:
            p, q = chances(tables, shape, last)
            probability *= float(p[i] * q[j])
            last = (i, j)
        for player in (0, 1):
            total[player] += probability * sum(float(pay[player, i, j]) for i, j in history) / rounds
    return total


def slow_best(pay: Tensor, tables: Tables, player: int, rounds: int, last: tuple[int, int] | None = None) -> float:
    """The best total pay of `player` from here on, over the whole tree of histories."""
    if rounds == 0:
        return 0.0
    shape = (pay.shape[1], pay.shape[2])
    other = chances(tables, shape, last)[1 - player]
    values = []
    for own in range(shape[player]):
        value = 0.0
        for answer in range(shape[1 - player]):
            joint = (own, answer) if player == 0 else (answer, own)
            value += float(other[answer]) * (
                float(pay[player][joint]) + slow_best(pay, tables, player, rounds - 1, joint)
            )
        values.append(value)
    return max(values)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("rounds", [1, 2, 3])
def test_values_and_best_responses(shape: tuple[int, int], rounds: int) -> None:
    pay, tables = random_game(*shape, seed=rounds)
    assert repeated_values(pay, tables, rounds).tolist() == pytest.approx(slow_values(pay, tables, rounds))
    for player in (0, 1):
        found = repeated_best_response(pay, tables[1 - player], player, rounds)
        assert found == pytest.approx(slow_best(pay, tables, player, rounds) / rounds)
        assert found >= float(repeated_values(pay, tables, rounds)[player])
