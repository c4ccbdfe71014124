"""Parameter groups: factors on the learning rate, freezing, clipping, and the flat Adam against torch's own."""

import copy

import pytest
import torch
from torch import Tensor, nn

from nip_ray.learning.groups import FlatOptimizer, ParameterGroup, clip_gradients

FACTORS = (1.0, 0.5, 1.0, 3.0, 0.0)


def parameters(count: int = 5, seed: int = 0) -> list[nn.Parameter]:
    random = torch.Generator().manual_seed(seed)
    return [nn.Parameter(torch.randn(3, i + 1, generator=random)) for i in range(count)]


def groups(made: list[nn.Parameter], factors: tuple[float, ...] = FACTORS) -> list[ParameterGroup]:
    return [
        ParameterGroup("actor", f"g{i}", [p], factor) for i, (p, factor) in enumerate(zip(made, factors, strict=True))
    ]


def gradients(made: list[nn.Parameter], seed: int) -> list[Tensor]:
    random = torch.Generator().manual_seed(seed)
    return [torch.randn(p.shape, generator=random) for p in made]


def give(optimizer: FlatOptimizer, made: list[nn.Parameter], given: list[Tensor]) -> None:
    """Hand each parameter's gradient over in the optimizer's own order."""
    by_id = {id(p): g for p, g in zip(made, given, strict=True)}
    optimizer.set_gradients([by_id[id(p)] for p in optimizer.parameters])


def test_each_group_learns_at_its_own_rate_like_torchs_adam() -> None:
    ours, theirs = parameters(), parameters()
    optimizer = FlatOptimizer(groups(ours), 0.01)
    reference = torch.optim.Adam(
        [{"params": [p], "lr": 0.01 * f, "f": f} for p, f in zip(theirs, FACTORS, strict=True) if f], eps=1e-5
    )
    for step in range(6):
        if step == 3:  # annealed
            optimizer.set_learning_rate(0.002)
            for group in reference.param_groups:
                group["lr"] = 0.002 * group["f"]
        given = gradients(ours, step)
        give(optimizer, ours, given)
        for p, g in zip(theirs, given, strict=True):
            p.grad = g.clone()
        optimizer.step()
        reference.step()
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b)
    assert not torch.equal(ours[0], parameters()[0])


def test_values_stay_when_storage_moves_and_networks_stay_networks() -> None:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    other = copy.deepcopy(network)
    x = torch.randn(5, 3)
    optimizer = FlatOptimizer([ParameterGroup("actor", "all", list(network.parameters()), 1.0)], 0.01)
    assert torch.equal(network(x), other(x))
    found = torch.autograd.grad(network(x).square().sum(), optimizer.parameters)
    optimizer.set_gradients(found)
    optimizer.step()
    assert not torch.equal(network(x), other(x))
    network.load_state_dict(other.state_dict())  # writes through to the flat tensor
    assert torch.equal(network(x), other(x))
    flat = torch.cat([p.detach().reshape(-1) for p in network.parameters()])
    assert torch.equal(flat, optimizer.flats[0].detach())
    twin = copy.deepcopy(network)
    optimizer.set_gradients(found)
    optimizer.step()
    assert torch.equal(twin(x), other(x))


def test_state_goes_on_where_it_was() -> None:
    one, two = parameters(), parameters()
    first, second = FlatOptimizer(groups(one), 0.01), FlatOptimizer(groups(two), 0.5)
    for step in range(3):
        give(first, one, gradients(one, step))
        first.step()
    with torch.no_grad():
        for p, value in zip(two, one, strict=True):
            p.copy_(value)
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    for optimizer, made in ((first, one), (second, two)):
        give(optimizer, made, gradients(made, 7))
        optimizer.step()
    for a, b in zip(one, two, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("max_norm", [0.01, 1.0, 100.0, None])
@pytest.mark.parametrize("agents", [1, 3])
def test_clip_gradients_is_torchs(agents: int, max_norm: float | None) -> None:
    made = [parameters(seed=agent) for agent in range(agents)]
    optimizers = [FlatOptimizer(groups(some, (1.0, 0.5, 1.0, 3.0, 2.0)), 0.01) for some in made]
    given = [gradients(some, agent) for agent, some in enumerate(made)]
    theirs = [nn.Parameter(torch.zeros_like(g)) for some in given for g in some]
    for p, g in zip(theirs, [g for some in given for g in some], strict=True):
        p.grad = g.clone()
    for optimizer, some, grads in zip(optimizers, made, given, strict=True):
        give(optimizer, some, grads)
    expected = torch.nn.utils.clip_grad_norm_(theirs, float("inf") if max_norm is None else max_norm)
    torch.testing.assert_close(clip_gradients(optimizers, max_norm), expected)
    wanted = torch.cat([p.grad.flatten() for p in theirs if p.grad is not None]).sort().values
    found = (
        torch.cat([flat.grad for optimizer in optimizers for flat in optimizer.flats if flat.grad is not None])
        .sort()
        .values
    )
    torch.testing.assert_close(found, wanted)
