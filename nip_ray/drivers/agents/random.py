"""Uniform actions from the action space: a baseline."""

from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np

from nip_ray.drivers.agents.base import BaseAgent, encoder, legal_of
from nip_ray.drivers.contract import Rows, count_rows
from nip_ray.errors import UserError
from nip_ray.seeding import stable_seed
from nip_ray.settings.drivers import NetworkSettings, RandomAgentSettings

_COUNTED = (gymnasium.spaces.Discrete, gymnasium.spaces.MultiDiscrete, gymnasium.spaces.MultiBinary)


class RandomAgent(BaseAgent):
    """Learns nothing; its actions are random, greedy or not. Raises UserError for actions that are neither discrete nor
    a bounded Box, and for unsupported observations (`encoder`)."""

    def __init__(
        self,
        observation_space: gymnasium.Space,
        action_space: gymnasium.Space,
        num_copies: int,
        settings: RandomAgentSettings,
        network: NetworkSettings,
        seed: int,
    ) -> None:
        super().__init__(observation_space, action_space, num_copies, settings, network, seed)
        self._seed = seed
        encoder(observation_space)  # refuses unsupported spaces
        bounded = isinstance(action_space, gymnasium.spaces.Box) and action_space.is_bounded()
        if not bounded and not isinstance(action_space, _COUNTED):
            raise UserError(
                f"environment: its actions are a {type(action_space).__name__}, "
                "expected a Discrete, MultiDiscrete or MultiBinary space or a bounded Box"
            )
        self.acted = 0

    def _draw(self, random: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        space = self.action_space
        if isinstance(space, gymnasium.spaces.Discrete):
            return random.integers(int(space.start), int(space.start + space.n), shape)
        if isinstance(space, gymnasium.spaces.MultiDiscrete):
            return random.integers(space.start, space.start + space.nvec, (*shape, *space.shape)).astype(space.dtype)
        if isinstance(space, gymnasium.spaces.MultiBinary):
            return random.integers(0, 2, (*shape, *space.shape)).astype(space.dtype)
        return random.uniform(space.low, space.high, (*shape, *space.shape)).astype(space.dtype)

    def act(
        self, observations: Rows, timestep: int, timesteps: int, *, explore: bool = True, states: Rows | None = None
    ) -> np.ndarray:
        """Actions, one row per copy; of the legal ones, if the environment reports them."""
        purpose = ("act", self.acted) if self.training else ("evaluate", timestep)
        self.acted += self.training
        random = np.random.default_rng(stable_seed(self._seed, *purpose))
        if (legal := legal_of(observations)) is None or not isinstance(self.action_space, gymnasium.spaces.Discrete):
            return self._draw(random, (count_rows(observations),))
        share = random.random((len(legal), 1))
        return (legal.cumsum(-1) > share * legal.sum(-1, keepdims=True)).argmax(-1) + int(self.action_space.start)

    def state_dict(self) -> dict[str, Any]:
        """A counter."""
        return {**super().state_dict(), "acted": self.acted}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The inverse of `state_dict`."""
        super().load_state_dict(state)
        self.acted = int(state["acted"])
