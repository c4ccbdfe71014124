"""Explicit parameter groups: which parameters the actor and the critic own, and their learning-rate factors."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class ParameterGroup:
    """Some parameters of one agent. part: "actor" or "critic"; name: for logs; lr_factor: multiplies the base learning rate."""

    part: str
    name: str
    parameters: list[nn.Parameter]
    lr_factor: float


def make_optimizer(groups: Iterable[ParameterGroup], lr: float) -> torch.optim.Optimizer | None:
    """Adam (epsilon 1e-5) over the groups whose factor is not 0; parameters of the others stop requiring gradients.

    Returns None when nothing is left to train. Each group keeps its factor, so that `set_learning_rate` can anneal.
    """
    chosen = []
    for group in groups:
        trained = group.lr_factor > 0
        for parameter in group.parameters:
            parameter.requires_grad_(trained)
        if trained and group.parameters:
            name = f"{group.part}/{group.name}"
            chosen.append({"params": group.parameters, "lr": lr * group.lr_factor, "lr_factor": group.lr_factor, "name": name})
    return torch.optim.Adam(chosen, lr=lr, eps=1e-5, fused=True) if chosen else None


def set_learning_rate(optimizer: torch.optim.Optimizer, lr: float) -> None:
    """Set the base learning rate; each group's own is that times its factor."""
    for group in optimizer.param_groups:
        group["lr"] = lr * group["lr_factor"]


def clip_gradients(parameters: list[nn.Parameter], max_norm: float | None) -> Tensor:
    """Scale the gradients in place to a global norm of at most `max_norm` (None: leave them) and return the norm before (scalar).

    A norm that is not finite is returned as it is, for one fused check by the caller.
    """
    gradients = [p.grad for p in parameters if p.grad is not None]
    if not gradients:
        return torch.zeros(())
    norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
    if max_norm is not None:
        torch._foreach_mul_(gradients, (max_norm / (norm + 1e-6)).clamp(max=1.0))
    return norm
