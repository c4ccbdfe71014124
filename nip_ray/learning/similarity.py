"""Similarity of two agents' choices, turn by turn: the zero-knowledge payment, and a metric of evaluation.

Everything here compares the adversarial verifier's turn with the simulator's in the same copy and round. Each saw only
its own conversation. Both functions are pure; `similarity` can be differentiated, since it is a function of the two
agents' logits and not of their draws: from a score-function estimate alone a simulator would learn nothing from its own
turn. Source: Hammond and Adam-Day, "Neural Interactive Proofs", ICLR 2025, zero-knowledge proofs; the cosines are the
library's.
"""

import torch
from torch import Tensor

from nip_ray.learning.policy import FORBIDDEN_BELOW, Policy


def similarity(adversary: Policy, simulator: Policy, legacy: bool = False) -> Tensor:
    """(N,) in [-2, 2]: cos(message logits) + cos(decision logits) of N turns of each, in the same copies and rounds.

    Logits are flattened over factors and symbols. Factors in which the adversary is silent are zero; so is the decision
    if its decision cannot count, or if either agent has none. A cosine with a zero vector is 0. Linear messages are
    ignored. legacy: as published: illegal symbols (logit -1e9 for both) are included, and then dominate the cosine.
    """
    first, second = adversary.message, simulator.message
    if not legacy:
        impossible = (first < FORBIDDEN_BELOW) | (second < FORBIDDEN_BELOW)
        first, second = first.masked_fill(impossible, 0.0), second.masked_fill(impossible, 0.0)
    silent = ~adversary.speaks[..., None]
    total = _cosine(first.masked_fill(silent, 0.0).flatten(1), second.masked_fill(silent, 0.0).flatten(1))
    if adversary.decision is not None and simulator.decision is not None and adversary.may_decide is not None:
        total = total + _cosine(adversary.decision, simulator.decision) * adversary.may_decide
    return total


def choice_distances(adversary: Policy, simulator: Policy) -> Tensor:
    """(N, 2) in [0, 1]: the distance of the two choices in N turns, as total variation: half the sum of |p - q|.

    First the mean over the message factors in play, linear ones included; then the decision. -1 if there is nothing to
    compare: no factor in play, a decision that cannot count, an agent without one.
    """
    speaks = adversary.speaks.to(adversary.message.dtype)
    total, factors = (_variation(adversary.message, simulator.message) * speaks).sum(-1), speaks.sum(-1)
    if adversary.linear is not None and simulator.linear is not None:
        total, factors = total + (_variation(adversary.linear, simulator.linear) * speaks).sum(-1), factors * 2
    message = torch.where(factors > 0, total / factors.clamp_min(1), -1.0)
    decision = torch.full_like(message, -1.0)
    if adversary.decision is not None and simulator.decision is not None and adversary.may_decide is not None:
        decision = torch.where(adversary.may_decide, _variation(adversary.decision, simulator.decision), -1.0)
    return torch.stack([message, decision], 1)


def _cosine(first_ND: Tensor, second_ND: Tensor) -> Tensor:
    """(N,): with finite gradients also at zero vectors."""
    return (_unit(first_ND) * _unit(second_ND)).sum(-1)


def _unit(x_ND: Tensor) -> Tensor:
    square_N1 = x_ND.square().sum(-1, keepdim=True)
    there = square_N1 > 0
    return torch.where(there, x_ND * torch.where(there, square_N1, 1.0).rsqrt(), 0.0)


def _variation(first: Tensor, second: Tensor) -> Tensor:
    return (torch.softmax(first, -1) - torch.softmax(second, -1)).abs().sum(-1) / 2
