"""Hironaka's game as a scenario: moves are messages of one symbol, the game's rules judge, instances are random starts
by number."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor, nn

from nip_ray.errors import UserError
from nip_ray.play.rollout import Dialogue, position_at
from nip_ray.play.scenario import Scenario
from nip_ray.protocols import Protocol
from nip_ray.scenarios.hironaka import encode
from nip_ray.scenarios.hironaka.game import Game
from nip_ray.scenarios.hironaka.network import HironakaAgent
from nip_ray.scenarios.hironaka.players import Player, Role, scripted
from nip_ray.scenarios.hironaka.positions import Rules
from nip_ray.scenarios.hironaka.records import host_of, positions_of, rho_figures, tree_of
from nip_ray.scenarios.hironaka.seats import NetworkSeat, ScriptedAgent
from nip_ray.seeding import seeded
from nip_ray.settings.hironaka import ROLES, HironakaAgentSettings, HironakaSettings


class Hironaka(Scenario):
    """The game of `settings` under its protocol. Labels have no meaning.

    Instances 0 to num_train - 1 are for training, the later ones are held out. The alphabet has as many symbols as the
    role with more moves; the other role's excess symbols are never legal.
    """

    name = "hironaka"
    rules: Rules

    def __init__(self, protocol: Protocol, settings: HironakaSettings) -> None:
        self.protocol = replace(protocol, max_rounds=2 * settings.max_rounds)
        self.settings = settings
        self.held_out, self.num_train = settings.starts == "random", settings.num_train
        self.agents = {
            role: settings.agents.get(role, settings.agents.get("_default", HironakaAgentSettings())) for role in ROLES
        }
        self.moves = {"host": encode.num_choices(settings.dimension), "agent": settings.dimension}
        self.num_symbols = max(self.moves.values())
        self.to("cpu")

    def to(self, device: str) -> "Hironaka":
        """This scenario, its players moved to `device` in place."""
        self.game = Game(self.settings, device)
        no_weights = [role for role, agent in self.agents.items() if agent.kind == "scripted"]
        self.rules = Rules(self.game, self.protocol, self.num_symbols, 0, no_weights)
        self.label_I = torch.zeros(1, dtype=torch.int64, device=device).expand(
            self.settings.num_train + self.settings.num_test
        )
        return self

    def observe(self, agent: str, id_N: Tensor, said: Dialogue, round_N: Tensor, seed_N: Tensor) -> dict[str, Tensor]:
        """See `positions.Rules.view`; here all moves are replayed."""
        return self.rules.view(agent, position_at(self.rules, id_N, said.before(round_N)), round_N, seed_N)

    def build_agent(self, agent: str, seed: int) -> nn.Module:
        """A network, initialised from `seed`, or a player without weights."""
        own, role = self.agents[agent], cast(Role, agent)
        if own.kind == "scripted":
            return self.scripted_agent(role, own.player, *own.others)
        with seeded(seed):
            settings = self.settings
            return HironakaAgent(
                own, settings.max_points, settings.dimension, self.moves[agent], self.num_symbols, agent == "agent"
            )

    def scripted_agent(self, role: Role, *names: str) -> ScriptedAgent:
        """Players without weights for a role, in place of its network. Raises UserError for an unknown name."""
        return ScriptedAgent(role, names, self.settings.dimension, self.num_symbols)

    def player(self, role: Role, network: nn.Module) -> Player:
        """An agent of this scenario as a player of `match`. Raises UserError for several scripted ones: the caller must
        choose."""
        first, *others = self.players(role, network)
        if others and isinstance(network, ScriptedAgent):
            raise UserError(f"{role}: {', '.join(network.names)} play here by turns, name one of them")
        return first

    def players(self, role: Role, network: nn.Module) -> list[Player]:
        """The players of a role, one of them in each game: the scripted players of an agent, else the network."""
        if isinstance(network, ScriptedAgent):
            return [scripted(role, name, self.settings.dimension).to(self.label_I.device) for name in network.names]
        return [NetworkSeat(role, network, self.settings, self.num_symbols)]

    def record_extras(self, id: int, said: Dialogue, networks: Mapping[str, nn.Module]) -> dict[str, Any]:
        """ "positions" of the game and, for a deterministic host, the "tree" of possible continuations; see `records`.

        Of several scripted hosts it is the tree of the one that played.
        """
        extras: dict[str, Any] = {"positions": positions_of(self.rules, id, said.main[0])}
        if (network := networks.get("host")) is not None:
            training = network.training
            start = self.rules.start(torch.tensor([id], device=self.label_I.device)).state.points[0]
            hosts = self.players("host", network.eval())
            host = hosts[0] if len(hosts) == 1 else host_of(self.rules, id, said.main[0], hosts)
            tree = None if host is None else tree_of(self.game, host, start)
            network.train(training)
            extras |= {} if tree is None else {"tree": tree}
        return extras

    def figures(self, networks: Mapping[str, nn.Module]) -> dict[str, tuple[Tensor, Tensor]]:
        """Games per round against all scripted players, and choices; see `records.rho_figures`."""
        training = {role: networks[role].training for role in ROLES}
        players = {role: self.players(role, networks[role].eval()) for role in ROLES}
        try:
            return rho_figures(players, self.settings, 0, device=str(self.label_I.device))
        finally:
            for role, mode in training.items():
                networks[role].train(mode)


def build_hironaka(protocol: Protocol, settings: Any) -> Hironaka:
    """The scenario of `settings` (HironakaSettings). Raises UserError for another protocol, or unusable players."""
    if protocol.name != "hironaka":
        raise UserError(f"protocol.name: this game is played under 'hironaka' alone (got {protocol.name!r})")
    unknown = set(settings.agents) - {*ROLES, "_default"}
    if unknown:
        raise UserError(f"scenario.agents: {sorted(unknown)} do not play; the agents are {list(ROLES)}")
    for fault in settings.faults():
        raise UserError(f"scenario.{fault}")
    return Hironaka(protocol, settings)
