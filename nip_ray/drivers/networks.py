"""Small multi-layer perceptrons over rows of numbers."""

from typing import cast

import torch
from torch import Tensor, nn

from nip_ray.settings.drivers import NetworkSettings


class TanhNetwork(nn.Sequential):
    """Linear layers with tanh between, computed by logistic functions: tanh(x) = 2 sigmoid(2x) - 1, whose factors and offset are put into
    the weights. Torch's tanh costs about as much as all matrix products of a small network, a logistic function a tenth of that."""

    def forward(self, x: Tensor) -> Tensor:
        """(n, width in) -> (n, width out), up to rounding what the layers give one after the other."""
        first, *others = [layer for layer in self if isinstance(layer, nn.Linear)]
        if not others:
            return first(x)
        # laid out as it is multiplied, the weight of a few inputs has a gradient that costs a tenth
        x = torch.addmm(2 * first.bias, x, (2 * first.weight).t().contiguous()).sigmoid_()
        for layer in others[:-1]:
            x = nn.functional.linear(x, 4 * layer.weight, 2 * (layer.bias - layer.weight.sum(1))).sigmoid_()
        return nn.functional.linear(x, 2 * others[-1].weight, others[-1].bias - others[-1].weight.sum(1))


def mlp(width_in: int, width_out: int, settings: NetworkSettings, gain: float, generator: torch.Generator) -> nn.Sequential:
    """Linear layers with activations between; orthogonal weights (gain sqrt 2, and `gain` in the last layer), biases 0."""
    layers: list[nn.Module] = []
    width, tanh = width_in, settings.activation == "tanh"
    for hidden in settings.hidden:
        layers += [_linear(width, hidden, 2**0.5, generator), nn.Tanh() if tanh else nn.ReLU()]
        width = hidden
    kind = TanhNetwork if tanh else nn.Sequential
    return kind(*layers, _linear(width, width_out, gain, generator))


def _linear(width_in: int, width_out: int, gain: float, generator: torch.Generator) -> nn.Linear:
    made = cast(nn.Linear, nn.utils.skip_init(nn.Linear, width_in, width_out))
    nn.init.orthogonal_(made.weight, gain, generator=generator)
    nn.init.zeros_(made.bias)
    return made
