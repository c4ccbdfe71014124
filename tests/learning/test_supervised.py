"""The loop of gradient steps beside the engine, and minibatches, against plain torch."""

import pytest
import torch
from torch import nn

from nip_ray.learning.groups import FlatOptimizer, ParameterGroup, in_minibatches
from nip_ray.learning.supervised import fit


@pytest.mark.parametrize("max_grad_norm", [None, 0.1])
def test_fit_takes_adams_steps(max_grad_norm: float | None) -> None:
    x_NF, y_N = torch.randn(11, 3, generator=torch.Generator().manual_seed(0)), torch.arange(11.0)
    plain, flat = nn.Linear(3, 1), nn.Linear(3, 1)
    flat.load_state_dict(plain.state_dict())
    batches = in_minibatches(torch.arange(11), 4)
    ours = FlatOptimizer([ParameterGroup("critic", "all", list(flat.parameters()), 1.0)], 0.01)
    fit(lambda index: (flat(x_NF[index])[:, 0] - y_N[index]).square().mean(), ours, batches, max_grad_norm)
    adam = torch.optim.Adam(plain.parameters(), 0.01, eps=1e-5)
    for index in batches:
        adam.zero_grad()
        (plain(x_NF[index])[:, 0] - y_N[index]).square().mean().backward()
        if max_grad_norm is not None:
            nn.utils.clip_grad_norm_(plain.parameters(), max_grad_norm)
        adam.step()
    torch.testing.assert_close(list(flat.parameters()), list(plain.parameters()))


@pytest.mark.parametrize(("rows", "size", "lengths"), [(11, 4, [4, 7]), (3, 4, [3]), (8, 4, [4, 4])])
def test_a_remainder_joins_the_last(rows: int, size: int, lengths: list[int]) -> None:
    order_N = torch.randperm(rows)
    made = in_minibatches(order_N, size)
    assert [len(part) for part in made] == lengths
    assert torch.equal(torch.cat(made), order_N)
