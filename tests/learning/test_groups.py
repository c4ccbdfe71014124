"""Parameter groups: factors on the learning rate, freezing, clipping."""

import pytest
import torch
from torch import nn

from nip_ray.learning.groups import ParameterGroup, clip_gradients, make_optimizer, set_learning_rate


def parameters(count: int, seed: int = 0) -> list[nn.Parameter]:
    random = torch.Generator().manual_seed(seed)
    return [nn.Parameter(torch.randn(3, i + 1, generator=random)) for i in range(count)]


def test_each_group_learns_at_its_own_rate() -> None:
    made = parameters(3)
    groups = [ParameterGroup("actor", f"g{i}", [p], factor) for i, (p, factor) in enumerate(zip(made, (1.0, 0.5, 3.0)))]
    optimizer = make_optimizer(groups, 0.01)
    assert optimizer is not None
    assert [group["lr"] for group in optimizer.param_groups] == pytest.approx([0.01, 0.005, 0.03])
    set_learning_rate(optimizer, 0.1)
    assert [group["lr"] for group in optimizer.param_groups] == pytest.approx([0.1, 0.05, 0.3])
    before = [p.detach().clone() for p in made]
    for p in made:
        p.grad = torch.ones_like(p)
    optimizer.step()
    for p, old, step in zip(made, before, (0.1, 0.05, 0.3)):  # Adam's first step is lr * g / (|g| + eps)
        torch.testing.assert_close(old - p.detach(), torch.full_like(old, step / (1 + 1e-5)), rtol=1e-4, atol=1e-6)


def test_factor_zero_freezes_and_is_undone_by_another_factor() -> None:
    made = parameters(2)
    optimizer = make_optimizer([ParameterGroup("actor", "a", made[:1], 0.0), ParameterGroup("critic", "b", made[1:], 1.0)], 0.01)
    assert optimizer is not None
    assert [p.requires_grad for p in made] == [False, True]
    assert [p for group in optimizer.param_groups for p in group["params"]] == made[1:]
    frozen = made[0].detach().clone()
    (made[0].sum() * made[1].sum()).backward()
    assert made[0].grad is None
    optimizer.step()
    assert torch.equal(made[0], frozen)
    make_optimizer([ParameterGroup("actor", "a", made[:1], 1.0)], 0.01)
    assert made[0].requires_grad


def test_nothing_to_train() -> None:
    assert make_optimizer([], 0.01) is None
    assert make_optimizer([ParameterGroup("actor", "a", parameters(2), 0.0), ParameterGroup("actor", "b", [], 1.0)], 0.01) is None


@pytest.mark.parametrize("max_norm", [0.01, 1.0, 100.0])
def test_clip_gradients_is_torchs(max_norm: float) -> None:
    ours, theirs = parameters(4), parameters(4)
    for i, (a, b) in enumerate(zip(ours, theirs)):
        if i != 2:  # one has no gradient
            a.grad = torch.randn(a.shape, generator=torch.Generator().manual_seed(i))
            b.grad = a.grad.clone()
    expected = torch.nn.utils.clip_grad_norm_(theirs, max_norm)
    torch.testing.assert_close(clip_gradients(ours, max_norm), expected)
    for a, b in zip(ours, theirs):
        torch.testing.assert_close(a.grad, b.grad)


def test_no_clipping() -> None:
    made = parameters(2)
    for p in made:
        p.grad = torch.full_like(p, 7.0)
    assert float(clip_gradients(made, None)) == pytest.approx(7 * 9**0.5)
    assert all(bool((p.grad == 7).all()) for p in made if p.grad is not None)
    assert float(clip_gradients(parameters(2), 1.0)) == 0.0


def test_a_norm_that_is_not_finite_is_returned() -> None:
    made = parameters(1)
    made[0].grad = torch.full_like(made[0], float("nan"))
    assert not bool(clip_gradients(made, 1.0).isfinite())
