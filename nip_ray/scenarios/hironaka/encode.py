"""Actions and observations as numbers: the host's subsets as classes, the agent's legal coordinates, observations.

A subset of at least two of the d coordinates is numbered by its binary value c (the sum of 2^k over its coordinates k):
its class is c - floor(log2 c) - 2, so that the 2^d - d - 1 classes are consecutive and all coordinates together are the
last one.
"""

import torch
from torch import Tensor

from nip_ray.errors import UserError
from nip_ray.settings.hironaka import MAX_DIMENSION


def num_choices(dimension: int) -> int:
    """The number of subsets that the host can choose: 2^d - d - 1. Raises UserError for a dimension out of range."""
    if not 2 <= dimension <= MAX_DIMENSION:
        raise UserError(f"dimension: got {dimension}, expected 2 to {MAX_DIMENSION}")
    return 2**dimension - dimension - 1


def choices(dimension: int) -> Tensor:
    """(K, d) bool: the coordinates of each class."""
    binary_K = torch.tensor([c for c in range(2**dimension) if c.bit_count() >= 2])
    assert len(binary_K) == num_choices(dimension)
    return bits(binary_K, dimension)


def bits(binary_N: Tensor, dimension: int) -> Tensor:
    """(N, d) bool: the coordinates of binary values."""
    return (binary_N[:, None] >> torch.arange(dimension, device=binary_N.device) & 1).bool()


def binary(choice_BD: Tensor) -> Tensor:
    """(B,) int64: the binary value of each subset."""
    return (choice_BD.long() << torch.arange(choice_BD.shape[1], device=choice_BD.device)).sum(1)


def class_of(choice_BD: Tensor) -> Tensor:
    """(B,) int64: the class of each subset, -1 where it has fewer than two coordinates."""
    axis_D = torch.arange(choice_BD.shape[1], device=choice_BD.device)
    highest_B = torch.where(choice_BD, axis_D, -1).amax(1)
    return torch.where(choice_BD.sum(1) >= 2, binary(choice_BD) - highest_B - 2, -1)


def masked(score_BK: Tensor, mask_BK: Tensor | None) -> Tensor:
    """Scores with minus infinity where the mask forbids an action; unchanged without a mask."""
    return score_BK if mask_BK is None else score_BK.masked_fill(~mask_BK, -torch.inf)
