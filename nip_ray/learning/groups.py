"""Updates of networks: parameter groups, minibatches, learning mode, and an optimizer over flat tensors.

Decisions that matter here:
- the network declares each parameter's owner (actor or critic) and learning-rate factor, tensor by tensor, not by name
  patterns;
- small networks have dozens of tensors of a few numbers: norm, clipping, all-reduce and Adam's step then cost more than
  their gradients. Concatenated they cost one kernel each. The networks' parameters stay ordinary parameters: views of
  the flat ones;
- batch norms do not change under the loss: play normalises by running statistics; with the minibatch's statistics in
  learning, probability ratios would differ from 1 before the first step.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class ParameterGroup:
    """Some parameters of one agent. part: "actor" or "critic"; name: for logs; lr_factor: of the base learning rate."""

    part: str
    name: str
    parameters: list[nn.Parameter]
    lr_factor: float


class FlatOptimizer:
    """Adam (epsilon 1e-5; Kingma and Ba, 2015), or plain gradient descent, over the groups whose factor is not 0;
    parameters of the others stop requiring gradients.

    Create it when the network is on its device: it moves the parameters' storage. parameters: the trained ones, in a
    fixed order.
    """

    def __init__(
        self,
        groups: Iterable[ParameterGroup],
        lr: float,
        plain: bool = False,
        build: Callable[[list[dict[str, Any]]], torch.optim.Optimizer] | None = None,
    ) -> None:
        """`lr`: the base learning rate, for each parameter times its group's factor. plain: gradient descent, no Adam.

        build: makes another optimizer from torch's parameter groups (one for each factor).
        """
        by_factor: dict[float, list[nn.Parameter]] = {}
        for group in groups:
            for parameter in group.parameters:
                parameter.requires_grad_(group.lr_factor > 0)
            if group.lr_factor > 0:
                by_factor.setdefault(group.lr_factor, []).extend(group.parameters)
        self.parameters = [p for parameters in by_factor.values() for p in parameters]
        self.sizes = [[p.numel() for p in parameters] for parameters in by_factor.values()]
        self.flats = [_flatten(parameters) for parameters in by_factor.values()]
        chosen = [
            {"params": [flat], "lr": lr * factor, "lr_factor": factor}
            for flat, factor in zip(self.flats, by_factor, strict=True)
        ]
        self.inner: torch.optim.Optimizer | None = None
        if chosen:  # one optimizer alone may see these groups: it writes its defaults into them
            if build is not None:
                self.inner = build(chosen)
            else:
                self.inner = torch.optim.SGD(chosen) if plain else torch.optim.Adam(chosen, eps=1e-5, fused=True)

    def set_gradients(self, gradients: Sequence[Tensor | None]) -> None:
        """Take one gradient per entry of `parameters` (None: zero)."""
        given = iter(gradients)
        for flat, sizes in zip(self.flats, self.sizes, strict=True):
            parts = [next(given) for _ in sizes]
            filled = [
                flat.new_zeros(size) if g is None else g.reshape(-1) for g, size in zip(parts, sizes, strict=True)
            ]
            flat.grad = torch.cat(filled)

    def set_learning_rate(self, lr: float) -> None:
        """Set the base learning rate."""
        if self.inner is not None:
            for group in self.inner.param_groups:
                group["lr"] = lr * group["lr_factor"]

    def step(self) -> None:
        """One step with the current gradients."""
        if self.inner is not None:
            self.inner.step()

    def state_dict(self) -> dict[str, Any]:
        """The optimizer's state, Adam's moments laid out like the flat tensors."""
        return {} if self.inner is None else self.inner.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The inverse of `state_dict`."""
        if self.inner is not None:
            self.inner.load_state_dict(dict(state))


def clip_gradients(optimizers: Iterable[FlatOptimizer], max_norm: float | None) -> Tensor:
    """Scale the optimizers' gradients in place to a joint norm of at most `max_norm` (None: unchanged); returns the
    norm before (scalar).

    A non-finite norm is returned unchanged, for one fused check by the caller.
    """
    gradients = [flat.grad for optimizer in optimizers for flat in optimizer.flats if flat.grad is not None]
    norms = [torch.linalg.vector_norm(gradient) for gradient in gradients]
    if not norms:
        return torch.zeros(())
    norm = norms[0] if len(norms) == 1 else torch.linalg.vector_norm(torch.stack(norms))
    if max_norm is not None:
        scale = (max_norm / (norm + 1e-6)).clamp(max=1.0)
        if scale.device.type == "cpu" and float(scale) == 1.0:
            return norm  # free to read there, unlike a pass over all gradients
        for gradient in gradients:
            gradient.mul_(scale)
    return norm


@torch.no_grad()
def _flatten(parameters: list[nn.Parameter]) -> nn.Parameter:
    """One tensor of all `parameters`, which become views of it."""
    flat = nn.Parameter(torch.cat([p.detach().reshape(-1) for p in parameters]))
    position = 0
    for parameter in parameters:
        parameter.data = flat.data[position : position + parameter.numel()].view_as(parameter)
        position += parameter.numel()
    return flat


def in_minibatches(order_N: Tensor, size: int) -> list[Tensor]:
    """`order_N` in pieces of `size`; a remainder joins the last."""
    count = max(1, len(order_N) // size)
    return [order_N[i * size : len(order_N) if i == count - 1 else (i + 1) * size] for i in range(count)]


def learning_mode(network: nn.Module) -> None:
    """Noise and dropout on, batch norms on their running statistics."""
    network.train()
    for module in network.modules():
        if isinstance(module, nn.BatchNorm1d):
            module.eval()


def is_frozen_norm(module: nn.Module) -> bool:
    """Return True for a batch norm that does not learn, whose running statistics stay."""
    return isinstance(module, nn.BatchNorm1d) and not module.weight.requires_grad


@torch.no_grad()
def refresh_norms(network: nn.Module, obs: Mapping[str, Tensor]) -> None:
    """Update the running statistics of trained batch norms by one pass over these observations; leaves the network in
    learning mode."""
    norms = [one for one in network.modules() if isinstance(one, nn.BatchNorm1d) and not is_frozen_norm(one)]
    if norms:
        network.eval()
        for norm in norms:
            norm.train()
        network(obs)
        learning_mode(network)
