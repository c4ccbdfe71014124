"""What a reader is shown of one game: its positions round by round, and the tree of what the agent could have answered.

The tree is that of the host's most likely choices from the game's start; for a host that draws its moves there is none. Of several
scripted hosts it is that of the first one that makes all the choices that were made.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from nip_ray.scenarios.hironaka import rules
from nip_ray.scenarios.hironaka.game import Game
from nip_ray.scenarios.hironaka.moves import choose
from nip_ray.scenarios.hironaka.players import Player
from nip_ray.scenarios.hironaka.positions import Position, Rules
from nip_ray.scenarios.hironaka.tree import Node, resolution_tree

_MOST_NODES = 300


def positions_of(made: Rules, id: int, said_RACM: Tensor) -> list[dict[str, Any]]:
    """One entry for each round of the game, and one for what was left: round (from 0), points, choice (the coordinates that the host chose)
    and axis (the agent's answer), these two where they were made.
    """
    position = made.start(torch.tensor([id], device=said_RACM.device))
    entries = [_entry(position)]
    for said_ACM in said_RACM:
        if not bool((said_ACM >= 0).any()):
            break
        position, _ = made.advance(position, said_ACM[None])
        axis = int(said_ACM[1].max())
        if axis < 0:
            entries[-1]["choice"] = made.game.choices_KD[position.class_B[0]].nonzero().flatten().tolist()
        else:
            entries[-1]["axis"] = axis
            entries.append(_entry(position))
    return entries


def host_of(made: Rules, id: int, said_RACM: Tensor, hosts: Sequence[Player]) -> Player | None:
    """The first of the hosts that do not draw which chooses what was said, in every position of the game; None if there is none."""
    left = [host for host in hosts if not host.draws]
    position, no_luck = made.start(torch.tensor([id], device=said_RACM.device)), torch.Generator(device=said_RACM.device)
    for said_ACM in said_RACM:
        if not left or not bool((said_ACM >= 0).any()):
            break
        if (said := int(said_ACM[0].max())) >= 0:
            state = position.state
            left = [host for host in left if int(choose(host, made.game, state, None, None, no_luck)[0]) == said]
        position, _ = made.advance(position, said_ACM[None])
    return left[0] if left else None


def tree_of(game: Game, host: Player, start_MD: Tensor) -> dict[str, Any] | None:
    """The tree as mappings: count (of points), over, choice, axis (the answer that led here), children. None for a host that draws."""
    if host.draws:
        return None
    depth, nodes = 0, 1
    while (more := nodes + game.settings.dimension ** (depth + 1)) <= _MOST_NODES:
        depth, nodes = depth + 1, more
    return _record(resolution_tree(game, host, start_MD, depth))


def _entry(position: Position) -> dict[str, Any]:
    points_MD = position.state.points[0]
    return {"round": int(position.state.round_B[0]), "points": points_MD[rules.live(points_MD[None])[0]].tolist()}


def _record(node: Node) -> dict[str, Any]:
    made: dict[str, Any] = {"count": len(node.points), "over": node.over, "choice": list(node.choice)}
    if node.axis is not None:
        made["axis"] = node.axis
    return {**made, "children": [_record(child) for child in node.children]}
