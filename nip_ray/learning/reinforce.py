"""REINFORCE: the loss.

Source: Williams, "Simple statistical gradient-following algorithms for connectionist reinforcement learning", 1992, equation 4.
"""

import torch
from torch import Tensor


def score_loss(log_prob_N: Tensor, old_log_prob_N: Tensor, weight_N: Tensor, max_importance_weight: float | None) -> Tensor:
    """-mean rho * log pi * weight over N turns, a scalar whose gradient is minus the policy gradient.

    weight_N: reward to go or advantage. rho is the ratio of the policy that learns to the one that played, at most
    `max_importance_weight` and without a gradient; it is 1 in the first step on a rollout and left out where that is None.
    """
    score_N = log_prob_N * weight_N
    if max_importance_weight is not None:
        with torch.no_grad():
            ratio_N = (log_prob_N - old_log_prob_N).clamp(max=20.0).exp().clamp(max=max_importance_weight)
        score_N = score_N * ratio_N
    return -score_N.mean()
