"""Transitions for a replay buffer from episodes: own turns, and returns over n of them.

Decisions that matter here:
- a transition goes from one of an agent's turns to its next: its reward is the sum in between, discounted per round,
  and its discount is gamma^(rounds between). The discount is 0 if the episode ended, and stays if play was merely cut
  off;
- transitions follow each other by index, so that episodes of any length fit in one batch without padding. A transition
  without a successor ends there, by an end or by a cut; n-step returns never reach across;
- only whole episodes, or pieces with a last observation, are accepted. A return at the cut is over fewer than n turns,
  not a wrong one.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Transitions:
    """N transitions of one agent, a row for each of its turns, copy by copy and round by round.

    copy_N, round_N: the place. reward_N: until the next own turn, discounted. discount_N: of the value there, 0 after
    an end. next_N: the row of the next own turn in the same copy, -1 for none.
    """

    copy_N: Tensor
    round_N: Tensor
    reward_N: Tensor
    discount_N: Tensor
    next_N: Tensor


@dataclass(frozen=True)
class NStep:
    """Returns over up to n transitions from each. reward_N: discounted sum. discount_N: of the value after the last.

    last_N: the last transition, whose next observation has the value.
    """

    reward_N: Tensor
    discount_N: Tensor
    last_N: Tensor


def own_transitions(
    reward_BR: Tensor, turn_BR: Tensor, length_B: Tensor, terminated_B: Tensor, gamma: float
) -> Transitions:
    """An agent's transitions in B episodes of at most R rounds.

    reward_BR: its reward in each round (zero after the end); rewards before its first turn are ignored. turn_BR: bool,
    its turns. length_B: int64, rounds played. terminated_B: bool, the episode ended; otherwise it was cut off, and the
    discount of the last turn reaches to the observation after the last round.
    """
    paid_BR = torch.zeros_like(reward_BR)
    paid_B = torch.zeros_like(reward_BR[:, 0])
    for r in range(reward_BR.shape[1] - 1, -1, -1):
        paid_B = reward_BR[:, r] + gamma * paid_B
        paid_BR[:, r] = paid_B
        paid_B = torch.where(turn_BR[:, r], 0.0, paid_B)
    copy_N, round_N = turn_BR.nonzero(as_tuple=True)
    rows_N = torch.arange(len(copy_N), device=copy_N.device)
    follower_N = (rows_N + 1).clamp(max=max(0, len(copy_N) - 1))
    followed_N = (follower_N > rows_N) & (copy_N[follower_N] == copy_N)
    until_N = torch.where(followed_N, round_N[follower_N], length_B[copy_N])
    discount_N = torch.full_like(paid_BR[copy_N, round_N], gamma) ** (until_N - round_N)
    discount_N = torch.where(terminated_B[copy_N] & ~followed_N, 0.0, discount_N)
    return Transitions(copy_N, round_N, paid_BR[copy_N, round_N], discount_N, torch.where(followed_N, follower_N, -1))


def n_step(reward_N: Tensor, discount_N: Tensor, next_N: Tensor, n: int) -> NStep:
    """Returns of n transitions, fewer if an episode ends or is cut off before (Sutton and Barto, 2018, equation 7.1).

    R = r_1 + d_1 r_2 + ... + (d_1 ... d_{m-1}) r_m, followed by (d_1 ... d_m) times the value after the m-th.
    discount_N: 0 if the episode ended. next_N: int64, the row that follows in the same episode, -1 for none. Raises
    ValueError for n < 1.
    """
    if n < 1:
        raise ValueError(f"n: got {n}, expected at least 1")
    last_N = torch.arange(len(next_N), device=next_N.device)
    total_N, running_N = reward_N, discount_N
    for _ in range(n - 1):
        after_N = next_N[last_N]
        goes_on_N = after_N >= 0
        place_N = after_N.clamp_min(0)
        total_N = torch.where(goes_on_N, total_N + running_N * reward_N[place_N], total_N)
        running_N = torch.where(goes_on_N, running_N * discount_N[place_N], running_N)
        last_N = torch.where(goes_on_N, after_N, last_N)
    return NStep(total_N, running_N, last_N)


def n_step_rows(rows: Mapping[str, Tensor], next_N: Tensor, n: int) -> dict[str, Tensor]:
    """Rows for a replay buffer, with returns over n transitions in place of single ones.

    rows: N rows of every field, "reward" and "discount" among them; fields named "next_..." describe the state after a
    transition and are taken from the last of the n. Raises ValueError for n < 1.
    """
    found = n_step(rows["reward"], rows["discount"], next_N, n)
    made = {name: value[found.last_N] if name.startswith("next_") else value for name, value in rows.items()}
    return {**made, "reward": found.reward_N, "discount": found.discount_N}
