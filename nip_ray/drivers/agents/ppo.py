"""Proximal policy optimisation over the copies of one scope, for discrete and continuous actions.

Source: Schulman et al., "Proximal policy optimization algorithms", 2017, equations 7 and 9; the losses are those of `nip_ray.learning.ppo`.

Decisions that matter here:
- acting needs the policy alone: values and old log-probabilities of all transitions are computed at once when it is time to learn, by the
  very weights that acted. A timestep then costs one small chain of calls;
- a terminated episode has no value after its end, a truncated one has that of the observation it led to, and so has the last step of a
  stretch. Steps that are no transitions are neither learned from nor bridged;
- illegal actions have probability 0 in play and in learning, so that ratios and entropies are about legal ones;
- a pass shuffles all transitions anew. Advantages are normalised over the whole stretch.
"""

from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
import torch
from torch import Tensor

from nip_ray.drivers.agents.base import BaseAgent, encoder, legal_of, numpy_view
from nip_ray.drivers.agents.gae import advantages
from nip_ray.drivers.agents.heads import allowed, head_for
from nip_ray.drivers.contract import Rows, Transition, arrays
from nip_ray.drivers.networks import Pass, Plan, mlp
from nip_ray.errors import TrainingError
from nip_ray.learning.advantages import normalise
from nip_ray.learning.groups import FlatOptimizer, ParameterGroup, clip_gradients
from nip_ray.learning.ppo import critic, next_lr, objective
from nip_ray.seeding import generator
from nip_ray.settings.drivers import NetworkSettings, PPOAgentSettings
from nip_ray.settings.ppo import PPOSettings


