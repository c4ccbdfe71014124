"""The message game by Stable-Baselines3's PPO in one seat, the verifier's: 512 copies as one batch, the prover as
nip_ray trained it. It has no masks of actions: choices out of play do nothing."""

from typing import Any

import numpy as np
import torch
from _clock import Clock
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.torch_layers import CombinedExtractor
from stable_baselines3.common.vec_env import VecEnv, VecMonitor
from torch import nn

from nip_ray.gymnasium import VectorSeat

COPIES, ROUNDS = 512, 8


class Seats(VecEnv):
    """The copies of a seat; see examples/stable_baselines3_seat.py."""

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


class Hidden(CombinedExtractor):
    """One hidden layer for policy and value."""

    def __init__(self, observation_space: Any) -> None:
        super().__init__(observation_space)
        self.layer, self._features_dim = nn.Linear(self.features_dim, 64), 64

    def forward(self, observations: Any) -> torch.Tensor:
        """Of observations in a row."""
        return torch.tanh(self.layer(super().forward(observations)))


class Timed(BaseCallback):
    """After each rollout: the update before it has ended, too."""

    def _on_rollout_start(self) -> None:
        if self.num_timesteps:
            self.more = clock.goes_on(COPIES * ROUNDS, [one["r"] for one in self.model.ep_info_buffer or ()])

    def _on_step(self) -> bool:
        return getattr(self, "more", True)


clock = Clock("stable_baselines3", "torch", "nip_ray")
clock.door(VectorSeat, "step")
torch.set_num_threads(1)
envs = VecMonitor(Seats(VectorSeat(clock.run, "verifier", num_envs=COPIES)))
learner = PPO(
    "MultiInputPolicy", envs, n_steps=ROUNDS, batch_size=2048, n_epochs=4, learning_rate=5e-3, gamma=0.9,
    gae_lambda=0.95, ent_coef=0.001, vf_coef=1.0, max_grad_norm=1.0, seed=clock.seed, device="cpu",
    stats_window_size=COPIES,
    policy_kwargs={"net_arch": [], "features_extractor_class": Hidden, "share_features_extractor": True},
)  # fmt: skip
clock.start()
learner.learn(10**9, callback=Timed())
clock.show()
