"""A message game whose verifier has a weak spot that is known exactly, and what an attack on it takes."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from nip_ray.evaluation.attack import AttackTarget
from nip_ray.learning.policy import Policy
from nip_ray.protocols import build
from nip_ray.scenarios.message_game.scenario import MessageAgent, MessageGame
from nip_ray.settings.message_game import MessageAgentSettings, MessageGameSettings

ROUNDS, SYMBOLS, PASSWORD = 2, 5, 3


class Gullible(nn.Module):
    """Accepts with log-odds `sure` where the last word it heard is the password, else rejects as surely; says 0 all the
    time.

    deaf: it hears no password. Its value is 0.
    """

    def __init__(self, sure: float = 2.0, deaf: bool = False) -> None:
        super().__init__()
        self.sure, self.deaf = sure, deaf

    def forward(
        self, obs: Mapping[str, Tensor], want_policy: bool = True, want_value: bool = True
    ) -> tuple[Policy, Tensor]:
        heard_N = obs["features"][:, ROUNDS + PASSWORD]
        odds_N = self.sure * (2 * heard_N * (not self.deaf) - 1)
        message = torch.zeros(len(heard_N), 1, SYMBOLS)
        message[..., 0] = 9.0
        decision = torch.stack([-odds_N / 2, odds_N / 2, torch.full_like(odds_N, -20.0)], -1)
        return Policy(message, None, decision, obs["speaks"], obs["may_decide"]), torch.zeros(len(heard_N))


class Mute(nn.Module):
    """A prover that always says 0, whatever it sees."""

    def forward(
        self, obs: Mapping[str, Tensor], want_policy: bool = True, want_value: bool = True
    ) -> tuple[Policy, Tensor]:
        message = torch.zeros(len(obs["features"]), 1, SYMBOLS)
        message[..., 0] = 9.0
        return Policy(message, None, None, obs["speaks"], None), torch.zeros(len(message))


def message_game() -> MessageGame:
    protocol = build("message_game", max_rounds=ROUNDS)
    agents = dict.fromkeys(protocol.agents, MessageAgentSettings(hidden=16))
    return MessageGame(protocol, MessageGameSettings(num_symbols=SYMBOLS), agents)


def attack_target(verifier: nn.Module, prover: nn.Module | None = None, count: int = 100) -> AttackTarget:
    """That verifier, with the first `count` instances held out."""
    scenario = message_game()

    def fresh(agents: tuple[str, ...], size: int, seed: int) -> dict[str, nn.Module]:
        made = message_game()
        made.agents = dict.fromkeys(made.agents, MessageAgentSettings(hidden=16 * size))
        return {agent: made.build_agent(agent, seed) for agent in agents}

    networks = {"prover": Mute() if prover is None else prover, "verifier": verifier}
    return AttackTarget(scenario, networks, fresh, {}, scenario.ids("test")[:count], seed=0)  # type: ignore[arg-type]


def prover(seed: int = 0) -> MessageAgent:
    made = message_game().build_agent("prover", seed)
    assert isinstance(made, MessageAgent)
    return made
