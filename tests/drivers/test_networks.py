"""Networks without autograd against networks with it."""

import pytest
import torch

from nip_ray.drivers.networks import Pass, Plan, mlp
from nip_ray.seeding import generator
from nip_ray.settings.drivers import NetworkSettings


@pytest.mark.parametrize("activation", ["tanh", "relu"])
@pytest.mark.parametrize("hidden", [(), (7,), (8, 5, 6)])
def test_passes_by_hand_are_those_of_autograd(hidden: tuple[int, ...], activation: str) -> None:
    settings = NetworkSettings(hidden, activation)  # type: ignore[arg-type]
    network = mlp(3, 2, settings, 1.0, generator(0, "test")).double()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator(1, "test", parameter.numel()), dtype=torch.float64) / 4)
    x = torch.randn(11, 3, generator=generator(2, "test"), dtype=torch.float64)
    weight = torch.randn(11, 2, generator=generator(3, "test"), dtype=torch.float64)
    expected = network(x)
    by_hand = Pass(network, settings)
    found = by_hand.forward(x)
    assert torch.allclose(found, expected)
    assert torch.allclose(Plan(network, settings)(x.clone()), expected)
    (gradient,) = torch.autograd.grad((found.square() * weight).sum(), found)
    names = [name for name, _ in network.named_parameters()]
    wanted = torch.autograd.grad((expected.square() * weight).sum(), list(network.parameters()))
    for name, one, other in zip(names, by_hand.backward(gradient), wanted, strict=True):
        assert one.shape == other.shape, name
        assert torch.allclose(one, other), name
