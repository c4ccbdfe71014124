"""How strong the players of a run are, from games of their own: the matrix of games per round, lengths, and what they choose.

Decisions that matter here:
- every pair plays the same number of random starts with random numbers of its own, seeded, whatever was played before;
- networks play their most likely moves. "rho" counts unfinished games as the published figure does, "finished" does not.
"""

from collections.abc import Mapping
from dataclasses import replace

from nip_ray.scenarios.hironaka.game import Game
from nip_ray.scenarios.hironaka.match import Played, play_out, rho_of
from nip_ray.scenarios.hironaka.players import Player, Role, scripted
from nip_ray.seeding import generator
from nip_ray.settings.hironaka import SCRIPTED, HironakaSettings

OWN = "own"


def rho_figures(players: Mapping[str, Player], settings: HironakaSettings, seed: int, device: str = "cpu") -> dict[str, float]:
    """`rho/HOST-AGENT` and `finished/HOST-AGENT` for one's own players against each other and against all scripted ones; of one's own two
    also `length_mean`, `unfinished`, `actions/host_K` and `actions/agent_K` (shares).

    players: role -> one's own player. Empty where `settings.rho_games` is 0. Hosts against which no game ends cost `max_rounds` rounds.
    """
    if not settings.rho_games:
        return {}
    game = Game(replace(settings, max_rounds=min(settings.max_rounds, 100)), device)
    hosts, agents = _table("host", players["host"], settings), _table("agent", players["agent"], settings)
    figures: dict[str, float] = {}
    for host, host_player in hosts.items():
        for agent, agent_player in agents.items():
            if OWN not in (host, agent):
                continue
            draw = generator(seed, "rho", host, agent, device=game.device)
            played = play_out(game, host_player.to(game.device), agent_player.to(game.device), settings.rho_games, draw)
            found = rho_of(played, game.settings.max_rounds)
            figures |= {f"rho/{host}-{agent}": found.published, f"finished/{host}-{agent}": found.finished}
            if host == agent == OWN:
                figures |= _own_figures(played)
    return {name: value for name, value in figures.items() if value == value}


def _table(role: Role, own: Player, settings: HironakaSettings) -> dict[str, Player]:
    return {OWN: own, **{name: scripted(role, name, settings.dimension) for name in SCRIPTED[role]}}


def _own_figures(played: Played) -> dict[str, float]:
    figures = {"length_mean": float(played.length_G.double().mean()), "unfinished": float((~played.over_G).double().mean())}
    for role, count_GK in (("host", played.host_GK), ("agent", played.agent_GD)):
        count_K = count_GK.sum(0).double()
        share_K = count_K / count_K.sum().clamp_min(1)
        figures |= {f"actions/{role}_{k}": float(share) for k, share in enumerate(share_K)}
    return figures
