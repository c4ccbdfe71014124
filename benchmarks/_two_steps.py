"""A claim of two steps, the smallest that can be split: for the equilibria of bisection and prover_estimator.

Two states and a chain of two steps that stay where they are, from 0 to a claimed end, 0 (true) or 1. A prover names the
state half way, so that the left step, the right one, both or none are wrong. The estimator calls each step certain or
impossible; the decider sees whether the remaining step holds, its estimate, and whether both were called certain.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from nip_ray.learning.dqn import FORBIDDEN
from nip_ray.play.core import turn_masks
from nip_ray.play.rollout import Dialogue
from nip_ray.play.scenario import Scenario
from nip_ray.plugins import register_scenario
from nip_ray.protocols import Protocol
from nip_ray.scenarios.message_game.scenario import MessageAgent
from nip_ray.settings.message_game import MessageAgentSettings
from nip_ray.settings.options import FORBID_UNKNOWN, option


@dataclass(frozen=True)
class TwoStepsSettings:
    """Settings of the task: a claim of two steps."""

    __pydantic_config__ = FORBID_UNKNOWN

    name: Literal["two_steps"] = option("two_steps", "The task.")
    num_instances: int = option(64, "Claims, every other one true.", ge=4)
    agents: dict[str, MessageAgentSettings] = option(
        dict, "Agent -> its network; `_default` serves the agents not named."
    )


class TwoSteps(Scenario):
    """Instance i claims the end 1 - i % 2, which is true for odd ones. Symbols: a state; the kept half; for estimates 2
    left + right."""

    name, num_symbols, held_out = "two_steps", 4, False

    def __init__(self, protocol: Protocol, settings: TwoStepsSettings) -> None:
        self.protocol, self.settings = protocol, settings
        self.label_I = torch.arange(settings.num_instances) % 2
        self.estimates = bool(protocol.payment.per_error)

    def to(self, device: str) -> "TwoSteps":
        """This scenario, its labels moved to `device` in place."""
        self.label_I = self.label_I.to(device)
        return self

    def ids(self, split: str) -> Tensor:
        """All instances."""
        return torch.arange(self.settings.num_instances, device=self.label_I.device)

    def _steps(self, id_N: Tensor, said: Dialogue) -> tuple[Tensor, Tensor, Tensor]:
        """((N, 2) whether each step holds, (N, 2) the estimate of each, (N,) the kept one), 0 or 1, and -1 where
        unknown."""
        said_NR = said.main.amax((2, 3, 4))
        middle_N, kept_N = said_NR[:, 0], said_NR[:, 1 + self.estimates]
        end_N = 1 - self.label_I[id_N]
        holds_N2 = torch.stack([middle_N == 0, middle_N == end_N], 1).long().where(middle_N[:, None] >= 0, -1)
        pair_N = said_NR[:, 1] if self.estimates else torch.full_like(middle_N, -1)
        said_N2 = torch.stack([pair_N // 2, pair_N % 2], 1).where(pair_N[:, None] >= 0, -1)
        return holds_N2, said_N2, kept_N

    def observe(self, agent: str, id_N: Tensor, said: Dialogue, round_N: Tensor, seed_N: Tensor) -> dict[str, Tensor]:
        """ "features" (N, F): the round, and the agent's knowledge, 1 and -1 for yes and no; "legal" (N, S)."""
        holds_N2, said_N2, kept_N = self._steps(id_N, said.before(round_N))
        there_N1, row_N1 = kept_N[:, None] >= 0, kept_N.clamp(min=0)[:, None]
        if agent == self.protocol.verifier:
            both_N1 = said_N2.amin(1, keepdim=True)
            known = [value.gather(1, row_N1).where(there_N1, -1) for value in (holds_N2, said_N2)] + [both_N1]
        else:
            known = [self.label_I[id_N][:, None], holds_N2, said_N2]
        seen = torch.cat([torch.where(value < 0, 0, 2 * value - 1).float() for value in known], 1)
        clock = nn.functional.one_hot(round_N.clamp(max=self.protocol.max_rounds - 1), self.protocol.max_rounds)
        symbols = 4 if agent == "estimator" else 2
        legal = (torch.arange(self.num_symbols, device=id_N.device) < symbols).expand(len(id_N), -1)
        return {
            **turn_masks(self.protocol, agent, 1, round_N, seed_N),
            "features": torch.cat([clock, seen], 1),
            "legal": legal,
        }

    def estimate_error(self, id_B: Tensor, said: Dialogue) -> Tensor:
        """1 if the estimate of the kept step is wrong, else 0."""
        holds_B2, said_B2, kept_B = self._steps(id_B, said)
        row_B1 = kept_B.clamp(min=0)[:, None]
        return (holds_B2.gather(1, row_B1) != said_B2.gather(1, row_B1)).float().squeeze(1)

    def build_agent(self, agent: str, seed: int) -> nn.Module:
        """A perceptron restricted to legal symbols."""
        settings = self.settings.agents.get(agent) or self.settings.agents.get("_default") or MessageAgentSettings()
        known = 3 if agent == self.protocol.verifier else 5
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return Stepper(
                settings, self.protocol.max_rounds + known, self.num_symbols, agent in self.protocol.deciders
            )


class Stepper(MessageAgent):
    """A `MessageAgent` with illegal symbols."""

    def forward(self, obs: Mapping[str, Tensor], want_policy: bool = True, want_value: bool = True) -> Any:
        """See `MessageAgent`."""
        policy, value = super().forward(obs, want_policy, want_value)
        if policy is not None:
            policy = replace(policy, message=policy.message.where(obs["legal"][:, None].bool(), FORBIDDEN))
        return policy, value


register_scenario(TwoStepsSettings, TwoSteps)
