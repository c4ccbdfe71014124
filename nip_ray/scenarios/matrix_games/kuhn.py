"""Kuhn poker: three cards, one bet; its rules, and the distance of two policies from equilibrium.

Source: Kuhn, "A simplified two-person poker", 1950. Both ante 1; a bet is 1. Move 0 passes (checks or folds), move 1
bets (or calls). player0 moves, then player1; player0 moves again if it checked and player1 bet. An equilibrium is worth
-1/18 to player0.
"""

from itertools import product

import torch
from torch import Tensor

from nip_ray.protocols import Judgement
from nip_ray.scenarios.matrix_games.games import Figures, Game, Tables

CARDS = ("jack", "queen", "king")
DEALS = ((0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1))
"""(card of player0, card of player1) by instance."""

_PLANS = tuple(product((0, 1), repeat=2))  # a player's moves in its two situations


class KuhnPoker(Game):
    """State ``2 * card + situation``. Situation of player0: 0 at first, 1 after check and bet; of player1: 0 after
    check, 1 after bet."""

    actions = (2, 2)
    num_states = 2 * len(CARDS)
    num_instances = num_starts = len(DEALS)

    def state(self, player: int, id_N: Tensor, move_NRA: Tensor, round_N: Tensor) -> Tensor:
        """Own card and the betting so far."""
        card_N = torch.tensor(DEALS, device=id_N.device)[id_N, player]
        first_N = move_NRA[:, 0, 0].clamp(0, 1)
        return 2 * card_N + ((round_N > 1).long() if player == 0 else first_N)

    def judge(self, id_N: Tensor, move_NRA: Tensor, round_N: Tensor) -> Judgement:
        """Nothing until the last move, then the pot."""
        move_NR = torch.stack([move_NRA[:, r, r % 2] for r in range(3)], 1).clamp(0, 1)
        first_N, second_N, third_N = move_NR.unbind(1)
        over_N = (round_N > 1) | ((round_N == 1) & ((first_N == 1) | (second_N == 0)))
        win_N = showdown(torch.tensor(DEALS, device=id_N.device)[id_N])
        after_check_N = torch.where(second_N == 0, win_N, torch.where(third_N == 1, 2 * win_N, -1.0))
        after_bet_N = torch.where(second_N == 1, 2 * win_N, 1.0)
        pay_N = torch.where(first_N == 0, after_check_N, after_bet_N) * over_N
        return Judgement(torch.stack([pay_N, -pay_N], 1), over_N)

    def figures(self, tables: Tables) -> Figures:
        """``<player>/value``: expected pay of a game; ``exploitability``: the mean gain of the two best responses (half
        of NashConv)."""
        value = float(deal_values(tables).mean())
        gain = best_response_value(0, tables[1]) + best_response_value(1, tables[0])
        return {"player0/value": value, "player1/value": -value, "exploitability": gain / 2}


def showdown(card_NA: Tensor) -> Tensor:
    """(N,) float32: 1 where player0 has the higher card, else -1."""
    return torch.where(card_NA[:, 0] > card_NA[:, 1], 1.0, -1.0)


def deal_values(tables: Tables) -> Tensor:
    """(6,) float64: the expected pay of player0 in each deal when both play by their tables."""
    card_DA = torch.tensor(DEALS, device=tables[0].device)
    win_D = showdown(card_DA).double()
    bets_DAS = torch.stack(
        [table[:, 1].double().view(len(CARDS), 2)[card_DA[:, p]] for p, table in enumerate(tables)], 1
    )
    opens_D, calls_D = bets_DAS[:, 0].unbind(-1)
    bets_after_check_D, calls_after_bet_D = bets_DAS[:, 1].unbind(-1)
    after_check_D = (1 - bets_after_check_D) * win_D + bets_after_check_D * (calls_D * 2 * win_D - (1 - calls_D))
    after_bet_D = calls_after_bet_D * 2 * win_D + (1 - calls_after_bet_D)
    return (1 - opens_D) * after_check_D + opens_D * after_bet_D


def best_response_value(player: int, table: Tensor) -> float:
    """The highest expected pay of `player` against the other's `table`: for each card the best of the four plans."""
    card_D = torch.tensor(DEALS, device=table.device)[:, player]
    value_PC = []
    for plan in _PLANS:
        own = torch.nn.functional.one_hot(torch.tensor(plan * len(CARDS), device=table.device), 2).double()
        value_D = deal_values((own, table)) if player == 0 else -deal_values((table, own))
        value_PC.append(torch.stack([value_D[card_D == card].mean() for card in range(len(CARDS))]))
    return float(torch.stack(value_PC).amax(0).mean())
