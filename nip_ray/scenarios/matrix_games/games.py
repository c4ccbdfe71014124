"""Interface of a game, the matrix games, and exact values and best responses of memory-one policies in repeated ones.

A game does not use networks or tokens: moves are ``move_NRA``, (N copies, R rounds, 2 players) int64, -1 for none.
States are numbered from 0 for each player; policies are tables over them. Of a matrix game a player's table is (states,
moves): state 0 is the start, state ``1 + i * (other's moves) + j`` follows the joint move (own i, other's j); a game of
one round needs the start alone. pay_ANM: (2, N moves of player0, M moves of player1). Repeated games are solved from
the policies' probabilities, in float64, without playing.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor

from nip_ray.protocols import Judgement
from nip_ray.settings.matrix_games import MatrixGameSettings

Tables = tuple[Tensor, Tensor]  # of player0 and player1, each (states, moves) float64


def repeated_values(pay_ANM: Tensor, tables: Tables, rounds: int) -> Tensor:
    """(2,): the expected pay per round, without discount, from the distributions of the joint move round by round."""
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
    """The highest expected pay per round of `player` against the other's policy `table`, by backward induction.

    The other only remembers the last joint move, so no policy, with any memory, is paid more than one that knows this
    move and the round.
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


Figures = dict[str, float]

_INSTANCES = 256  # of a matrix game: all alike; the number of independent episodes of an evaluation
_EVEN_ODDS = {  # zero-sum games whose only equilibrium is uniform: payoffs of player0
    "matching_pennies": ((1.0, -1.0), (-1.0, 1.0)),
    "rock_paper_scissors": ((0.0, -1.0, 1.0), (1.0, 0.0, -1.0), (-1.0, 1.0, 0.0)),
}
PRISONERS_DILEMMA = (((-1.0, -3.0), (0.0, -2.0)), ((-1.0, 0.0), (-3.0, -2.0)))
"""Payoffs of player0 and player1, [move of player0, of player1]; move 0 is to cooperate, 1 to defect."""
_DILEMMA_STATES = ("start", "CC", "CD", "DC", "DD")


class Game(ABC):
    """A game of two players. actions: number of moves of each. num_states: of each player. num_instances: of the table.

    num_starts: of different ones; instance i is start ``i % num_starts``.
    """

    actions: tuple[int, int]
    num_states: int
    num_instances: int
    num_starts: int = 1

    @abstractmethod
    def state(self, player: int, id_N: Tensor, move_NRA: Tensor, round_N: Tensor) -> Tensor:
        """(N,) int64: the state of `player` (0 or 1) at the start of `round_N`, as far as it may know."""

    @abstractmethod
    def judge(self, id_N: Tensor, move_NRA: Tensor, round_N: Tensor) -> Judgement:
        """The pay of the moves of `round_N`, and whether they end the game."""

    def legal(self, player: int) -> Tensor:
        """(states, moves) bool: the legal moves of `player`; all by default."""
        return torch.ones(self.num_states, self.actions[player], dtype=torch.bool)

    @abstractmethod
    def figures(self, tables: Tables) -> Figures:
        """Exact metrics of two policies, each (states, moves) float64 probabilities."""