class PPOAgent(BaseAgent):
    """A learner by PPO. Spaces are those of one copy; the seed is its own.

    Raises UserError for observations that are neither Box nor Discrete, and actions that are neither Discrete nor a bounded Box.
    """

    def __init__(
        self,
        observation_space: gymnasium.Space,
        action_space: gymnasium.Space,
        num_copies: int,
        settings: PPOAgentSettings,
        network: NetworkSettings,
        seed: int,
    ) -> None:
        super().__init__(
            observation_space, action_space, num_copies, (observation_space, action_space, num_copies, settings, network, seed)
        )
        self.settings, self._seed = settings, seed
        width, self._encode = encoder(observation_space)
        self._head = head_for(action_space)
        weights = generator(seed, "weights")
        self.policy = mlp(width, self._head.width, network, 0.01, weights)
        self.value = mlp(width, 1, network, 1.0, weights)
        self._parameters = [*self.policy.parameters(), *self.value.parameters(), *self._head.parameters]
        self._optimizer = FlatOptimizer([ParameterGroup("actor", "all", self._parameters, 1.0)], settings.lr)
        self._act, self._judge = Plan(self.policy, network), Plan(self.value, network)
        self._policy_pass, self._value_pass = Pass(self.policy, network), Pass(self.value, network)
        self._losses = PPOSettings(
            clip_epsilon=settings.clip_epsilon,
            clip_value=False if settings.clip_value is None else settings.clip_value,
            critic_loss="l2",
            kl_target=settings.kl_target or 0.01,
        )
        self._one = torch.ones(())
        self.learning_rate, self.updates, self._filled = settings.lr, 0, 0
        self._buffers = self._new_buffers(width)
        self._noise: np.ndarray | None = None
        self._raw: np.ndarray | None = None

    def _new_buffers(self, width: int) -> dict[str, np.ndarray]:
        shape = (self.settings.rollouts, self.num_copies)
        return {
            "observation": np.zeros((*shape, width), dtype=np.float32),
            "next_observation": np.zeros((*shape, width), dtype=np.float32),
            "action": np.zeros((*shape, *self._head.shape), dtype=self._head.dtype),
            "reward": np.zeros(shape, dtype=np.float32),
            "terminated": np.zeros(shape, dtype=bool),
            "truncated": np.zeros(shape, dtype=bool),
            "valid": np.zeros(shape, dtype=bool),
        }

    @property
    def _legal(self) -> np.ndarray | None:
        return self._buffers.get("legal")

    def _keep_legal(self, num_actions: int) -> None:
        """Keep what was legal from now on: the first observation with a mask says that there are such."""
        self._buffers["legal"] = np.ones((self.settings.rollouts, self.num_copies, num_actions), dtype=bool)

    # ------------------------------------------------------------------------------------------------------- acting

    def act(self, observations: Rows, timestep: int, timesteps: int, *, explore: bool = True, states: Rows | None = None) -> np.ndarray:
        """Actions, one row a copy, as the environment takes them; legal ones, where it tells."""
        legal = legal_of(observations)
        if legal is not None and self._legal is None:
            self._keep_legal(legal.shape[-1])
        with torch.inference_mode():
            logits = self._act(torch.from_numpy(self._encode(observations)))
            if legal is not None:
                logits = allowed(logits, torch.from_numpy(legal))
            noise = self._noise_of(timestep, len(logits)) if explore else None
            self._raw = numpy_view(self._head.sample(logits, noise))
        return self._head.for_environment(self._raw)

    def _noise_of(self, timestep: int, num_copies: int) -> Tensor:
        if not self.training or num_copies != self.num_copies:
            return self._head.noise((num_copies,), generator(self._seed, "evaluate", timestep))
        if self._noise is None:
            shape = (self.settings.rollouts, num_copies)
            self._noise = self._head.noise(shape, generator(self._seed, "act", self.updates)).numpy()
        return torch.from_numpy(self._noise[self._filled])

    def begin(self) -> None:
        """The episodes in flight count as truncated where they stand."""
        if self._filled:
            last = self._filled - 1
            self._buffers["truncated"][last] |= ~self._buffers["terminated"][last]

    def record_transition(self, transition: Transition, timestep: int, timesteps: int) -> None:
        """Store it, in training."""
        if not self.training:
            return
        at, buffers = self._filled, self._buffers
        buffers["observation"][at] = self._encode(transition.observations)
        buffers["next_observation"][at] = self._encode(transition.next_observations)
        buffers["action"][at] = self._raw
        buffers["reward"][at] = transition.rewards
        buffers["terminated"][at] = transition.terminated
        buffers["truncated"][at] = transition.truncated
        buffers["valid"][at] = True if transition.valid is None else transition.valid
        if self._legal is not None:
            legal = legal_of(transition.observations)
            self._legal[at] = True if legal is None else legal
        self._filled = at + 1

    def post_interaction(self, timestep: int, timesteps: int) -> None:
        """Learn when the stretch is full."""
        if self.training and self._filled == self.settings.rollouts:
            self.update(timestep, timesteps)

    # ----------------------------------------------------------------------------------------------------- learning

    def update(self, timestep: int, timesteps: int) -> None:
        """Learn from what is stored, and forget it. Raises TrainingError where a loss or gradient is not finite."""
        if self.settings.anneal_lr:
            self._optimizer.set_learning_rate(self.learning_rate * (1 - timestep / timesteps))
        batch = self._batch()
        shuffle = generator(self._seed, "shuffle", self.updates)
        figures: list[Tensor] = []
        for _ in range(self.settings.num_epochs):
            order = torch.randperm(len(batch["advantage"]), generator=shuffle)
            for places in order.chunk(self.settings.mini_batches):
                figures.append(self._minibatch({name: part[places] for name, part in batch.items()}))
                if self._moved_enough(figures[-1]):
                    break
            if self._moved_enough(figures[-1]):
                break
        self._conclude(figures)
        self.updates, self._filled, self._noise = self.updates + 1, 0, None

    def _batch(self) -> dict[str, Tensor]:
        """One row a transition: observation, action, its old log-probability and value, advantage, target."""
        stored = {name: buffer[: self._filled] for name, buffer in self._buffers.items()}
        steps, copies = stored["reward"].shape
        last = stored["truncated"] & ~stored["terminated"]  # rows whose successor is not the next row's observation
        last[-1] = True
        rows = np.concatenate([stored["observation"].reshape(steps * copies, -1), stored["next_observation"][last]])
        legal = None if self._legal is None else torch.from_numpy(stored["legal"].reshape(steps * copies, -1))
        with torch.inference_mode():
            value = numpy_view(self._judge(torch.from_numpy(rows))).reshape(-1)
            logits = self._act(torch.from_numpy(rows[: steps * copies]))
            if legal is not None:
                logits = allowed(logits, legal)
        value_TB = value[: steps * copies].reshape(steps, copies)
        next_value_TB = np.concatenate([value_TB[1:], value_TB[-1:]])
        next_value_TB[last] = value[steps * copies :]
        setting = self.settings
        advantage_TB = advantages(
            stored["reward"],
            value_TB,
            next_value_TB,
            stored["terminated"],
            stored["truncated"],
            setting.gamma,
            setting.lam,
        )
        valid = np.flatnonzero(stored["valid"])
        action = torch.from_numpy(stored["action"].reshape(steps * copies, *self._head.shape))
        made = {
            "observation": torch.from_numpy(rows[: steps * copies]),
            "action": action,
            "log_prob": self._head.log_prob(logits.clone(), action).detach(),
            "value": torch.from_numpy(value_TB.reshape(-1)),
            "advantage": torch.from_numpy(advantage_TB.reshape(-1)),
            "target": torch.from_numpy((advantage_TB + value_TB).reshape(-1)),
        }
        if legal is not None:
            made["legal"] = legal
        places = torch.from_numpy(valid)
        made = {name: part[places] for name, part in made.items()}
        return {**made, "advantage": normalise(made["advantage"])}

    def _minibatch(self, batch: Mapping[str, Tensor]) -> Tensor:
        """One gradient step; (policy loss, value loss, entropy, kl, clipped share, gradient norm)."""
        setting = self.settings
        output, value = self._policy_pass.forward(batch["observation"]), self._value_pass.forward(batch["observation"])
        logits = allowed(output, batch["legal"]) if "legal" in batch else output
        log_prob, entropy = self._head.log_prob_and_entropy(logits, batch["action"], setting.entropy_coefficient > 0)
        policy_loss, _, clipped = objective(log_prob, batch["log_prob"], batch["advantage"], self._losses, torch.zeros(()))
        value_loss = critic(value.squeeze(-1), batch["value"], batch["target"], self._losses)
        losses, weights = [policy_loss, value_loss], [self._one, self._one * setting.critic_coefficient]
        if setting.entropy_coefficient:
            losses, weights = [*losses, entropy], [*weights, self._one * -setting.entropy_coefficient]
        by_output, by_value, *by_head = torch.autograd.grad(losses, [output, value, *self._head.parameters], weights)
        self._optimizer.set_gradients([*self._policy_pass.backward(by_output), *self._value_pass.backward(by_value), *by_head])
        norm = clip_gradients([self._optimizer], setting.max_grad_norm)
        self._optimizer.step()
        log_ratio = (log_prob - batch["log_prob"]).detach()
        kl = (log_ratio.exp() - 1 - log_ratio).mean()
        return torch.stack([policy_loss.detach(), value_loss.detach(), entropy.detach(), kl, clipped, norm])

    def _moved_enough(self, figures: Tensor) -> bool:
        return self.settings.kl_threshold is not None and float(figures[3]) > self.settings.kl_threshold

    def _conclude(self, figures: list[Tensor]) -> None:
        """Figures of the update, and the learning rate of the next."""
        means = torch.stack(figures).mean(0).tolist()
        if not np.isfinite(means).all():
            raise TrainingError(f"the losses of PPO's update {self.updates} are not finite; a smaller lr may help")
        for tag, value in zip(("policy_loss", "value_loss", "entropy", "kl", "clipped", "grad_norm"), means, strict=True):
            self.track_data(tag, value)
        if self._head.log_std is not None:
            self.track_data("standard_deviation", float(self._head.log_std.detach().exp().mean()))
        self.track_data("learning_rate", self._optimizer.inner.param_groups[0]["lr"] if self._optimizer.inner else 0.0)
        if self.settings.kl_target is not None:
            self.learning_rate = next_lr(self.learning_rate, means[3], self._losses)
            self._optimizer.set_learning_rate(self.learning_rate)

    # -------------------------------------------------------------------------------------------------------- state

    def state_dict(self) -> dict[str, Any]:
        """Weights, optimizer, counters, and what is stored of the stretch in progress."""
        return {
            **super().state_dict(),
            "parameters": [parameter.detach().clone() for parameter in self._parameters],
            "optimizer": self._optimizer.state_dict(),
            "learning_rate": self.learning_rate,
            "updates": self.updates,
            "stored": {name: np.array(buffer[: self._filled]) for name, buffer in self._buffers.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The inverse of `state_dict`."""
        super().load_state_dict(state)
        with torch.no_grad():
            for parameter, stored in zip(self._parameters, state["parameters"], strict=True):
                parameter.copy_(stored)
        self._optimizer.load_state_dict(state["optimizer"])
        self.learning_rate, self.updates, self._noise = float(state["learning_rate"]), int(state["updates"]), None
        stored = arrays(state["stored"])
        self._filled = len(stored["reward"])
        if "legal" in stored and self._legal is None:
            self._keep_legal(stored["legal"].shape[-1])
        for name, buffer in self._buffers.items():
            buffer[: self._filled] = stored[name]
