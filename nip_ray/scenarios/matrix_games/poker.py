"""Poker with few cards: Kuhn's and Leduc hold'em; their rules, and the distance of two policies from equilibrium.

Sources: Kuhn, "A simplified two-person poker", 1950; Southey et al., "Bayes' bluff: opponent modelling in poker", UAI
2005.

Decisions that matter here:
- a game is a table of nodes, one for each sequence of moves, in which rules, states and exact values are read;
- player0 moves in even rounds and player1 in odd ones. Where betting ends early, rounds without a choice follow until
  the next card: such a node has one legal move;
- equal cards of two suits are one rank, which changes no value of an equilibrium.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations, product

import torch
from torch import Tensor

from nip_ray.protocols import Judgement
from nip_ray.scenarios.matrix_games.games import Figures, Game, Tables

CARDS = ("jack", "queen", "king")
DEALS = tuple(permutations(range(len(CARDS)), 2))
"""Kuhn poker: (card of player0, card of player1) by instance."""


@dataclass(frozen=True)
class Rules:
    """Stakes and cards. raises: the amount of a raise in each betting round. most_raises: in a round, of both players.
    slots: protocol rounds of a betting round. own_fold: fold and check are moves apart (else one move passes).
    deal_DC: by instance the ranks of player0's card, player1's card and, with two betting rounds, the public card. Both
    players ante 1.
    """

    raises: tuple[int, ...]
    most_raises: int
    slots: int
    own_fold: bool
    deal_DC: tuple[tuple[int, ...], ...]


KUHN = Rules((1,), 1, 3, False, DEALS)
_DECK = [rank for rank in range(len(CARDS)) for _ in range(2)]
LEDUC = Rules((2, 4), 2, 4, True, tuple(permutations(_DECK, 3)))


@dataclass
class Node:
    """A point in the game. player: who moves (None at an end). children: by move. open: the public card is seen. fold:
    player0's pay if the last move was a fold. stake: else, at an end, what the better hand wins."""

    player: int | None
    open: bool
    children: dict[int, int]
    fold: int | None = None
    stake: int = 0

    @property
    def chooses(self) -> bool:
        """True if there is a choice."""
        return len(self.children) > 1


