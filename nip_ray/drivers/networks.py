"""Small multi-layer perceptrons, and policy heads: a categorical over actions, or a normal distribution."""

import math
from typing import Any, cast

import gymnasium
import numpy as np
import torch
from torch import Tensor, nn

from nip_ray.errors import UserError
from nip_ray.learning.policy import gumbel_noise
from nip_ray.settings.drivers import NetworkSettings


class TanhNetwork(nn.Sequential):
    """Linear layers with tanh between, computed by logistic functions: tanh(x) = 2 sigmoid(2x) - 1, with factors and
    offset folded into the weights. Torch's tanh costs about as much as all matrix products of a small network, a
    logistic function a tenth of that."""

    def forward(self, x: Tensor) -> Tensor:
        """(n, width in) -> (n, width out), equal to the sequence of layers up to rounding."""
        first, *others = [layer for layer in self if isinstance(layer, nn.Linear)]
        if not others:
            return first(x)
        # stored as multiplied: the weight of a few inputs has a gradient that costs a tenth
        x = torch.addmm(2 * first.bias, x, (2 * first.weight).t().contiguous()).sigmoid_()
        for layer in others[:-1]:
            x = nn.functional.linear(x, 4 * layer.weight, 2 * (layer.bias - layer.weight.sum(1))).sigmoid_()
        return nn.functional.linear(x, 2 * others[-1].weight, others[-1].bias - others[-1].weight.sum(1))


def mlp(
    width_in: int, width_out: int, settings: NetworkSettings, gain: float, generator: torch.Generator
) -> nn.Sequential:
    """Linear layers with activations between; orthogonal weights (gain sqrt 2; last layer: `gain`), zero biases."""
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


_HALF_LOG_TWO_PI = 0.5 * math.log(2 * math.pi)


class DiscreteHead:
    """Logits of n actions."""

    log_std: nn.Parameter | None = None

    def __init__(self, space: gymnasium.spaces.Discrete) -> None:
        self.width, self._start = int(space.n), int(space.start)
        self.shape, self.dtype = (), np.int64

    def noise(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        """Noise for `sample`, (*shape, width)."""
        return gumbel_noise((*shape, self.width), generator)

    def sample(self, logits: Tensor, noise: Tensor | None) -> Tensor:
        """(n,) int64 by noise, or the most likely ones."""
        return (logits if noise is None else logits + noise).argmax(-1)

    def for_environment(self, action: np.ndarray) -> np.ndarray:
        """In the environment's numbering."""
        return action + self._start if self._start else action

    def log_prob_and_entropy(self, logits: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """(n,) and the mean entropy (nats)."""
        log_prob = torch.log_softmax(logits, -1)
        return log_prob.gather(-1, action[:, None]).squeeze(-1), -(log_prob.exp() * log_prob).sum(-1).mean()


class NormalHead:
    """Means of k independent normal distributions; actions are clipped for the environment, not in learning."""

    def __init__(self, space: gymnasium.spaces.Box) -> None:
        self.shape, self.dtype = space.shape, np.float32
        self.width = int(np.prod(space.shape))
        self._low, self._high, self._dtype = space.low, space.high, space.dtype
        self.log_std = nn.Parameter(torch.zeros(self.width))

    def noise(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        """Standard normal, (*shape, width)."""
        return torch.randn((*shape, self.width), generator=generator)

    def sample(self, mean: Tensor, noise: Tensor | None) -> Tensor:
        """(n, *shape) by noise, or the means."""
        drawn = mean if noise is None else torch.addcmul(mean, noise, self.log_std.exp())
        return drawn.reshape(len(mean), *self.shape)

    def for_environment(self, action: np.ndarray) -> np.ndarray:
        """Within the bounds, in the space's type."""
        return np.clip(action, self._low, self._high).astype(self._dtype, copy=False)

    def log_prob_and_entropy(self, mean: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """(n,) and the entropy (nats)."""
        scaled = (action.reshape(len(mean), -1) - mean) * (-self.log_std).exp()
        log_prob = (-0.5 * scaled.square() - self.log_std - _HALF_LOG_TWO_PI).sum(-1)
        return log_prob, (self.log_std + 0.5 + _HALF_LOG_TWO_PI).sum()


def head_for(space: Any) -> DiscreteHead | NormalHead:
    """The head for an action space. Raises UserError for one that is neither Discrete nor Box."""
    if isinstance(space, gymnasium.spaces.Discrete):
        return DiscreteHead(space)
    if isinstance(space, gymnasium.spaces.Box) and np.issubdtype(space.dtype or float, np.floating):
        return NormalHead(space)
    raise UserError(
        f"environment: its actions are a {type(space).__name__}, expected a Discrete space or a Box of real numbers"
    )
