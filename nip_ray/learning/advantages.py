"""Advantages over an agent's own turns, for complete episodes and for stretches of steps in which episodes end.

An agent's transition goes from one of its turns to its next. Its reward is all it was paid in between, discounted per round; its
bootstrap factor is gamma^(rounds between); the end of the episode cuts both. When the agent acts in every round this is generalised
advantage estimation (Schulman et al., "High-dimensional continuous control using generalized advantage estimation", 2016,
equation 16). One factor lambda is applied per own turn.
"""

import torch
from torch import Tensor


def own_turn_advantages(reward_BR: Tensor, value_BR: Tensor, turn_BR: Tensor, gamma: float | Tensor, lam: float) -> tuple[Tensor, Tensor]:
    """(advantage_BR, target_BR) of one agent in B complete episodes of R rounds.

    reward_BR: what it was paid in each round (zero after the end). value_BR: its value estimate before acting, read only at its
    turns. turn_BR: bool, its turns (none after the end). Both results are zero outside its turns; target = advantage + value.

    gamma: discount per round. Where a row is a stretch in which episodes end, a tensor (B, R) that is 0 in each episode's last round; where
    one is cut off instead of ending, the reward of that round includes the discounted value of what it led to.
    """
    discounts = gamma.unbind(1) if isinstance(gamma, Tensor) else [gamma] * reward_BR.shape[1]
    rewards, values, turns = reward_BR.unbind(1), value_BR.unbind(1), turn_BR.unbind(1)
    advantage_BR = torch.zeros_like(reward_BR)
    zero_B = torch.zeros_like(reward_BR[:, 0])
    paid_B, bootstrap_B, next_value_B, next_advantage_B = zero_B, zero_B, zero_B, zero_B
    one_B = torch.ones_like(zero_B)
    for r in range(reward_BR.shape[1] - 1, -1, -1):
        turn_B, value_B = turns[r], values[r]
        paid_B = rewards[r] + discounts[r] * paid_B
        bootstrap_B = discounts[r] * bootstrap_B
        here_B = paid_B + bootstrap_B * next_value_B - value_B + lam * bootstrap_B * next_advantage_B
        advantage_BR[:, r] = torch.where(turn_B, here_B, zero_B)
        paid_B = torch.where(turn_B, zero_B, paid_B)
        bootstrap_B = torch.where(turn_B, one_B, bootstrap_B)
        next_value_B = torch.where(turn_B, value_B, next_value_B)
        next_advantage_B = torch.where(turn_B, here_B, next_advantage_B)
    return advantage_BR, torch.where(turn_BR, advantage_BR + value_BR, zero_B[:, None])


def returns_to_go(reward_BR: Tensor, gamma: float) -> Tensor:
    """(B, R): discounted reward from each round to the end of the episode."""
    result_BR = torch.zeros_like(reward_BR)
    running_B = torch.zeros_like(reward_BR[:, 0])
    for r in range(reward_BR.shape[1] - 1, -1, -1):
        running_B = reward_BR[:, r] + gamma * running_B
        result_BR[:, r] = running_B
    return result_BR


def normalise(advantage_N: Tensor, weight_N: Tensor | None = None) -> Tensor:
    """(A - mean) / max(std, 1e-6); `weight_N` (0 or 1) marks the rows that count. One row alone is left as it is."""
    if weight_N is None:
        if advantage_N.numel() < 2:
            return advantage_N
        return (advantage_N - advantage_N.mean()) / advantage_N.std(unbiased=False).clamp_min(1e-6)
    count = weight_N.sum()
    mean = (advantage_N * weight_N).sum() / count.clamp_min(1)
    variance = ((advantage_N - mean).square() * weight_N).sum() / count.clamp_min(1)
    scaled = (advantage_N - mean) / variance.sqrt().clamp_min(1e-6)
    return torch.where(count > 1, scaled, advantage_N)
