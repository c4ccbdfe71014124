"""An agent's turn as one flat action: message symbols, linear symbols and the decision."""

from dataclasses import dataclass

import torch
from torch import Tensor

from nip_ray.learning.policy import Policy
from nip_ray.play.scenario import Scenario


@dataclass(frozen=True)
class Layout:
    """The layout of a turn: F message factors over S symbols, F linear factors over D symbols (0: none), a decision out
    of a number of options or none (0)."""

    factors: int
    symbols: int
    linear_symbols: int
    decisions: int

    @property
    def decides(self) -> bool:
        """True if a decision is part of it."""
        return self.decisions > 0

    @property
    def sizes(self) -> list[int]:
        """Numbers of choices, factor by factor."""
        linear = [self.linear_symbols] * self.factors if self.linear_symbols else []
        return [self.symbols] * self.factors + linear + ([self.decisions] if self.decides else [])

    def flatten(self, policy: Policy) -> Tensor:
        """(N, sum of sizes + factor masks): logits, then flags for the message factors and the decision in play."""
        parts = [policy.message.flatten(1)]
        if policy.linear is not None:
            parts.append(policy.linear.flatten(1))
        if policy.decision is not None:
            parts.append(policy.decision)
        parts.append(policy.speaks.to(parts[0].dtype))
        if policy.may_decide is not None:
            parts.append(policy.may_decide.to(parts[0].dtype)[:, None])
        return torch.cat(parts, 1)

    def unflatten(self, inputs: Tensor) -> Policy:
        """The policy that `flatten` flattened."""
        widths = [
            self.factors * self.symbols,
            self.factors * self.linear_symbols,
            self.decisions,
            self.factors,
            int(self.decides),
        ]
        message, linear, decision, speaks, may_decide = inputs.split(widths, -1)
        return Policy(
            message=message.reshape(-1, self.factors, self.symbols),
            linear=linear.reshape(-1, self.factors, self.linear_symbols) if self.linear_symbols else None,
            decision=decision if self.decides else None,
            speaks=speaks > 0.5,
            may_decide=may_decide.squeeze(-1) > 0.5 if self.decides else None,
        )

    def split(self, action: Tensor) -> dict[str, Tensor]:
        """A flat action (N, number of factors) by name."""
        parts = {"message": action[..., : self.factors].long()}
        if self.linear_symbols:
            parts["linear"] = action[..., self.factors : 2 * self.factors].long()
        if self.decides:
            parts["decision"] = action[..., -1].long()
        return parts

    def join(self, action: dict[str, Tensor]) -> Tensor:
        """The inverse of `split`."""
        parts = [action["message"]]
        if self.linear_symbols:
            parts.append(action["linear"])
        if self.decides:
            parts.append(action["decision"][:, None])
        return torch.cat(parts, 1)


def layout_of(scenario: Scenario, agent: str) -> Layout:
    """The layout of `agent`'s turns as flat actions."""
    factors = len(scenario.protocol.writes[agent]) * scenario.message_size
    decisions = scenario.protocol.undecided + 1 if agent in scenario.protocol.deciders else 0
    return Layout(factors, scenario.num_symbols, scenario.linear_symbols, decisions)