class RepeatedGame(Game):
    """A matrix game in `rounds` rounds, with memory of the last one; see the module for the numbering of states."""

    def __init__(self, pay_ANM: Tensor, rounds: int, own_figures: Callable[[Tables], Figures] | None = None) -> None:
        """pay_ANM: (2, moves of player0, moves of player1) float64, the pay of each. own_figures: of this game."""
        self.pay_ANM, self.rounds, self.own_figures = pay_ANM, rounds, own_figures
        first, second = pay_ANM.shape[1:]
        self.actions = (first, second)
        self.num_states = 1 if rounds == 1 else 1 + first * second
        self.num_instances = _INSTANCES

    def state(self, player: int, id_N: Tensor, move_NRA: Tensor, round_N: Tensor) -> Tensor:
        """The last joint move, from the player's own side."""
        if self.num_states == 1:
            return torch.zeros_like(round_N)
        own_N, other_N = self._moves(move_NRA, (round_N - 1).clamp_min(0), player)
        return torch.where(round_N == 0, 0, 1 + own_N * self.actions[1 - player] + other_N)

    def judge(self, id_N: Tensor, move_NRA: Tensor, round_N: Tensor) -> Judgement:
        """Payoffs of the joint move; only the end of the rounds ends the game."""
        first_N, second_N = self._moves(move_NRA, round_N.clamp(max=move_NRA.shape[1] - 1), 0)
        reward_AN = self.pay_ANM.to(move_NRA.device)[:, first_N, second_N]
        return Judgement(reward_AN.T.float(), torch.zeros_like(round_N, dtype=torch.bool))

    def _moves(self, move_NRA: Tensor, round_N: Tensor, player: int) -> tuple[Tensor, Tensor]:
        """A player's own and the other's moves (N,) of a round; a symbol beyond its moves counts as its last."""
        move_NA = move_NRA[torch.arange(len(round_N), device=round_N.device), round_N].clamp_min(0)
        own_N, other_N = (move_NA[:, p].clamp(max=self.actions[p] - 1) for p in (player, 1 - player))
        return own_N, other_N

    def figures(self, tables: Tables) -> Figures:
        """``<player>/value``: expected pay per round; ``exploitability``: mean gain of the two best responses per
        round; the game's own metrics.

        A best response may use all earlier moves and the round.
        """
        value_A = repeated_values(self.pay_ANM, tables, self.rounds).tolist()
        best_A = [repeated_best_response(self.pay_ANM, tables[1 - player], player, self.rounds) for player in (0, 1)]
        found = {f"player{player}/value": value for player, value in enumerate(value_A)}
        found["exploitability"] = (sum(best_A) - sum(value_A)) / 2
        return found if self.own_figures is None else found | self.own_figures(tables)


def matrix_game(settings: MatrixGameSettings, rounds: int) -> RepeatedGame:
    """The matrix game of `settings` in `rounds` rounds. The payoffs of bimatrix must have one shape (ensured by the
    config's rules)."""
    if settings.game in _EVEN_ODDS:
        pay_NM = torch.tensor(_EVEN_ODDS[settings.game], dtype=torch.float64)
        return RepeatedGame(torch.stack([pay_NM, -pay_NM]), rounds, _distance_to_even_odds)
    if settings.game == "prisoners_dilemma":
        return RepeatedGame(torch.tensor(PRISONERS_DILEMMA, dtype=torch.float64), rounds, _cooperation)
    if settings.game == "tandem":
        action_N = tandem_actions(settings)
        return RepeatedGame(tandem_payoffs(action_N), rounds, lambda tables: _mean_actions(action_N, tables))
    return RepeatedGame(torch.tensor([settings.payoffs0, settings.payoffs1], dtype=torch.float64), rounds)


def tandem_actions(settings: MatrixGameSettings) -> Tensor:
    """(N,) float64: the evenly spaced actions."""
    return torch.linspace(-2.0, 2.0, settings.tandem_actions, dtype=torch.float64)


def tandem_payoffs(action_N: Tensor) -> Tensor:
    """(2, N, N): 2 x - (x + y)^2 and 2 y - (x + y)^2 for every pair of actions (N,): all with x + y = 1 are stable
    fixed points of both.

    Source: Letcher et al., "Stable opponent shaping in differentiable games", ICLR 2019.
    """
    x, y = action_N[:, None], action_N[None]
    together = (x + y).square()
    return torch.stack([2 * x - together, 2 * y - together])


def _distance_to_even_odds(tables: Tables) -> Figures:
    """The only equilibrium is uniform in all states: the largest distance from it."""
    return {"distance_to_nash": max(float((table - 1 / table.shape[1]).abs().max()) for table in tables)}


def _cooperation(tables: Tables) -> Figures:
    """Probability of cooperating in each state."""
    return {
        f"player{p}/cooperation/{_DILEMMA_STATES[s]}": float(x)
        for p, table in enumerate(tables)
        for s, x in enumerate(table[:, 0])
    }


def _mean_actions(action_N: Tensor, tables: Tables) -> Figures:
    """Mean first action."""
    return {f"player{p}/action": float(table[0] @ action_N) for p, table in enumerate(tables)}
