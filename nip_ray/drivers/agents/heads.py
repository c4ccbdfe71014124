"""What a policy network's numbers mean: a categorical over actions, or a diagonal normal distribution whose deviations are parameters."""

import math
from typing import Any

import gymnasium
import numpy as np
import torch
from torch import Tensor, nn

from nip_ray.errors import UserError
from nip_ray.learning.policy import gumbel_noise

_HALF_LOG_TWO_PI = 0.5 * math.log(2 * math.pi)


class DiscreteHead:
    """Logits of n actions."""

    log_std: nn.Parameter | None = None

    def __init__(self, space: gymnasium.spaces.Discrete) -> None:
        self.width, self._start = int(space.n), int(space.start)
        self.shape, self.dtype = (), np.int64

    def noise(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        """Noise by which `sample` draws, (*shape, width)."""
        return gumbel_noise((*shape, self.width), generator)

    def sample(self, logits: Tensor, noise: Tensor | None) -> Tensor:
        """(n,) int64 by noise, or the most likely ones."""
        return (logits if noise is None else logits + noise).argmax(-1)

    def for_environment(self, action: np.ndarray) -> np.ndarray:
        """As the environment counts them."""
        return action + self._start if self._start else action

    def log_prob_and_entropy(self, logits: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """(n,) and the mean entropy (nats)."""
        log_prob = torch.log_softmax(logits, -1)
        return log_prob.gather(-1, action[:, None]).squeeze(-1), -(log_prob.exp() * log_prob).sum(-1).mean()


class NormalHead:
    """Means of k independent normal distributions; actions are clipped to their bounds on their way to the environment, not in learning."""

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
    raise UserError(f"environment: its actions are a {type(space).__name__}, expected a Discrete space or a Box of real numbers")
