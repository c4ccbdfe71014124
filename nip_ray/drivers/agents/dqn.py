"""Deep Q-learning, with a target network and a replay ring.

Sources: Mnih et al., "Human-level control through deep reinforcement learning", 2015, algorithm 1; van Hasselt et al., "Deep
reinforcement learning with double Q-learning", 2016, equation 4.

Decisions that matter here:
- only a terminated transition has no value after it. A truncated one has: that of the observation it led to, which is stored with it;
- the ring holds transitions, not timesteps: steps that are none are left out.
"""

import copy
from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
import torch
from torch.nn import functional as F

from nip_ray.drivers.agents.base import BLOCK, BaseAgent, Draws, encoder, numpy_view
from nip_ray.drivers.contract import Rows, Transition, arrays
from nip_ray.drivers.networks import Plan, mlp
from nip_ray.errors import TrainingError, UserError
from nip_ray.learning.groups import FlatOptimizer, ParameterGroup, clip_gradients
from nip_ray.seeding import generator, stable_seed
from nip_ray.settings.drivers import DQNAgentSettings, NetworkSettings


class ReplayRing:
    """The newest transitions, in arrays that were made once. size: how many are stored."""

    def __init__(self, capacity: int, width: int) -> None:
        self.capacity, self.size, self._next = capacity, 0, 0
        self.arrays = {
            "observation": np.zeros((capacity, width), dtype=np.float32),
            "next_observation": np.zeros((capacity, width), dtype=np.float32),
            "action": np.zeros(capacity, dtype=np.int64),
            "reward": np.zeros(capacity, dtype=np.float32),
            "terminated": np.zeros(capacity, dtype=np.float32),
        }
        self._tensors = {name: torch.from_numpy(array) for name, array in self.arrays.items()}

    def add(self, rows: Mapping[str, np.ndarray]) -> None:
        """Store some rows, over the oldest ones where it is full; of more rows than it holds, the last ones."""
        given = len(rows["reward"])
        count = min(given, self.capacity)
        places = (self._next + np.arange(count)) % self.capacity
        for name, array in self.arrays.items():
            array[places] = rows[name][given - count :]
        self._next = (self._next + count) % self.capacity
        self.size = min(self.size + count, self.capacity)

    def sample(self, share: np.ndarray) -> dict[str, torch.Tensor]:
        """The transitions at these shares (in [0, 1)) of what is stored."""
        places = torch.from_numpy((share * self.size).astype(np.int64))
        return {name: tensor[places] for name, tensor in self._tensors.items()}

    def state_dict(self) -> dict[str, Any]:
        """What is stored."""
        return {"next": self._next, "stored": {name: array[: self.size].copy() for name, array in self.arrays.items()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The inverse of `state_dict`."""
        stored = arrays(state["stored"])
        self._next, self.size = int(state["next"]), len(stored["reward"])
        for name, array in self.arrays.items():
            array[: self.size] = stored[name]


class DQNAgent(BaseAgent):
    """A learner by DQN. Raises UserError for actions that are not Discrete and observations that are neither Box nor Discrete."""

    def __init__(
        self,
        observation_space: gymnasium.Space,
        action_space: gymnasium.Space,
        num_copies: int,
        settings: DQNAgentSettings,
        network: NetworkSettings,
        seed: int,
    ) -> None:
        super().__init__(
            observation_space, action_space, num_copies, (observation_space, action_space, num_copies, settings, network, seed)
        )
        if not isinstance(action_space, gymnasium.spaces.Discrete):
            raise UserError(f"learners: dqn needs a Discrete action space, and the environment's is a {type(action_space).__name__}")
        self.settings = settings
        width, self._encode = encoder(observation_space)
        self._num_actions, self._start = int(action_space.n), int(action_space.start)
        self.online = mlp(width, self._num_actions, network, 1.0, generator(seed, "weights"))
        self._parameters = list(self.online.parameters())
        self._optimizer = FlatOptimizer([ParameterGroup("critic", "all", self._parameters, 1.0)], settings.learning_rate)
        self.target = copy.deepcopy(self.online).requires_grad_(False)
        self._target_parameters = list(self.target.parameters())
        self._value, self._target_value = Plan(self.online, network), Plan(self.target, network)
        self.ring = ReplayRing(settings.memory_size, width)
        self.acted = self.updates = 0
        self._seed, self._explore = seed, Draws(seed, "explore", lambda random: self._draw(random, (BLOCK, num_copies)))
        self._replay = Draws(seed, "replay", lambda random: random.random((BLOCK, settings.gradient_steps, settings.batch_size)))

    def _draw(self, random: np.random.Generator, shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
        return random.random(shape), random.integers(0, self._num_actions, shape)

    def act(self, observations: Rows, timestep: int, timesteps: int, *, explore: bool = True, states: Rows | None = None) -> np.ndarray:
        """Actions, one row a copy: the best ones, or each an even draw with the probability of exploration at this timestep."""
        with torch.inference_mode():
            best = numpy_view(self._value(torch.from_numpy(self._encode(observations))).argmax(-1))
        if explore:
            evaluation = None if self.training else np.random.default_rng(stable_seed(self._seed, "evaluate", timestep))
            share, drawn = self._explore.at(self.acted) if evaluation is None else self._draw(evaluation, best.shape)
            best = np.where(share < self.exploration(timestep, timesteps), drawn, best)
        self.acted += self.training
        return best + self._start if self._start else best

    def exploration(self, timestep: int, timesteps: int) -> float:
        """The share of random actions in a timestep; outside training, that of the end."""
        setting = self.settings
        if not self.training:
            return setting.exploration_end
        if timestep < setting.random_timesteps:
            return 1.0
        done = min(1.0, timestep / (setting.exploration_fraction * timesteps))
        return setting.exploration_start + done * (setting.exploration_end - setting.exploration_start)

    def record_transition(self, transition: Transition, timestep: int, timesteps: int) -> None:
        """Store what is a transition, in training."""
        if not self.training:
            return
        rows = {
            "observation": self._encode(transition.observations),
            "next_observation": self._encode(transition.next_observations),
            "action": np.asarray(transition.actions) - self._start,
            "reward": np.asarray(transition.rewards),
            "terminated": np.asarray(transition.terminated),
        }
        self.ring.add(rows if transition.valid is None else {name: part[transition.valid] for name, part in rows.items()})

    def post_interaction(self, timestep: int, timesteps: int) -> None:
        """Learn, and move the target network, when it is time."""
        if not self.training or timestep < self.settings.learning_starts or not self.ring.size:
            return
        if timestep % self.settings.update_interval == 0:
            self.update(timestep, timesteps)
        if timestep % self.settings.target_update_interval == 0:
            with torch.no_grad():
                torch._foreach_lerp_(tuple(self._target_parameters), tuple(self._parameters), self.settings.polyak)

    def update(self, timestep: int, timesteps: int) -> None:
        """Gradient steps on draws from the ring. Raises TrainingError where the loss is not finite."""
        total = 0.0
        for share in self._replay.at(self.updates):
            batch = self.ring.sample(share)
            with torch.inference_mode():
                target = self._targets(batch)
            value = self.online(batch["observation"]).gather(-1, batch["action"][:, None]).squeeze(-1)
            loss = F.mse_loss(value, target.clone())
            self._optimizer.set_gradients(torch.autograd.grad(loss, self._parameters))
            clip_gradients([self._optimizer], self.settings.grad_norm_clip)
            self._optimizer.step()
            total += loss.item()
        self.updates += 1
        if not np.isfinite(total):
            raise TrainingError(f"the loss of DQN's update {self.updates} is not finite; a smaller learning_rate may help")
        self.track_data("value_loss", total / self.settings.gradient_steps)
        self.track_data("exploration", self.exploration(timestep, timesteps))

    def _targets(self, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """(n,): reward plus the discounted value of the best next action, by the target network."""
        after = self._target_value(batch["next_observation"])
        if self.settings.double:
            best = self._value(batch["next_observation"]).argmax(-1, keepdim=True)
            after = after.gather(-1, best).squeeze(-1)
        else:
            after = after.amax(-1)
        return batch["reward"] + self.settings.discount_factor * (1 - batch["terminated"]) * after

    def state_dict(self) -> dict[str, Any]:
        """Weights of both networks, optimizer, counters, the ring."""
        return {
            **super().state_dict(),
            "parameters": [parameter.detach().clone() for parameter in self._parameters],
            "target": [parameter.detach().clone() for parameter in self._target_parameters],
            "optimizer": self._optimizer.state_dict(),
            "acted": self.acted,
            "updates": self.updates,
            "ring": self.ring.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The inverse of `state_dict`."""
        super().load_state_dict(state)
        with torch.no_grad():
            for parameters, name in ((self._parameters, "parameters"), (self._target_parameters, "target")):
                for parameter, stored in zip(parameters, state[name], strict=True):
                    parameter.copy_(stored)
        self._optimizer.load_state_dict(state["optimizer"])
        self.acted, self.updates = int(state["acted"]), int(state["updates"])
        self.ring.load_state_dict(state["ring"])
