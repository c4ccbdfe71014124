"""Small multi-layer perceptrons, and ways to call and to train them without autograd that cost half of what `nn.Module` and it cost."""

from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor, nn

from nip_ray.settings.drivers import NetworkSettings

_ACTIVATIONS = {"tanh": nn.Tanh, "relu": nn.ReLU}
_DERIVE: dict[str, Callable[[Tensor, Tensor], Tensor]] = {  # from the gradient of an activation and its value
    "tanh": torch.ops.aten.tanh_backward.default,
    "relu": lambda gradient, value: torch.ops.aten.threshold_backward.default(gradient, value, 0),
}
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


class Pass:
    """Forward and backward through an `mlp` by hand: the gradients that autograd gives, at half its cost where layers are small.

    Like `Plan` it reads the parameters where they lie. A backward pass belongs to the last forward pass.
    """

    def __init__(self, network: nn.Sequential, settings: NetworkSettings) -> None:
        linear = [layer for layer in network if isinstance(layer, nn.Linear)]
        self._layers = [(layer.weight.detach(), layer.bias.detach()) for layer in linear]
        self._activate, self._derive = _IN_PLACE[settings.activation], _DERIVE[settings.activation]
        self._inputs: list[Tensor] = []  # of each layer

    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        """(n, width in) -> (n, width out), a leaf that a loss can be differentiated by."""
        self._inputs = []
        for number, (weight, bias) in enumerate(self._layers):
            self._inputs.append(x)
            x = torch.addmm(bias, x, weight.t())
            if number < len(self._layers) - 1:
                x = self._activate(x)
        return x.requires_grad_()

    @torch.no_grad()
    def backward(self, gradient: Tensor) -> list[Tensor]:
        """From the gradient of the output (n, width out) to those of the network's parameters, in their order."""
        found: list[Tensor] = []
        for number in range(len(self._layers) - 1, -1, -1):
            x = self._inputs[number]
            found += [gradient.sum(0), gradient.t() @ x]
            if number:
                gradient = self._derive(gradient @ self._layers[number][0], x)
        return found[::-1]