class Poker(Game):
    """The game of `rules`. A player's state is its card, the public card if it is seen, and the moves so far; the last
    state is that of rounds without a choice, if there are any.

    Kuhn poker: state ``2 * card + situation``; situation of player0: 0 at first, 1 after check and bet; of player1: 0
    after check, 1 after bet.
    """

    def __init__(self, rules: Rules) -> None:
        self.rules, self.nodes = rules, list[Node]()
        moves = 3 if rules.own_fold else 2
        self.actions, self.num_instances = (moves, moves), len(rules.deal_DC)
        self.num_starts = self.num_instances
        self._grow(0, 0, (1, 1), 0, True)
        count = len(self.nodes)
        self.deal_DC = torch.tensor(rules.deal_DC)
        self.win_D = torch.tensor([_winner(cards) for cards in rules.deal_DC], dtype=torch.float64)
        self.next_KM = torch.arange(count)[:, None].repeat(1, moves)
        legal_KM = torch.zeros(count, moves, dtype=torch.bool)
        for k, node in enumerate(self.nodes):
            if node.children:
                self.next_KM[k] = node.children[min(node.children)]  # of a move that is illegal, or none
                for move, child in node.children.items():
                    self.next_KM[k, move], legal_KM[k, move] = child, True
        self.over_K = torch.tensor([node.player is None for node in self.nodes])
        self.fold_K = torch.tensor([node.fold or 0 for node in self.nodes], dtype=torch.float64)
        self.stake_K = torch.tensor([0 if node.fold is not None else node.stake for node in self.nodes]).double()
        self._number_states(legal_KM)

    def state(self, player: int, id_N: Tensor, move_NRA: Tensor, round_N: Tensor) -> Tensor:
        """The state of the player's node; without a turn that of its last one, or its first."""
        node_N = self._walked(move_NRA, round_N)
        return self.state_PKD.to(id_N.device)[player, node_N, id_N]

    def judge(self, id_N: Tensor, move_NRA: Tensor, round_N: Tensor) -> Judgement:
        """Nothing until the last move, then the pot."""
        node_N = self._walked(move_NRA, round_N + 1)
        device = id_N.device
        pay_N = self.fold_K.to(device)[node_N] + self.stake_K.to(device)[node_N] * self.win_D.to(device)[id_N]
        return Judgement(torch.stack([pay_N, -pay_N], 1).float(), self.over_K.to(device)[node_N])

    def legal(self, player: int) -> Tensor:
        """(states, moves) bool."""
        return self.legal_PSM[player]

    def figures(self, tables: Tables) -> Figures:
        """``<player>/value``: expected pay of a game; ``exploitability``: the mean gain of the two best responses (half
        of NashConv)."""
        value = float(self.values(tables).mean())
        gain = self.best_response_value(0, tables[1]) + self.best_response_value(1, tables[0])
        return {"player0/value": value, "player1/value": -value, "exploitability": gain / 2}

    def values(self, tables: Tables) -> Tensor:
        """(D,) float64: player0's expected pay in each deal when both play by their tables."""

        def value_D(k: int) -> Tensor:
            node = self.nodes[k]
            if node.player is None:
                return self.fold_K[k] + self.stake_K[k] * self.win_D
            chance_DM = tables[node.player].cpu()[self.state_PKD[node.player, k]]
            if not node.chooses:
                return value_D(next(iter(node.children.values())))
            return torch.stack([chance_DM[:, move] * value_D(child) for move, child in node.children.items()]).sum(0)

        return value_D(0)

    def best_response_value(self, player: int, table: Tensor) -> float:
        """The highest expected pay of `player` against the other's `table`: in every state the best move, found from
        the ends of the game backwards."""
        sign, table = 1 - 2 * player, table.cpu()

        def value_D(k: int, reach_D: Tensor) -> Tensor:
            """Pay of each deal times the chance `reach_D` that the other comes here."""
            node = self.nodes[k]
            if node.player is None:
                return sign * reach_D * (self.fold_K[k] + self.stake_K[k] * self.win_D)
            if not node.chooses:
                return value_D(next(iter(node.children.values())), reach_D)
            state_D = self.state_PKD[node.player, k]
            if node.player != player:
                chance_DM = table[state_D]
                return torch.stack([value_D(c, reach_D * chance_DM[:, m]) for m, c in node.children.items()]).sum(0)
            value_MD = torch.stack([value_D(child, reach_D) for child in node.children.values()])
            total_MS = torch.zeros(len(value_MD), self.num_states, dtype=torch.float64).index_add(1, state_D, value_MD)
            return value_MD.gather(0, total_MS.argmax(0)[state_D][None])[0]

        return float(value_D(0, torch.ones(self.num_instances, dtype=torch.float64)).mean())

    def _walked(self, move_NRA: Tensor, round_N: Tensor) -> Tensor:
        """(N,) int64: the node before `round_N`."""
        next_KM, node_N = self.next_KM.to(move_NRA.device), torch.zeros_like(round_N)
        for r in range(move_NRA.shape[1]):
            after_N = next_KM[node_N, move_NRA[:, r, r % 2].clamp(0, next_KM.shape[1] - 1)]
            node_N = torch.where(r < round_N, after_N, node_N)
        return node_N

    def _grow(self, slot: int, betting: int, paid: tuple[int, int], raises: int, first: bool) -> int:
        """Add the node of this point and all after it; return its number. slot: protocol round. betting: round of
        betting. paid: by both players. first: no player has moved in this round of betting."""
        rules, player = self.rules, slot % 2
        number, node = len(self.nodes), Node(player, betting > 0, {})
        self.nodes.append(node)
        facing = paid[1 - player] > paid[player]
        even = (max(paid), max(paid))
        moves = ["fold"] if facing else []
        moves += ["call"] + (["raise"] if raises < rules.most_raises else [])
        for move in moves:
            if move == "fold":
                child = self._end(fold=paid[1] if player == 1 else -paid[0])
            elif move == "raise":
                up = max(paid) + rules.raises[betting]
                after = (up, paid[1]) if player == 0 else (paid[0], up)
                child = self._grow(slot + 1, betting, after, raises + 1, False)
            elif first:
                child = self._grow(slot + 1, betting, paid, raises, False)
            elif betting + 1 < len(rules.raises):
                child = self._wait(slot + 1, betting + 1, even)
            else:
                child = self._end(stake=even[0])
            node.children[self._code(move, facing)] = child
        return number

    def _wait(self, slot: int, betting: int, paid: tuple[int, int]) -> int:
        """The rounds without a choice, if any, and the next round of betting."""
        if slot == betting * self.rules.slots:
            return self._grow(slot, betting, paid, 0, True)
        number = len(self.nodes)
        self.nodes.append(node := Node(slot % 2, False, {}))
        node.children[self._code("call", False)] = self._wait(slot + 1, betting, paid)
        return number

    def _end(self, fold: int | None = None, stake: int = 0) -> int:
        self.nodes.append(Node(None, True, {}, fold, stake))
        return len(self.nodes) - 1

    def _code(self, move: str, facing: bool) -> int:
        """The number of a move. Kuhn: 0 passes, 1 bets or calls; Leduc: 0 folds, 1 checks or calls, 2 raises."""
        if self.rules.own_fold:
            return ("fold", "call", "raise").index(move)
        return int(move == "raise" or (move == "call" and facing))

    def _number_states(self, legal_KM: Tensor) -> None:
        """state_PKD: (2, K, D) int64, see `state`. legal_PSM: (2, S, M) bool, see `legal`."""
        own: list[list[int]] = [
            [k for k, node in enumerate(self.nodes) if node.player == p and node.chooses] for p in (0, 1)
        ]
        ranks, waits = range(len(CARDS)), any(len(node.children) == 1 for node in self.nodes)
        numbers: list[dict[tuple[int, int | None, int], int]] = []
        for nodes in own:
            keys = [
                (card, public, k)
                for card, public in product(ranks, (None, *ranks))
                for k in nodes
                if self.nodes[k].open == (public is not None)
            ]
            numbers.append({key: s for s, key in enumerate(keys)})
        self.num_states = len(numbers[0]) + waits
        self.state_PKD = torch.full((2, len(self.nodes), self.num_instances), self.num_states - 1)
        self.legal_PSM = torch.zeros(2, self.num_states, legal_KM.shape[1], dtype=torch.bool)
        for p in (0, 1):
            last = self._last_own(p, own[p][0])
            for k, node in enumerate(self.nodes):
                if node.player == p and not node.chooses:
                    self.legal_PSM[p, -1] = legal_KM[k]
                    continue
                for d, cards in enumerate(self.rules.deal_DC):
                    at = last[k]
                    state = numbers[p][cards[p], cards[2] if self.nodes[at].open and len(cards) > 2 else None, at]
                    self.state_PKD[p, k, d] = state
                    self.legal_PSM[p, state] = legal_KM[at]

    def _last_own(self, player: int, first: int) -> list[int]:
        """By node: the last node, it included, in which `player` chose; `first` before that."""
        last = [first] * len(self.nodes)
        for k, node in enumerate(self.nodes):  # parents come before their children
            if node.player == player and node.chooses:
                last[k] = k
            for child in node.children.values():
                last[child] = last[k]
        return last


def _winner(cards: Sequence[int]) -> int:
    """1 if player0 has the better hand, -1 if player1, 0 if they are equal: a pair with the public card, else the
    higher card."""
    hands = [(len(cards) > 2 and card == cards[2], card) for card in cards[:2]]
    return (hands[0] > hands[1]) - (hands[0] < hands[1])
