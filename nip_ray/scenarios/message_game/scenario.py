"""The message game: the smallest proof. The prover sees a secret, both send messages, and the verifier decides which
half the secret is in.

Both agents have a turn in each of eight rounds, only the last decision counts, and both are paid if it is right. It is
the benchmark for speed (only small perceptrons) and the smallest example of a scenario. Its rules are the protocol
`message_game`.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from nip_ray.errors import UserError
from nip_ray.learning.groups import ParameterGroup
from nip_ray.learning.policy import Policy
from nip_ray.networks.basic import FUNCTIONS
from nip_ray.play.core import turn_masks
from nip_ray.play.rollout import Dialogue
from nip_ray.play.scenario import Scenario
from nip_ray.protocols import NUM_DECISIONS, Protocol
from nip_ray.scenarios.seat import agents_of
from nip_ray.seeding import seeded
from nip_ray.settings.message_game import MessageAgentSettings, MessageGameSettings

_INSTANCES = 1024


class MessageGame(Scenario):
    """Instance i has the secret ``i % num_secrets``; training and test are the same, since there is nothing to
    generalise over."""

    name = "message_game"
    held_out = False

    def __init__(
        self, protocol: Protocol, settings: MessageGameSettings, agents: Mapping[str, MessageAgentSettings]
    ) -> None:
        self.protocol, self.agents, self.settings = protocol, dict(agents), settings
        self.num_symbols = settings.num_symbols
        secret_I = torch.arange(_INSTANCES) % settings.num_secrets
        self.label_I = (secret_I >= settings.num_secrets / 2).long()

    def situation_I(self) -> Tensor:
        """The secret."""
        return torch.arange(_INSTANCES, device=self.label_I.device) % self.settings.num_secrets

    def observe(self, agent: str, id_N: Tensor, said: Dialogue, round_N: Tensor, seed_N: Tensor) -> dict[str, Tensor]:
        """ "features" (N, R + 2 S + secrets): one-hot round, both latest messages, and for the prover the secret."""
        rounds, symbols, count = self.protocol.max_rounds, self.num_symbols, len(id_N)
        features = torch.zeros(count, rounds + 2 * symbols + self.settings.num_secrets + 1, device=id_N.device)
        rows = torch.arange(count, device=id_N.device)
        trash = features.shape[1] - 1  # missing entries go here and are cut off
        features[rows, round_N.clamp(max=rounds - 1)] = 1.0
        # each channel has one writer; the others have -1
        latest_N2 = said.main[rows, (round_N - 1).clamp(min=0)].amax((1, 3))
        for side in range(2):
            place = torch.where(latest_N2[:, side] < 0, trash, rounds + side * symbols + latest_N2[:, side])
            features[rows, place] = 1.0
        if agent == "prover":
            features[rows, rounds + 2 * symbols + id_N % self.settings.num_secrets] = 1.0
        obs = turn_masks(self.protocol, agent, 1, round_N, seed_N)
        obs["features"] = features[:, :-1]
        return obs

    def build_agent(self, agent: str, seed: int) -> nn.Module:
        """A small perceptron, initialised from `seed`."""
        num_in = self.protocol.max_rounds + 2 * self.num_symbols + self.settings.num_secrets
        with seeded(seed):
            return MessageAgent(self.agents[agent], num_in, self.num_symbols, agent in self.protocol.deciders)


class MessageAgent(nn.Module):
    """One hidden layer that policy and value share; `random` agents return constant zero logits and train nothing."""

    def __init__(
        self, settings: MessageAgentSettings, num_in: int, num_symbols: int, decides: bool, num_channels: int = 1
    ) -> None:
        """num_channels: number of channels that the agent writes to."""
        super().__init__()
        self.settings, self.decides, self.shape = settings, decides, (num_channels, num_symbols)
        self.hidden = nn.Linear(num_in, settings.hidden)
        self.policy_head = nn.Linear(settings.hidden, num_channels * num_symbols + (NUM_DECISIONS if decides else 0))
        self.value_head = nn.Linear(settings.hidden, 1)

    def forward(
        self, obs: Mapping[str, Tensor], want_policy: bool = True, want_value: bool = True
    ) -> tuple[Policy | None, Tensor | None]:
        """The action distribution and the value (N,) of N turns, each only if requested."""
        hidden = FUNCTIONS[self.settings.activation](self.hidden(obs["features"]))
        policy = value = None
        if want_policy:
            logits = self.policy_head(hidden)
            if self.settings.kind == "random":
                logits = torch.zeros_like(logits)
            said = self.shape[0] * self.shape[1]
            decision = logits[:, said:] if self.decides else None
            message = logits[:, :said].unflatten(1, self.shape)
            policy = Policy(message, None, decision, obs["speaks"], obs["may_decide"] if self.decides else None)
        if want_value:
            value = self.value_head(hidden).squeeze(-1)
        return policy, value

    def groups(self) -> list[ParameterGroup]:
        """Body and policy head belong to the actor, the value head to the critic."""
        if self.settings.kind == "random":
            return []
        factor = self.settings.agent_lr_factor
        actor = [*self.hidden.parameters(), *self.policy_head.parameters()]
        return [
            ParameterGroup("actor", "all", actor, factor.actor),
            ParameterGroup("critic", "head", list(self.value_head.parameters()), factor.critic),
        ]

    def body(self) -> nn.Module | None:
        """The hidden layer."""
        return None if self.settings.kind == "random" else self.hidden


def build_message_game(protocol: Protocol, settings: Any) -> MessageGame:
    """The scenario of `settings` (MessageGameSettings) under the protocol `message_game`."""
    if protocol.name != "message_game":
        raise UserError(f"protocol.name: the message game is played under 'message_game' alone (got {protocol.name!r})")
    return MessageGame(protocol, settings, agents_of(protocol, settings.agents, MessageAgentSettings))
