"""Repeated matrix games, solved: what two memory-one policies are worth, and what the best answer to one of them is worth.

Everything is computed from the policies' probabilities, in float64, without playing. pay_ANM: (2, N moves of player0, M moves of
player1). Policies are tables (states, moves): state 0 is the start, state ``1 + i * (other's moves) + j`` follows the joint move
(own i, other's j). A game of one round needs the start alone.
"""

import torch
from torch import Tensor

Tables = tuple[Tensor, Tensor]  # of player0 and player1, each (states, moves) float64


def repeated_values(pay_ANM: Tensor, tables: Tables, rounds: int) -> Tensor:
    """(2,): the expected pay a round, without discount, by following the distribution of the joint move from round to round."""
    _, first, second = pay_ANM.shape
    joint_NM = tables[0][0][:, None] * tables[1][0]
    total_A = (pay_ANM * joint_NM).sum((1, 2))
    if rounds > 1:
        own_ijk = tables[0][1:].view(first, second, first)
        other_ijl = _seen_by_the_other(tables[1], second, first)
        for _ in range(rounds - 1):
            joint_NM = torch.einsum("ij,ijk,ijl->kl", joint_NM, own_ijk, other_ijl)
            total_A = total_A + (pay_ANM * joint_NM).sum((1, 2))
    return total_A / rounds


def repeated_best_response(pay_ANM: Tensor, table: Tensor, player: int, rounds: int) -> float:
    """The most that `player` can expect a round against the other's policy `table`, by backward induction.

    The other looks at the last joint move alone, so no policy, whatever it remembers, is paid more than one that knows this move
    and the round.
    """
    pay_KL = pay_ANM[0] if player == 0 else pay_ANM[1].T
    own, other = pay_KL.shape
    future_KL = torch.zeros_like(pay_KL)
    if rounds > 1:
        other_ijl = _seen_by_the_other(table, other, own)
        for _ in range(rounds - 1):
            future_KL = torch.einsum("ijl,kl->ijk", other_ijl, pay_KL + future_KL).amax(-1)
    return float(((pay_KL + future_KL) @ table[0]).max()) / rounds


def _seen_by_the_other(table: Tensor, own: int, other: int) -> Tensor:
    """(other, own, own): a player's memory-one table without its start, with the opponent's move as the first index."""
    return table[1:].view(own, other, own).transpose(0, 1)
