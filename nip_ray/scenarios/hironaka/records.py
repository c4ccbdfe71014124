"""Further results of a run: the strength of its players, and records of games for readers.

Decisions that matter here:
- strength is measured in separate games: every pair plays the same number of random starts with seeded random numbers,
  independent of earlier play. If several scripted players take turns in a role, each plays an equal part of the games;
- networks play their most likely moves. "rho" counts unfinished games as the published metric does, "finished" does
  not;
- a metric is a ratio of sums over games, which are independent; moves of one game are not.

The record of a game has its positions round by round, and the tree of the agent's possible answers: to the host's most
likely choices from the game's start; a host that draws its moves has none. Of several scripted hosts it is the tree of
the first one that makes all the choices of the game.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import torch
from torch import Tensor

from nip_ray.scenarios.hironaka import rules
from nip_ray.scenarios.hironaka.game import Game
from nip_ray.scenarios.hironaka.match import Played, play_out
from nip_ray.scenarios.hironaka.players import Player, Role, choose, scripted
from nip_ray.scenarios.hironaka.positions import Position, Rules
from nip_ray.scenarios.hironaka.tree import resolution_tree
from nip_ray.seeding import generator
from nip_ray.settings.hironaka import SCRIPTED, HironakaSettings

_MOST_NODES = 300


def positions_of(made: Rules, id: int, said_RACM: Tensor) -> list[dict[str, Any]]:
    """One entry for each round of the game, and one for the final position: round (from 0), points, choice (the host's
    coordinates) and axis (the agent's answer), if made."""
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
    """The first deterministic host that makes the recorded choice in every position of the game; None without one."""
    left = [host for host in hosts if not host.draws]
    position, no_luck = (
        made.start(torch.tensor([id], device=said_RACM.device)),
        torch.Generator(device=said_RACM.device),
    )
    for said_ACM in said_RACM:
        if not left or not bool((said_ACM >= 0).any()):
            break
        if (said := int(said_ACM[0].max())) >= 0:
            state = position.state
            left = [host for host in left if int(choose(host, made.game, state, None, no_luck)[0]) == said]
        position, _ = made.advance(position, said_ACM[None])
    return left[0] if left else None


def tree_of(game: Game, host: Player, start_MD: Tensor) -> dict[str, Any] | None:
    """The tree (`Node.record`), as deep as `_MOST_NODES` positions allow. None for a host that draws."""
    if host.draws:
        return None
    depth, nodes = 0, 1
    while (more := nodes + game.settings.dimension ** (depth + 1)) <= _MOST_NODES:
        depth, nodes = depth + 1, more
    return resolution_tree(game, host, start_MD, depth).record()


def _entry(position: Position) -> dict[str, Any]:
    points_MD = position.state.points[0]
    return {"round": int(position.state.round_B[0]), "points": points_MD[rules.live(points_MD[None])[0]].tolist()}


OWN = "own"


def rho_figures(
    players: Mapping[str, Sequence[Player]], settings: HironakaSettings, seed: int, device: str = "cpu"
) -> dict[str, tuple[Tensor, Tensor]]:
    """`rho/HOST-AGENT` and `finished/HOST-AGENT` for the run's players against each other and against all scripted
    ones; for the run's two also `length_mean`, `unfinished`, `actions/host_K` and `actions/agent_K` (shares). Each as
    (numerator_G, denominator_G), on the CPU.

    players: role -> the run's player, or several that take turns. {} if `settings.rho_games` is 0. Hosts against which
    no game ends cost `max_rounds` rounds.
    """
    if not settings.rho_games:
        return {}
    game = Game(replace(settings, max_rounds=min(settings.max_rounds, 100)), device)
    hosts, agents = _table("host", players["host"], settings), _table("agent", players["agent"], settings)
    figures: dict[str, tuple[Tensor, Tensor]] = {}
    for host, own_hosts in hosts.items():
        for agent, own_agents in agents.items():
            if OWN not in (host, agent):
                continue
            draw = generator(seed, "rho", host, agent, device=game.device)
            pairs = list(product(own_hosts, own_agents))  # all play about equally many of the games
            shares = [len(range(number, settings.rho_games, len(pairs))) for number in range(len(pairs))]
            parts = [
                play_out(game, one.to(game.device), other.to(game.device), games, draw)
                for (one, other), games in zip(pairs, shares, strict=True)
                if games
            ]
            played = Played.joined(parts)
            begun_G, length_G = played.length_G > 0, played.length_G
            figures |= {
                f"rho/{host}-{agent}": (begun_G, length_G),
                f"finished/{host}-{agent}": (begun_G & played.over_G, length_G),
            }
            if host == agent == OWN:
                figures |= _own_figures(played, game)
    return {name: (top_G.double().cpu(), bottom_G.double().cpu()) for name, (top_G, bottom_G) in figures.items()}


def _table(role: Role, own: Sequence[Player], settings: HironakaSettings) -> dict[str, Sequence[Player]]:
    return {OWN: own, **{name: [scripted(role, name, settings.dimension)] for name in SCRIPTED[role]}}


def _own_figures(played: Played, game: Game) -> dict[str, tuple[Tensor, Tensor]]:
    one_G = torch.ones_like(played.length_G)
    figures = {"length_mean": (played.length_G, one_G), "unfinished": (~played.over_G, one_G)}
    for role, move_T, moves in (
        ("host", played.class_T, len(game.choices_KD)),
        ("agent", played.axis_T, game.settings.dimension),
    ):
        count_GK = torch.zeros(len(one_G), moves, device=one_G.device)
        count_GK.index_put_((played.game_T, move_T), torch.ones(1, device=one_G.device), accumulate=True)
        figures |= {f"actions/{role}_{k}": (count_GK[:, k], count_GK.sum(1)) for k in range(count_GK.shape[1])}
    return figures
