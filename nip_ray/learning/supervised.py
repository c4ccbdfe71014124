"""A gradient loop on one optimizer, for learning outside the engine: pretraining, message regression, attackers."""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from nip_ray.learning.groups import FlatOptimizer, clip_gradients


def fit(
    loss: Callable[[Tensor], Tensor],
    optimizer: FlatOptimizer,
    batches: Iterable[Tensor],
    max_grad_norm: float | None = None,
) -> None:
    """One step along the gradient of `loss` (a scalar) for each of the batches, which hold indices of rows.

    max_grad_norm: of each step (None: no clipping).
    """
    for index_N in batches:
        optimizer.set_gradients(torch.autograd.grad(loss(index_N), optimizer.parameters, allow_unused=True))
        clip_gradients([optimizer], max_grad_norm)
        optimizer.step()
