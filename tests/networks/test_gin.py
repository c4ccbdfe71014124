"""Stacked graph networks on padded batches against a loop over networks, streams, graphs and nodes."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from nip_ray.networks.basic import FUNCTIONS
from nip_ray.networks.gin import Gin, run_gins

Batch = tuple[Tensor, Tensor, Tensor]


def gins(count: int, num_layers: int, activation: str = "tanh", features: int = 3, d: int = 4) -> list[Gin]:
    torch.manual_seed(7)
    return [Gin(features, d, 5, num_layers, activation).double() for _ in range(count)]


def graphs(streams: int, sizes: tuple[int, ...] = (5, 3, 1), nodes: int = 6, features: int = 3, seed: int = 0) -> Batch:
    """Random graphs; the last node of each is isolated, and padding holds features that must not matter."""
    random = torch.Generator().manual_seed(seed)
    x = torch.randn(streams, len(sizes), nodes, features, generator=random, dtype=torch.float64)
    adjacency = torch.zeros(len(sizes), nodes, nodes, dtype=torch.float64)
    mask = torch.zeros(len(sizes), nodes, 1, dtype=torch.float64)
    for i, size in enumerate(sizes):
        upper = torch.triu(torch.rand(size - 1, size - 1, generator=random) < 0.6, 1).double()
        adjacency[i, : size - 1, : size - 1] = upper + upper.T
        mask[i, :size] = 1
    return x, adjacency, mask


def slow(gin: Gin, x_VF: Tensor, adjacency_VV: Tensor, size: int, activation: str) -> Tensor:
    """(V, d): one graph, node by node."""
    act = FUNCTIONS[activation]
    nodes = [F.linear(x_VF[v], gin.encode.weight, gin.encode.bias) for v in range(size)]
    for first, second in gin.layers:
        nodes = [act(node) for node in nodes]
        sums = [nodes[v] + sum(nodes[u] for u in range(size) if adjacency_VV[u, v]) for v in range(size)]
        nodes = [second(act(first(s))) for s in sums]
    padding = [torch.zeros_like(nodes[0])] * (len(x_VF) - size)
    return torch.stack([*nodes, *padding])


def slow_all(made: list[Gin], batch: Batch, activation: str) -> Tensor:
    x, adjacency, mask = batch
    sizes = mask.sum((1, 2)).int().tolist()

    def stream(gin: Gin, s: int) -> Tensor:
        return torch.stack([slow(gin, x[s, m], adjacency[m], size, activation) for m, size in enumerate(sizes)])

    return torch.stack([torch.stack([stream(gin, s) for s in range(len(x))]) for gin in made])


@pytest.mark.parametrize("activation", ["tanh", "relu", "sigmoid"])
@pytest.mark.parametrize(
    ("count", "streams", "layers"), [(1, 1, 0), (2, 2, 0), (1, 1, 1), (1, 2, 2), (2, 1, 3), (3, 2, 2)]
)
def test_against_the_loop(count: int, streams: int, layers: int, activation: str) -> None:
    made, batch = gins(count, layers, activation), graphs(streams)
    found = run_gins(made, *batch)
    assert found.shape == (count, streams, 3, 6, 4)
    torch.testing.assert_close(found, slow_all(made, batch, activation))
    assert not (found * (1 - batch[2])).any()


@pytest.mark.parametrize("layers", [0, 2])
def test_stacked_equals_separate_with_gradients(layers: int) -> None:
    made, batch = gins(3, layers), graphs(2)
    weight = torch.randn(3, 2, 3, 6, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    parameters = [p for gin in made for p in gin.parameters()]
    x = batch[0].clone().requires_grad_()
    together = run_gins(made, x, *batch[1:])
    stacked = torch.autograd.grad((together * weight).sum(), [x, *parameters])
    alone = torch.stack([gin(x, *batch[1:]) for gin in made])
    torch.testing.assert_close(together, alone)
    separate = torch.autograd.grad((alone * weight).sum(), [x, *parameters])
    looped = torch.autograd.grad((slow_all(made, (x, *batch[1:]), "tanh") * weight).sum(), [x, *parameters])
    for a, b, c in zip(stacked, separate, looped):
        torch.testing.assert_close(a, b)
        torch.testing.assert_close(a, c)


def test_frozen_parameters_in_a_stack() -> None:
    made, batch = gins(2, 1), graphs(1)
    made[0].requires_grad_(False)
    run_gins(made, *batch).square().sum().backward()
    assert all(p.grad is None for p in made[0].parameters())
    alone = gins(2, 1)[1]
    run_gins([alone], *batch).square().sum().backward()
    for a, b in zip(made[1].parameters(), alone.parameters()):
        torch.testing.assert_close(a.grad, b.grad)


@pytest.mark.parametrize("layers", [0, 1])
def test_first_and_second_derivatives(layers: int) -> None:
    made = gins(2, layers, features=2, d=2)
    x, adjacency, mask = graphs(1, sizes=(3, 2), nodes=3, features=2)
    inputs = [x, *(p.detach() for gin in made for p in gin.parameters())]
    inputs = [value.clone().requires_grad_() for value in inputs]
    names = [(k, name) for k, gin in enumerate(made) for name, _ in gin.named_parameters()]

    def function(features: Tensor, *values: Tensor) -> Tensor:
        for (k, name), value in zip(names, values):
            owner, _, last = name.rpartition(".")
            module = made[k].get_submodule(owner)
            module._parameters[last] = value  # type: ignore[assignment]
        return run_gins(made, features, adjacency, mask)

    assert torch.autograd.gradcheck(function, inputs)
    assert torch.autograd.gradgradcheck(function, inputs)
