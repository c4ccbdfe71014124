"""Networks of drivers against the layers that they consist of."""

import pytest
import torch
from torch import nn

from nip_ray.drivers.networks import mlp
from nip_ray.seeding import generator
from nip_ray.settings.drivers import NetworkSettings


@pytest.mark.parametrize("activation", ["tanh", "relu"])
@pytest.mark.parametrize("hidden", [(), (7,), (8, 5, 6)])
def test_a_network_and_its_gradients_are_those_of_its_layers(hidden: tuple[int, ...], activation: str) -> None:
    network = mlp(3, 2, NetworkSettings(hidden, activation), 1.0, generator(0, "test")).double()  # type: ignore[arg-type]
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator(1, "test", parameter.numel()), dtype=torch.float64) / 4)
    x = 3 * torch.randn(11, 3, generator=generator(2, "test"), dtype=torch.float64)
    found, expected = network(x), nn.Sequential.forward(network, x)
    torch.testing.assert_close(found, expected)
    pairs = [torch.autograd.grad(output.square().sum(), list(network.parameters())) for output in (found, expected)]
    torch.testing.assert_close(*pairs)
