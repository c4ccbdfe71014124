"""PPO of Stable-Baselines3 in one agent's seat, many copies at once.

    python examples/stable_baselines3_seat.py runs/first verifier

`Seats` gives `nip_ray.gymnasium.VectorSeat` the interface that Stable-Baselines3 expects of vectorised environments.
"""

import sys
from typing import Any

import numpy as np
from stable_baselines3 import PPO
from stable_baselines3.common.vec_env import VecEnv, VecMonitor

from nip_ray.gymnasium import VectorSeat


class Seats(VecEnv):
    """The copies of `seat`. Both restart a copy in the step in which it ends."""

    def __init__(self, seat: VectorSeat) -> None:
        self.seat, self.first_seed = seat, None
        super().__init__(seat.num_envs, seat.single_observation_space, seat.single_action_space)

    def seed(self, seed: int | None = None) -> list[int | None]:
        """Seed the next reset."""
        self.first_seed = seed
        return [None if seed is None else seed + i for i in range(self.num_envs)]

    def reset(self) -> dict[str, np.ndarray[Any, Any]]:
        """Begin an episode in every copy."""
        seen, _ = self.seat.reset(seed=self.first_seed)
        self.first_seed = None
        return seen

    def step_async(self, actions: np.ndarray[Any, Any]) -> None:
        """Keep the actions."""
        self.actions = actions

    def step_wait(self) -> tuple[Any, np.ndarray[Any, Any], np.ndarray[Any, Any], list[dict[str, Any]]]:
        """Play them."""
        seen, rewards, terminated, truncated, infos = self.seat.step(self.actions)
        told: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        for i in (terminated | truncated).nonzero()[0]:
            told[i] = {"terminal_observation": infos["final_obs"][i], "TimeLimit.truncated": bool(truncated[i])}
        return seen, rewards, terminated | truncated, told

    def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> list[bool]:
        """No copy is wrapped."""
        return [False] * self.num_envs

    def env_method(self, method_name: str, *args: Any, indices: Any = None, **kwargs: Any) -> list[Any]:
        """The result of a method of the seat, a row for each copy."""
        return list(getattr(self.seat, method_name)(*args, **kwargs))

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        """An attribute of the seat, for each copy."""
        return [getattr(self.seat, attr_name)] * self.num_envs

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        """Set an attribute of the seat."""
        setattr(self.seat, attr_name, value)

    def close(self) -> None:
        """Do nothing."""


def learn(run_dir: str, agent: str, num_steps: int, num_copies: int = 64, seed: int = 0) -> float:
    """The mean return of the last episodes of a learner in the seat of `agent`, after `num_steps` turns."""
    envs = VecMonitor(Seats(VectorSeat(run_dir, agent, num_envs=num_copies)))
    learner = PPO("MultiInputPolicy", envs, n_steps=16, batch_size=256, seed=seed, device="cpu")
    learner.learn(num_steps)
    assert learner.ep_info_buffer
    return float(np.mean([episode["r"] for episode in learner.ep_info_buffer]))


if __name__ == "__main__":
    print(f"mean return {learn(sys.argv[1], sys.argv[2], 40_000):.3f}")
