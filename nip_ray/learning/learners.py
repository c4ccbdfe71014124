"""Several processes that learn one model together, and step as one would.

Decisions that matter here:
- each has the whole model, receives the whole minibatch and computes its share (`nip_ray.learning.token_rows.shares`).
  So each knows the totals of the minibatch, by which `nip_ray.learning.token_losses.token_weights` weighs tokens, and
  gradients only have to be summed;
- the sum is bit-identical in every process, so all clip and step alike, and keep the same weights;
- a process without a share of a small minibatch takes part with zero gradients.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, distributed

from nip_ray.learning.token_losses import LossFigures


class Learners:
    """The processes of torch's default process group, including this one. rank: its number. size: their count."""

    def __init__(self) -> None:
        self.rank, self.size = distributed.get_rank(), distributed.get_world_size()
        self._device = "cuda" if distributed.get_backend() == "nccl" else "cpu"

    def add_gradients(self, parameters: Sequence[Tensor]) -> None:
        """Replace each parameter's gradient by the sum over all learners (None: zero). One message per dtype."""
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
        """The metrics of all learners together; each passes the same names."""
        sums, maxima = torch.stack([*figures.sums.values()]), torch.stack([*figures.maxima.values()])
        distributed.all_reduce(sums)
        distributed.all_reduce(maxima, distributed.ReduceOp.MAX)
        return LossFigures(dict(zip(figures.sums, sums, strict=True)), dict(zip(figures.maxima, maxima, strict=True)))
