"""A turn's distribution: independent categoricals for messages, linear messages and the decision, under turn masks.

Decisions that matter here:
- a factor that is not in play (a channel in which the agent is silent this round, a decision that could not count) is
  absent from log-probabilities and entropies, not merely constant;
- sampling takes its noise from an explicit generator and draws the same number of random values for all masks, so that
  equal seeds give equal episodes on every path;
- supervised learning of a decision has all decisions in the softmax: continuing is a wrong class, so that a trained
  agent decides. Its loss is cross-entropy, the mean over rows of -log pi(y), the codes of verdicts being those of
  labels.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

FORBIDDEN_BELOW = -1e8
"""Logits below this are of illegal symbols; networks set them to -1e9."""

# "message" (N, F) int64, "linear" (N, F) int64, "decision" (N,) int64; absent without such a factor
Action = Mapping[str, Tensor]


@dataclass(frozen=True)
class Policy:
    """Logits of N turns. message: (N, F, S) over S symbols for F (channel, position) factors; linear: (N, F, D) or
    None; decision: (N, V + 1) over V verdicts and, last, continuing, or None. speaks: (N, F) bool, the factors in play;
    may_decide: (N,) bool. Forbidden symbols have -1e9."""

    message: Tensor
    linear: Tensor | None
    decision: Tensor | None
    speaks: Tensor
    may_decide: Tensor | None

    @property
    def undecided(self) -> int:
        """The code of the decision to continue."""
        return _decision(self).shape[-1] - 1

    def rows(self, row_K: Tensor) -> "Policy":
        """Some turns."""
        linear, decision, may_decide = (
            None if x is None else x[row_K] for x in (self.linear, self.decision, self.may_decide)
        )
        return Policy(self.message[row_K], linear, decision, self.speaks[row_K], may_decide)

    def silenced(self, action: Action) -> "Policy":
        """The same distribution without the message factors of turns in which `action` decides: no agent reads it.

        Leaving them out of log-probabilities removes noise from policy gradients and no signal, since the expected
        score of a message without effect is zero.
        """
        if self.may_decide is None:
            return self
        decides = self.may_decide & (action["decision"] != self.undecided)
        return replace(self, speaks=self.speaks & ~decides[:, None])

    def log_prob(self, action: Action) -> Tensor:
        """(N,): sum of the log-probabilities of the factors in play."""
        return self.normalised().log_prob(action)

    def entropy(self) -> Tensor:
        """(N,): sum of the entropies (nats) of the factors in play."""
        return self.normalised().entropy()

    def kl(self, other: "Policy") -> Tensor:
        """(N,): KL(self || other) over the factors in play, which must be the same in both."""
        mine, its = self.normalised(), other.normalised()
        speaks = self.speaks.to(self.message.dtype)
        total = ((mine.message.exp() * (mine.message - its.message)).sum(-1) * speaks).sum(-1)
        if mine.linear is not None and its.linear is not None:
            total = total + ((mine.linear.exp() * (mine.linear - its.linear)).sum(-1) * speaks).sum(-1)
        if mine.decision is not None and its.decision is not None and self.may_decide is not None:
            total = total + (mine.decision.exp() * (mine.decision - its.decision)).sum(-1) * self.may_decide
        return total

    def normalised(self) -> "LogPolicy":
        """The same distribution with normalised log-probabilities, computed once."""
        linear = None if self.linear is None else torch.log_softmax(self.linear, -1)
        decision = None if self.decision is None else torch.log_softmax(self.decision, -1)
        return LogPolicy(torch.log_softmax(self.message, -1), linear, decision, self.speaks, self.may_decide)

    @property
    def noise_width(self) -> int:
        """Number of random values for sampling one turn."""
        return sum(logits[0].numel() for logits in self._logits().values())

    def perturbed(self, noise: Tensor) -> "Policy":
        """The policy whose most likely actions are samples of this one. noise: Gumbel noise (N, `noise_width`)."""
        parts, position = {}, 0
        for name, logits in self._logits().items():
            width = logits[0].numel()
            parts[name] = logits + noise[:, position : position + width].view(logits.shape)
            position += width
        return replace(self, **parts)

    def sample(self, noise: Tensor | None) -> dict[str, Tensor]:
        """An action for each of N turns: by Gumbel noise (N, `noise_width`), or the most likely one if `noise` is None.

        The decision is to continue where none can count.
        """
        chosen = self if noise is None else self.perturbed(noise)
        parts = {name: logits.argmax(-1) for name, logits in chosen._logits().items()}
        if self.may_decide is not None:
            parts["decision"] = torch.where(self.may_decide, parts["decision"], self.undecided)
        return parts

    def choose(self, noise: torch.Generator | None, copy_N: Tensor, count: int) -> dict[str, Tensor]:
        """`sample` for the turns of copies `copy_N` out of `count`: noise is drawn for all, independent of turns."""
        return self.sample(None if noise is None else gumbel_noise((count, self.noise_width), noise)[copy_N])

    def _logits(self) -> dict[str, Tensor]:
        named = {"message": self.message, "linear": self.linear, "decision": self.decision}
        return {name: logits for name, logits in named.items() if logits is not None}


def joined(policies: Sequence[Policy]) -> Policy:
    """The turns of several policies of one kind, in order."""
    parts: dict[str, list[Any]] = {f.name: [getattr(policy, f.name) for policy in policies] for f in fields(Policy)}
    return replace(policies[0], **{name: None if own[0] is None else torch.cat(own) for name, own in parts.items()})


@dataclass(frozen=True)
class LogPolicy:
    """`Policy` with normalised log-probabilities."""

    message: Tensor
    linear: Tensor | None
    decision: Tensor | None
    speaks: Tensor
    may_decide: Tensor | None

    def log_prob(self, action: Action) -> Tensor:
        """(N,): sum of the log-probabilities of the factors in play."""
        speaks = self.speaks.to(self.message.dtype)
        total = (self.message.gather(-1, action["message"].unsqueeze(-1)).squeeze(-1) * speaks).sum(-1)
        if self.linear is not None:
            total = total + (self.linear.gather(-1, action["linear"].unsqueeze(-1)).squeeze(-1) * speaks).sum(-1)
        if self.decision is not None and self.may_decide is not None:
            total = total + self.decision.gather(-1, action["decision"].unsqueeze(-1)).squeeze(-1) * self.may_decide
        return total

    def message_entropy(self) -> Tensor:
        """(N,): entropies of the message factors in play, linear ones included."""
        speaks = self.speaks.to(self.message.dtype)
        total = (_entropy(self.message) * speaks).sum(-1)
        return total if self.linear is None else total + (_entropy(self.linear) * speaks).sum(-1)

    def decision_entropy(self) -> Tensor:
        """(N,): entropy of the decision where it can count, else zero."""
        if self.decision is None or self.may_decide is None:
            return torch.zeros_like(self.message[:, 0, 0])
        return _entropy(self.decision) * self.may_decide

    def entropy(self) -> Tensor:
        """(N,): sum of the entropies (nats) of the factors in play."""
        return self.message_entropy() if self.decision is None else self.message_entropy() + self.decision_entropy()


def _entropy(log_prob: Tensor) -> Tensor:
    return -(log_prob.exp() * log_prob).sum(-1)


def gumbel_noise(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Standard Gumbel noise on the generator's device: argmax(logits + noise) samples the softmax (Gumbel, 1954)."""
    uniform = torch.rand(shape, generator=generator, device=generator.device)
    return -torch.log((-torch.log(uniform.clamp_min(1e-20))).clamp_min(1e-20))


def decision_loss(policy: Policy, y_N: Tensor) -> Tensor:
    """Scalar: mean over N turns of the cross-entropy of the decision (N, V + 1) and the label `y_N` (N,) int64.

    Raises ValueError for the policy of an agent without decisions.
    """
    return torch.nn.functional.cross_entropy(_decision(policy), y_N)


def accuracy(policy: Policy, y_N: Tensor) -> Tensor:
    """Scalar: the share of N turns whose most likely decision is the label; continuing is wrong."""
    return (_decision(policy).argmax(-1) == y_N).to(policy.message.dtype).mean()


def _decision(policy: Policy) -> Tensor:
    if policy.decision is None:
        raise ValueError("supervised learning needs an agent that decides; see `nip_ray.protocols.solo`")
    return policy.decision
