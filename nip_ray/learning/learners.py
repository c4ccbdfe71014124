"""Several processes that learn one model together, and step as one would.

Decisions that matter here:
- each has the whole model, is given the whole minibatch and computes its share of it
  (`nip_ray.learning.token_rows.shares`). So each knows what the minibatch holds in all, by which
  `nip_ray.learning.token_losses.token_weights` weighs tokens, and the gradients only have to be added up;
- the sum is the same in every process to the last bit, so all clip alike, step alike, and keep the same weights;
- a process without a share of a small minibatch takes part with gradients of zero.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, distributed

from nip_ray.learning.token_losses import LossFigures


class Learners:
    """The processes of torch's default process group, one of which is this one. rank: which. size: how many."""

    def __init__(self) -> None:
        self.rank, self.size = distributed.get_rank(), distributed.get_world_size()
        self._device = "cuda" if distributed.get_backend() == "nccl" else "cpu"

    def add_gradients(self, parameters: Sequence[Tensor]) -> None:
        """Put the sum over all learners in the place of each parameter's gradient (none: zero). One message for each
        dtype."""
        by_dtype: dict[torch.dtype, list[Tensor]] = {}
        for parameter in parameters:
            by_dtype.setdefault(parameter.dtype, []).append(parameter)
        for same in by_dtype.values():
            flat = torch.cat([torch.zeros_like(p).flatten() if p.grad is None else p.grad.flatten() for p in same])
            distributed.all_reduce(flat)
            for parameter, piece in zip(same, flat.split([p.numel() for p in same]), strict=True):
                parameter.grad = piece.view_as(parameter)

    def add(self, value: float) -> float:
        """The sum of a number over all learners."""
        total = torch.tensor(value, dtype=torch.float64, device=self._device)
        distributed.all_reduce(total)
        return float(total)

    def join(self, figures: LossFigures) -> LossFigures:
        """The figures of all learners together; each gives the same names."""
        sums, maxima = torch.stack([*figures.sums.values()]), torch.stack([*figures.maxima.values()])
        distributed.all_reduce(sums)
        distributed.all_reduce(maxima, distributed.ReduceOp.MAX)
        return LossFigures(dict(zip(figures.sums, sums, strict=True)), dict(zip(figures.maxima, maxima, strict=True)))
