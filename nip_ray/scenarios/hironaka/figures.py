"""How strong the players of a run are, from games of their own: the matrix of games per round, lengths, and what they choose.

Decisions that matter here:
- every pair plays the same number of random starts with random numbers of its own, seeded, whatever was played before;
- networks play their most likely moves. "rho" counts unfinished games as the published figure does, "finished" does not;
- where several scripted players take turns in a role, each of them plays an equal part of the games;
- a figure is a ratio of sums over games, and games are what is independent: moves of one game are not.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product

import torch
from torch import Tensor

from nip_ray.scenarios.hironaka.game import Game
from nip_ray.scenarios.hironaka.match import Played, play_out
from nip_ray.scenarios.hironaka.players import Player, Role, scripted
from nip_ray.seeding import generator
from nip_ray.settings.hironaka import SCRIPTED, HironakaSettings

OWN = "own"


def rho_figures(
    players: Mapping[str, Sequence[Player]], settings: HironakaSettings, seed: int, device: str = "cpu"
) -> dict[str, tuple[Tensor, Tensor]]:
    """`rho/HOST-AGENT` and `finished/HOST-AGENT` for one's own players against each other and against all scripted ones; of one's own two
    also `length_mean`, `unfinished`, `actions/host_K` and `actions/agent_K` (shares). Each as (numerator_G, denominator_G), on the CPU.

    players: role -> one's own player, or several that take turns. Empty where `settings.rho_games` is 0. Hosts against which no game ends
    cost `max_rounds` rounds.
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
            played = _played(game, own_hosts, own_agents, settings.rho_games, draw)
            begun_G, length_G = played.length_G > 0, played.length_G
            figures |= {f"rho/{host}-{agent}": (begun_G, length_G), f"finished/{host}-{agent}": (begun_G & played.over_G, length_G)}
            if host == agent == OWN:
                figures |= _own_figures(played, game)
    return {name: (top_G.double().cpu(), bottom_G.double().cpu()) for name, (top_G, bottom_G) in figures.items()}


def _table(role: Role, own: Sequence[Player], settings: HironakaSettings) -> dict[str, Sequence[Player]]:
    return {OWN: own, **{name: [scripted(role, name, settings.dimension)] for name in SCRIPTED[role]}}


def _played(game: Game, hosts: Sequence[Player], agents: Sequence[Player], games: int, draw: torch.Generator) -> Played:
    """So many games, as evenly as can be among the pairs."""
    pairs = list(product(hosts, agents))
    shares = [len(range(number, games, len(pairs))) for number in range(len(pairs))]
    return Played.joined(
        [play_out(game, host.to(game.device), agent.to(game.device), n, draw) for (host, agent), n in zip(pairs, shares, strict=True) if n]
    )


def _own_figures(played: Played, game: Game) -> dict[str, tuple[Tensor, Tensor]]:
    one_G = torch.ones_like(played.length_G)
    figures = {"length_mean": (played.length_G, one_G), "unfinished": (~played.over_G, one_G)}
    for role, move_T, moves in (("host", played.class_T, len(game.choices_KD)), ("agent", played.axis_T, game.settings.dimension)):
        count_GK = torch.zeros(len(one_G), moves, device=one_G.device)
        count_GK.index_put_((played.game_T, move_T), torch.ones(1, device=one_G.device), accumulate=True)
        figures |= {f"actions/{role}_{k}": (count_GK[:, k], count_GK.sum(1)) for k in range(count_GK.shape[1])}
    return figures
