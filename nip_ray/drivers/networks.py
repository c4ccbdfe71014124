"""Small multi-layer perceptrons, and a way to call them without autograd that costs half of `nn.Module`'s."""

from typing import cast

import torch
from torch import Tensor, nn

from nip_ray.settings.drivers import NetworkSettings

_ACTIVATIONS = {"tanh": nn.Tanh, "relu": nn.ReLU}
_IN_PLACE = {"tanh": torch.tanh_, "relu": torch.relu_}


def mlp(width_in: int, width_out: int, settings: NetworkSettings, gain: float, generator: torch.Generator) -> nn.Sequential:
    """Linear layers with activations between; orthogonal weights (gain sqrt 2, and `gain` in the last layer), biases 0."""
    layers: list[nn.Module] = []
    width = width_in
    for hidden in settings.hidden:
        layers += [_linear(width, hidden, 2**0.5, generator), _ACTIVATIONS[settings.activation]()]
        width = hidden
    return nn.Sequential(*layers, _linear(width, width_out, gain, generator))


def _linear(width_in: int, width_out: int, gain: float, generator: torch.Generator) -> nn.Linear:
    made = cast(nn.Linear, nn.utils.skip_init(nn.Linear, width_in, width_out))
    nn.init.orthogonal_(made.weight, gain, generator=generator)
    nn.init.zeros_(made.bias)
    return made


class Plan:
    """The layers of an `mlp`, for calls under `torch.inference_mode`. It reads the parameters where they lie: make it when they no
    longer move."""

    def __init__(self, network: nn.Sequential, settings: NetworkSettings) -> None:
        linear = [layer for layer in network if isinstance(layer, nn.Linear)]
        self._layers = [(layer.bias.detach(), layer.weight.detach().t()) for layer in linear[:-1]]
        self._last = (linear[-1].bias.detach(), linear[-1].weight.detach().t())
        self._activate = _IN_PLACE[settings.activation]

    def __call__(self, x: Tensor) -> Tensor:
        """(n, width in) -> (n, width out)."""
        for bias, weight in self._layers:
            x = self._activate(torch.addmm(bias, x, weight))
        return torch.addmm(self._last[0], x, self._last[1])
