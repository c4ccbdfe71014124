"""Deep Q-learning over the copies of one scope: `nip_ray.learning.dqn` and `nip_ray.learning.replay` with the interface
of an agent.

Decisions that matter here:
- only a terminated transition has no value after it. A truncated one has that of its next observation, which is stored
  with it;
- the ring holds transitions, not timesteps: steps that are not transitions are left out;
- legal actions are stored with the next observation, for its value; illegal ones are never chosen, explored or
  bootstrapped from.
"""

import copy
from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
import torch

from nip_ray.drivers.agents.base import BaseAgent, copies_of_weights, encoder, legal_of, put_weights, refuse_not_finite
from nip_ray.drivers.contract import Rows, Transition
from nip_ray.drivers.networks import mlp
from nip_ray.errors import UserError
from nip_ray.learning.dqn import epsilon_greedy, greedy, taken, td_loss, td_target, update_target
from nip_ray.learning.groups import FlatOptimizer, ParameterGroup, clip_gradients
from nip_ray.learning.replay import Field, Replay
from nip_ray.seeding import generator
from nip_ray.settings.dqn import DQNSettings
from nip_ray.settings.drivers import DQNAgentSettings, NetworkSettings


class DQNAgent(BaseAgent):
    """A DQN learner. Raises UserError for actions that are not Discrete and unsupported observations (`encoder`)."""

    def __init__(
        self,
        observation_space: gymnasium.Space,
        action_space: gymnasium.Space,
        num_copies: int,
        settings: DQNAgentSettings,
        network: NetworkSettings,
        seed: int,
    ) -> None:
        super().__init__(observation_space, action_space, num_copies, settings, network, seed)
        if not isinstance(action_space, gymnasium.spaces.Discrete):
            raise UserError(
                f"learners: dqn needs a Discrete action space, and the environment's is a {type(action_space).__name__}"
            )
        self.settings, self._seed = settings, seed
        width, self._encode = encoder(observation_space)
        self._num_actions, self._start = int(action_space.n), int(action_space.start)
        self.online = mlp(width, self._num_actions, network, 1.0, generator(seed, "weights"))
        self._parameters = list(self.online.parameters())
        self._optimizer = FlatOptimizer([ParameterGroup("critic", "all", self._parameters, 1.0)], settings.lr)
        self.target = copy.deepcopy(self.online).requires_grad_(False)
        self._rule = DQNSettings(loss=settings.loss, double=settings.double)
        self.replay = Replay(
            {
                "observation": Field((width,)),
                "next_observation": Field((width,)),
                "next_legal": Field((self._num_actions,), torch.bool),
                "action": Field((), torch.int64),
                "reward": Field(),
                "discount": Field(),
            },
            settings.memory_size,
        )
        self._all_legal = torch.ones(num_copies, self._num_actions, dtype=torch.bool)
        self.acted = self.updates = 0

    def act(
        self, observations: Rows, timestep: int, timesteps: int, *, explore: bool = True, states: Rows | None = None
    ) -> np.ndarray:
        """Actions, one row per copy: the best legal ones, or uniform ones at this timestep's exploration rate."""
        with torch.inference_mode():
            value = self.online(torch.from_numpy(self._encode(observations)))
            legal = self._legal(observations, len(value))
            if explore:
                purpose = ("explore", self.acted) if self.training else ("evaluate", timestep)
                chosen = epsilon_greedy(
                    value, legal, self.exploration(timestep, timesteps), generator(self._seed, *purpose)
                )
            else:
                chosen = greedy(value, legal)
        self.acted += self.training
        return chosen.numpy() + self._start

    def _legal(self, observations: Rows, count: int) -> torch.Tensor:
        legal = legal_of(observations)
        if legal is not None:
            return torch.from_numpy(legal)
        return self._all_legal if count == self.num_copies else self._all_legal[:1].expand(count, -1)

    def exploration(self, timestep: int, timesteps: int) -> float:
        """The share of random actions in a timestep; outside training, the final one."""
        setting = self.settings
        if not self.training:
            return setting.exploration_end
        if timestep < setting.random_timesteps:
            return 1.0
        done = min(1.0, timestep / (setting.exploration_fraction * timesteps))
        return setting.exploration_start + done * (setting.exploration_end - setting.exploration_start)

    def record_transition(self, transition: Transition, timestep: int, timesteps: int) -> None:
        """Store transitions, in training."""
        if not self.training:
            return
        ended = np.asarray(transition.terminated)
        rows = {
            "observation": torch.from_numpy(self._encode(transition.observations)),
            "next_observation": torch.from_numpy(self._encode(transition.next_observations)),
            "next_legal": self._legal(transition.next_observations, len(ended)),
            "action": torch.from_numpy(np.asarray(transition.actions) - self._start),
            "reward": torch.from_numpy(np.asarray(transition.rewards, dtype=np.float32)),
            "discount": torch.from_numpy(np.where(ended, 0.0, self.settings.gamma).astype(np.float32)),
        }
        if transition.valid is not None:
            valid = torch.from_numpy(transition.valid)
            rows = {name: part[valid] for name, part in rows.items()}
        self.replay.add(rows)

    def post_interaction(self, timestep: int, timesteps: int) -> None:
        """Learn, and move the target network, when due."""
        if not self.training or timestep < self.settings.learning_starts or not self.replay.size:
            return
        if timestep % self.settings.update_interval == 0:
            self.update(timestep, timesteps)
        if timestep % self.settings.target_update_interval == 0:
            update_target(self.target, self.online, self.settings.polyak)

    def update(self, timestep: int, timesteps: int) -> None:
        """Gradient steps on samples from the ring. Raises TrainingError if the loss is not finite."""
        draws, steps, total = generator(self._seed, "replay", self.updates), self.settings.gradient_steps, 0.0
        for _ in range(steps):
            batch = self.replay.sample(self.settings.batch_size, draws).rows
            value = taken(self.online(batch["observation"]), batch["action"])
            loss, _ = td_loss(value, self.targets(batch), self._rule)
            self._optimizer.set_gradients(torch.autograd.grad(loss, self._parameters))
            clip_gradients([self._optimizer], self.settings.max_grad_norm)
            self._optimizer.step()
            total += loss.item()
        self.updates += 1
        if not np.isfinite(total):
            kept = self.replay.state_dict()["ring"]["rows"]
            shown = torch.cat([kept["observation"], kept["next_observation"]])
            refuse_not_finite(
                f"the loss of DQN's update {self.updates}",
                total,
                observations=shown.numpy(),
                rewards=kept["reward"].numpy(),
            )
        self.track_data("value_loss", total / steps)
        self.track_data("exploration", self.exploration(timestep, timesteps))

    @torch.no_grad()
    def targets(self, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """(n,): the target values of some transitions."""
        after = batch["next_observation"]
        chooses = self.online(after) if self.settings.double else None
        return td_target(batch["reward"], batch["discount"], self.target(after), batch["next_legal"], chooses)

    def state_dict(self) -> dict[str, Any]:
        """Weights of both networks, optimizer, counters, the ring."""
        return {
            **super().state_dict(),
            "parameters": copies_of_weights(self._parameters),
            "target": copies_of_weights(self.target.parameters()),
            "optimizer": self._optimizer.state_dict(),
            "acted": self.acted,
            "updates": self.updates,
            "replay": self.replay.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The inverse of `state_dict`."""
        super().load_state_dict(state)
        put_weights(self._parameters, state["parameters"])
        put_weights(self.target.parameters(), state["target"])
        self._optimizer.load_state_dict(state["optimizer"])
        self.acted, self.updates = int(state["acted"]), int(state["updates"])
        self.replay.load_state_dict(state["replay"])
