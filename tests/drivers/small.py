"""Small real environments and agents for the tests of drivers."""

from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from nip_ray.drivers.agents import make_agent
from nip_ray.drivers.agents.base import BaseAgent
from nip_ray.drivers.contract import resolve_scopes
from nip_ray.settings.drivers import (
    DQNAgentSettings,
    DriverSettings,
    EnvironmentSettings,
    LearnerSettings,
    PPOAgentSettings,
    RandomAgentSettings,
)

PPO = LearnerSettings(algorithm=PPOAgentSettings(rollouts=8, num_epochs=2))
DQN = LearnerSettings(algorithm=DQNAgentSettings(memory_size=200, batch_size=16, learning_starts=5))
RANDOM = LearnerSettings(algorithm=RandomAgentSettings())
CARTPOLE = EnvironmentSettings(num_copies=6)


def quiet(timesteps: int, **options: Any) -> DriverSettings:
    return DriverSettings(timesteps=timesteps, progress_bar=False, **options)


def spaces(name: str = "CartPole-v1") -> tuple[Any, Any]:
    """Of one copy."""
    env = gymnasium.make(name)
    found = env.observation_space, env.action_space
    env.close()
    return found


def agents(
    *learners: LearnerSettings, copies: int = 6, sizes: list[int] | None = None, env: str = "CartPole-v1", seed: int = 3
) -> list[Any]:
    scopes = resolve_scopes(copies, len(learners), sizes)
    pairs = zip(learners, scopes, strict=True)
    return [
        make_agent(one, *spaces(env), stop - start, seed, place) for place, (one, (start, stop)) in enumerate(pairs)
    ]


def same(a: Any, b: Any) -> bool:
    """Whether two nested states are equal to the last bit."""
    if isinstance(a, Mapping):
        return isinstance(b, Mapping) and a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(same(one, other) for one, other in zip(a, b, strict=True))
    if isinstance(a, torch.Tensor | np.ndarray):
        return np.array_equal(np.asarray(a), np.asarray(b))
    return bool(a == b)


class Counting(gymnasium.Env):
    """Shows (episode, step); episode e lasts 2 + (e + offset) % 3 steps, its ends take turns at being terminal and
    truncated; pays the number of the step."""

    observation_space = gymnasium.spaces.Box(-1e6, 1e6, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, offset: int) -> None:
        self.offset, self.episode, self.count = offset, -1, 0

    def _seen(self) -> np.ndarray:
        return np.array([self.episode, self.count], dtype=np.float32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.episode, self.count = self.episode + 1, 0
        return self._seen(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.count += 1
        over = self.count == 2 + (self.episode + self.offset) % 3
        terminal = self.episode % 2 == 0
        return self._seen(), float(self.count), over and terminal, over and not terminal, {}


def counting(copies: int, mode: str = "next_step") -> SyncVectorEnv:
    """Copies of `Counting`, out of step with each other."""
    return SyncVectorEnv(
        [lambda offset=offset: Counting(offset) for offset in range(copies)], autoreset_mode=AutoresetMode[mode.upper()]
    )


class Recorder(BaseAgent):
    """Writes down every call in a list that it shares with others, and every transition."""

    def __init__(self, name: str, calls: list[str], num_copies: int) -> None:
        super().__init__(*spaces(), num_copies, ())
        self.name, self.calls, self.seen, self.explored = name, calls, [], []

    def begin(self) -> None:
        self.calls.append(f"{self.name}.begin")

    def enable_training_mode(self, enabled: bool) -> None:
        super().enable_training_mode(enabled)
        self.calls.append(f"{self.name}.training={enabled}")

    def pre_interaction(self, timestep: int, timesteps: int) -> None:
        self.calls.append(f"{self.name}.pre {timestep}/{timesteps}")

    def act(
        self, observations: Any, timestep: int, timesteps: int, *, explore: bool = True, states: Any = None
    ) -> np.ndarray:
        self.calls.append(f"{self.name}.act {timestep}")
        self.explored.append(explore)
        assert len(observations) == self.num_copies
        return np.zeros(self.num_copies, dtype=np.int64)

    def record_transition(self, transition: Any, timestep: int, timesteps: int) -> None:
        self.calls.append(f"{self.name}.record {timestep}")
        self.seen.append(transition)

    def track_data(self, tag: str, value: float) -> None:
        super().track_data(tag, value)
        self.calls.append(f"{self.name}.track {tag}")

    def post_interaction(self, timestep: int, timesteps: int) -> None:
        self.calls.append(f"{self.name}.post {timestep}")


class Watched:
    """A vector environment that writes down its own calls, and puts single numbers into its infos."""

    def __init__(self, env: Any, calls: list[str]) -> None:
        self.env, self.calls, self.num_envs, self.metadata = env, calls, env.num_envs, env.metadata

    def reset(self, **options: Any) -> Any:
        self.calls.append("env.reset")
        return self.env.reset(**options)

    def step(self, actions: Any) -> Any:
        self.calls.append("env.step")
        *rest, _ = self.env.step(actions)
        return *rest, {"episode": {"speed": np.array([2.5]), "a/b": 1, "each": np.zeros(self.num_envs)}}

    def render(self) -> None:
        self.calls.append("env.render")

    def close(self) -> None:
        self.calls.append("env.close")
        self.env.close()
