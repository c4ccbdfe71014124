"""Policy and value of one player: tables over its states, or small perceptrons."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from nip_ray.learning.dqn import FORBIDDEN
from nip_ray.learning.groups import ParameterGroup
from nip_ray.learning.policy import Policy
from nip_ray.networks.basic import ACTIVATIONS
from nip_ray.settings.matrix_games import MatrixAgentSettings


class MatrixAgent(nn.Module):
    """Logits and value of a state, without shared parameters, so that opponent shaping sees only the policy's.

    Observations have "features" (N, states), the one-hot state. Symbols that are not legal in it, by `legal` (states,
    symbols), are forbidden; those from `num_moves` on are legal in none. `random` agents return constant zero logits
    and have nothing to train.
    """

    legal: Tensor

    def __init__(self, settings: MatrixAgentSettings, num_moves: int, legal: Tensor) -> None:
        super().__init__()
        num_states, num_symbols = legal.shape
        self.settings = settings
        self.register_buffer("legal", legal, persistent=False)
        self.choice = not bool(legal[:, :num_moves].all())
        self.policy_body, self.policy_head = _body(settings, num_states), _head(settings, num_states, num_moves)
        self.value_body, self.value_head = _body(settings, num_states), _head(settings, num_states, 1)
        spread = settings.initial_scale / max(settings.hidden, 1) ** 0.5
        nn.init.normal_(self.policy_head.weight, std=spread)
        nn.init.zeros_(self.value_head.weight)
        self.forbidden = num_symbols - num_moves

    def forward(
        self, obs: Mapping[str, Tensor], want_policy: bool = True, want_value: bool = True
    ) -> tuple[Policy | None, Tensor | None]:
        """The action distribution and the value (N,) of N turns, each only if requested."""
        features = obs["features"]
        policy = value = None
        if want_policy:
            logits = self.policy_head(self.policy_body(features))
            if self.settings.kind == "random":
                logits = torch.zeros_like(logits)
            if self.forbidden:
                logits = nn.functional.pad(logits, (0, self.forbidden), value=FORBIDDEN)
            if self.choice:
                logits = logits.masked_fill(~self.legal[features.argmax(-1)], FORBIDDEN)
            policy = Policy(logits[:, None], None, None, obs["speaks"], None)
        if want_value:
            value = self.value_head(self.value_body(features)).squeeze(-1)
        return policy, value

    def groups(self) -> list[ParameterGroup]:
        """The policy belongs to the actor, the value to the critic."""
        if self.settings.kind == "random":
            return []
        factor = self.settings.agent_lr_factor
        actor = [*self.policy_body.parameters(), *self.policy_head.parameters()]
        critic = [*self.value_body.parameters(), *self.value_head.parameters()]
        return [
            ParameterGroup("actor", "policy", actor, factor.actor),
            ParameterGroup("critic", "value", critic, factor.critic),
        ]

    def body(self) -> nn.Module:
        """The policy's hidden layer; a table has none, so an empty module."""
        return self.policy_body


def _body(settings: MatrixAgentSettings, num_states: int) -> nn.Module:
    if settings.hidden == 0:
        return nn.Identity()
    return nn.Sequential(nn.Linear(num_states, settings.hidden), ACTIVATIONS[settings.activation]())


def _head(settings: MatrixAgentSettings, num_states: int, width: int) -> nn.Linear:
    """Without a bias: one free vector per state in a table; a hidden layer has enough biases."""
    return nn.Linear(settings.hidden or num_states, width, bias=False)
