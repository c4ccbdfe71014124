"""Supervised learning of a decision: the labels are what the agent ought to decide, before anybody has said anything.

Decisions that matter here:
- all three decisions take part in the softmax: going on is a wrong class, so that a trained agent does decide;
- the loss is cross-entropy, the mean over rows of -log pi(y), with reject 0 for y = 0 and accept 1 for y = 1.
"""

import torch
from torch import Tensor

from nip_ray.learning.policy import Policy


def decision_loss(policy: Policy, y_N: Tensor) -> Tensor:
    """Scalar: mean over N turns of the cross-entropy of the decision (N, 3) and the label `y_N` (N,) int64.

    Raises ValueError where the policy belongs to an agent that has no decision.
    """
    return torch.nn.functional.cross_entropy(_decision(policy), y_N)


def accuracy(policy: Policy, y_N: Tensor) -> Tensor:
    """Scalar: the share of N turns whose most likely decision is the label; going on is wrong."""
    return (_decision(policy).argmax(-1) == y_N).to(policy.message.dtype).mean()


def _decision(policy: Policy) -> Tensor:
    if policy.decision is None:
        raise ValueError("supervised learning needs an agent that decides; see `nip_ray.protocols.solo`")
    return policy.decision
