"""The consequences of a fixed host under all answers of the agent: resolution trees, and the longest game that an agent
can force.

The host must always answer the same points with the same choice. Both walk level by level, all games of a level as one
batch.
"""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from nip_ray.errors import UserError
from nip_ray.scenarios.hironaka import rules
from nip_ray.scenarios.hironaka.game import Game, State
from nip_ray.scenarios.hironaka.players import Player


@dataclass
class Node:
    """One position. axis: the agent's answer that led here, None at the root. points: its points, in order, as numbers.

    over: one point is left. choice: the host's coordinates here, empty if the game is over, or the tree ends here.
    children: one for each answer, in the order of the axes.
    """

    points: tuple[tuple[float, ...], ...]
    over: bool
    axis: int | None = None
    choice: tuple[int, ...] = ()
    children: list["Node"] = field(default_factory=list)

    def record(self) -> dict[str, Any]:
        """As plain JSON: count (of points), over, choice, axis (where there is one), children."""
        made: dict[str, Any] = {"count": len(self.points), "over": self.over, "choice": list(self.choice)}
        if self.axis is not None:
            made["axis"] = self.axis
        return {**made, "children": [child.record() for child in self.children]}


@dataclass(frozen=True)
class SearchResult:
    """rounds: the longest game from any of the starts. complete: True if the search finished; if not, `rounds` is its
    depth so far."""

    rounds: int
    complete: bool


@torch.no_grad()
def resolution_tree(game: Game, host: Player, points_MD: Tensor, depth: int, max_nodes: int = 10_000) -> Node:
    """The tree of all answers to `host` from one start (m, d), `depth` rounds deep.

    Raises UserError for a host that draws its moves, and once there are more than `max_nodes` positions.
    """
    _must_be_fixed(host)
    state = game.start(points_MD[None])
    root = Node(_plain(state)[0], bool(state.over_B[0]))
    leaves, total = [root], 1
    for _ in range(depth):
        open_N = state.open_B.nonzero()[:, 0]
        if len(open_N) == 0:
            break
        parents = [leaves[i] for i in open_N.tolist()]
        state, class_B, parent_N, axis_N = _answers(game, host, state.select(open_N))
        total += state.games
        if total > max_nodes:
            raise UserError(f"tree: more than {max_nodes} positions within {depth} rounds; take a smaller depth")
        for parent, choice_D in zip(parents, game.choices_KD[class_B].tolist()):
            parent.choice = tuple(axis for axis, chosen in enumerate(choice_D) if chosen)
        leaves = [
            Node(points, over, axis)
            for points, over, axis in zip(_plain(state), state.over_B.tolist(), axis_N.tolist())
        ]
        for parent, leaf in zip(parent_N.tolist(), leaves):
            parents[parent].children.append(leaf)
    return root


@torch.no_grad()
def search_depth(
    game: Game, host: Player, points_BMD: Tensor, limit: int = 100, max_positions: int = 100_000
) -> SearchResult:
    """The rounds of the longest game that any agent can force on `host` from any of the starts (B, m, d).

    Equal positions of a level are merged. The search gives up after `limit` rounds, or when a level has more than
    `max_positions` positions. (The published depth is one more: it counts positions, not rounds.) Raises UserError for
    a host that draws its moves.
    """
    _must_be_fixed(host)
    state = game.start(points_BMD)
    for rounds in range(limit + 1):
        state = state.select(state.open_B.nonzero()[:, 0]).trimmed()
        if state.games == 0:
            return SearchResult(rounds, True)
        # One game of each position: those with equal points continue alike.
        _, kind_B = torch.unique(state.points.flatten(1), dim=0, return_inverse=True)
        first_K = torch.full((int(kind_B.max()) + 1,), state.games, device=kind_B.device)
        state = state.select(
            first_K.scatter_reduce(0, kind_B, torch.arange(state.games, device=kind_B.device), "amin").sort().values
        )
        if rounds == limit or state.games > max_positions:
            return SearchResult(rounds, False)
        state = _answers(game, host, state)[0]
    raise AssertionError("unreachable")


def _must_be_fixed(host: Player) -> None:
    if host.draws:
        raise UserError("host: a search needs a host that always answers the same, not one that draws its moves")


def _answers(game: Game, host: Player, state: State) -> tuple[State, Tensor, Tensor, Tensor]:
    """All positions after one round, the host's classes (B,), and each position's parent's index and the answer."""
    class_B = host(state.points, None, None).argmax(1)
    parent_N, axis_N = game.choices_KD[class_B].nonzero(as_tuple=True)
    after, _ = game.step(state.select(parent_N), class_B[parent_N], axis_N)
    return after, class_B, parent_N, axis_N


def _plain(state: State) -> list[tuple[tuple[float, ...], ...]]:
    """The points of each game as numbers."""
    live_BM = rules.live(state.points).tolist()
    return [
        tuple(tuple(point) for point, keep in zip(points, keeps) if keep)
        for points, keeps in zip(state.points.tolist(), live_BM)
    ]
