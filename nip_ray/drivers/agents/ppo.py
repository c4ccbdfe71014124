"""Proximal policy optimisation over the copies of one scope, for discrete and continuous actions: losses and advantages
of `nip_ray.learning` with the interface of an agent.

Decisions that matter here:
- acting only needs the policy: values and old log-probabilities of all transitions are computed at once before
  learning, with the weights that acted;
- a terminated episode has no value after its end, a truncated one has that of its next observation, and so has the last
  step of a stretch. Steps that are not transitions are not learned from;
- illegal actions have probability 0 in play and in learning, so that ratios and entropies are about legal ones;
- every epoch shuffles all transitions. Advantages are normalised over the whole stretch. From a stretch without any, in
  which all copies begin an episode, nothing is learned.
"""

from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
import torch
from torch import Tensor

from nip_ray.drivers.agents.base import BaseAgent, copies_of_weights, encoder, legal_of, put_weights, refuse_not_finite
from nip_ray.drivers.contract import Rows, Transition, arrays
from nip_ray.drivers.networks import head_for, mlp
from nip_ray.learning.dqn import FORBIDDEN
from nip_ray.learning.groups import FlatOptimizer, ParameterGroup, clip_gradients
from nip_ray.learning.policy_gradient import PlayedTurns, next_lr, normalise, own_turn_advantages, ppo_loss
from nip_ray.seeding import generator
from nip_ray.settings.drivers import NetworkSettings, PPOAgentSettings
from nip_ray.settings.ppo import PPOSettings

_FIGURES = ("policy_loss", "value_loss", "entropy", "kl", "clipped", "grad_norm")


class PPOAgent(BaseAgent):
    """A PPO learner. Spaces are those of one copy; the seed is its own.

    Raises UserError for actions other than Discrete or Box, and unsupported observations (`encoder`).
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
        super().__init__(observation_space, action_space, num_copies, settings, network, seed)
        self.settings, self._seed = settings, seed
        width, self._encode = encoder(observation_space)
        self._head = head_for(action_space)
        weights = generator(seed, "weights")
        self.policy = mlp(width, self._head.width, network, 0.01, weights)
        self.value = mlp(width, 1, network, 1.0, weights)
        deviations = [] if self._head.log_std is None else [self._head.log_std]
        self._actor, self._critic = [*self.policy.parameters(), *deviations], [*self.value.parameters()]
        self._parameters = [*self.policy.parameters(), *self._critic, *deviations]
        self._optimizer = FlatOptimizer([ParameterGroup("actor", "all", self._parameters, 1.0)], settings.lr)
        self._losses = PPOSettings(
            clip_epsilon=settings.clip_epsilon,
            clip_value=False if settings.clip_value is None else settings.clip_value,
            critic_loss="l2",
            critic_coefficient=settings.critic_coefficient,
            kl_target=settings.kl_target or 0.01,
        )
        self.learning_rate, self.updates, self._filled = settings.lr, 0, 0
        shape = (settings.rollouts, num_copies)
        self._buffers = {
            "observation": np.zeros((*shape, width), dtype=np.float32),
            "next_observation": np.zeros((*shape, width), dtype=np.float32),
            "action": np.zeros((*shape, *self._head.shape), dtype=self._head.dtype),
            "reward": np.zeros(shape, dtype=np.float32),
            "terminated": np.zeros(shape, dtype=bool),
            "truncated": np.zeros(shape, dtype=bool),
            "valid": np.zeros(shape, dtype=bool),
        }
        self._noise: Tensor | None = None
        self._raw: np.ndarray | None = None

    def _keep_legal(self, num_actions: int) -> None:
        """Store legal actions from now on, after the first observation with a mask."""
        if "legal" not in self._buffers:
            self._buffers["legal"] = np.ones((self.settings.rollouts, self.num_copies, num_actions), dtype=bool)

    def act(
        self, observations: Rows, timestep: int, timesteps: int, *, explore: bool = True, states: Rows | None = None
    ) -> np.ndarray:
        """Actions, one row per copy, in the environment's form; legal ones, if it reports them."""
        legal = legal_of(observations)
        if legal is not None:
            self._keep_legal(legal.shape[-1])
        with torch.inference_mode():
            observation = torch.from_numpy(self._encode(observations))
            noise = self._noise_of(timestep, len(observation)) if explore else None
            logits = self._logits(observation, None if legal is None else torch.from_numpy(legal))
            self._raw = self._head.sample(logits, noise).numpy()
        return self._head.for_environment(self._raw)

    def _logits(self, observation: Tensor, legal: Tensor | None) -> Tensor:
        """Those of illegal actions are finite, so that 0 log 0 is 0 in an entropy."""
        logits = self.policy(observation)
        return logits if legal is None else torch.where(legal, logits, FORBIDDEN)

    def _noise_of(self, timestep: int, num_copies: int) -> Tensor:
        if not self.training or num_copies != self.num_copies:
            return self._head.noise((num_copies,), generator(self._seed, "evaluate", timestep))
        if self._noise is None:
            self._noise = self._head.noise(
                (self.settings.rollouts, num_copies), generator(self._seed, "act", self.updates)
            )
        return self._noise[self._filled]

    def begin(self) -> None:
        """Episodes in flight count as truncated."""
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
        if "legal" in buffers:
            legal = legal_of(transition.observations)
            buffers["legal"][at] = True if legal is None else legal
        self._filled = at + 1

    def post_interaction(self, timestep: int, timesteps: int) -> None:
        """Learn when the stretch is full."""
        if self.training and self._filled == self.settings.rollouts:
            self.update(timestep, timesteps)

    def update(self, timestep: int, timesteps: int) -> None:
        """Learn from the stored stretch, and clear it. Raises TrainingError if a loss or gradient is not finite."""
        used_lr = self.learning_rate * (1 - timestep / timesteps if self.settings.anneal_lr else 1)
        self._optimizer.set_learning_rate(used_lr)
        if self._buffers["valid"][: self._filled].any():
            self._learn(used_lr)
        self.updates, self._filled, self._noise = self.updates + 1, 0, None

    def _learn(self, used_lr: float) -> None:
        figures = torch.stack(self._epochs(self._batch())).mean(0).tolist()
        stored = {name: buffer[: self._filled] for name, buffer in self._buffers.items()}
        shown = np.stack([stored["observation"], stored["next_observation"]])
        refuse_not_finite(
            f"a loss of PPO's update {self.updates}", figures, observations=shown, rewards=stored["reward"]
        )
        found = {**dict(zip(_FIGURES, figures, strict=True)), "learning_rate": used_lr}
        if self._head.log_std is not None:
            found["standard_deviation"] = float(self._head.log_std.detach().exp().mean())
        for tag, value in found.items():
            self.track_data(tag, value)
        if self.settings.kl_target is not None:
            self.learning_rate = next_lr(self.learning_rate, found["kl"], self._losses)

    @torch.no_grad()
    def _batch(self) -> dict[str, Tensor]:
        """A row per transition: observation, action, old log-probability, value, advantage, target, legal actions."""
        stored = {name: torch.from_numpy(buffer[: self._filled]) for name, buffer in self._buffers.items()}
        action, terminated_TB, valid_TB = stored["action"], stored["terminated"], stored["valid"]
        observation_N = stored["observation"].flatten(0, 1)
        cut_TB = stored["truncated"] & ~terminated_TB
        cut_TB[-1] = ~terminated_TB[-1]
        logits = self._logits(observation_N, stored["legal"].flatten(0, 1) if "legal" in stored else None)
        log_prob_N, _ = self._head.log_prob_and_entropy(logits, action.flatten(0, 1))
        value_TB = self.value(observation_N).view_as(terminated_TB)
        reward_TB = stored["reward"].clone()
        reward_TB[cut_TB] += self.settings.gamma * self.value(stored["next_observation"][cut_TB]).squeeze(-1)
        discount_TB = torch.where(terminated_TB | cut_TB, 0.0, self.settings.gamma)
        found = own_turn_advantages(reward_TB.t(), value_TB.t(), valid_TB.t(), discount_TB.t(), self.settings.lam)
        advantage_TB, target_TB = (part.t() for part in found)
        made = {
            "observation": observation_N[valid_TB.flatten()],
            "action": action[valid_TB],
            "log_prob": log_prob_N[valid_TB.flatten()],
            "value": value_TB[valid_TB],
            "advantage": normalise(advantage_TB[valid_TB]),
            "target": target_TB[valid_TB],
        }
        return made if "legal" not in stored else {**made, "legal": stored["legal"][valid_TB]}

    def _epochs(self, batch: Mapping[str, Tensor]) -> list[Tensor]:
        """The metrics of each minibatch, up to the one whose policy had moved enough."""
        shuffle, limit = generator(self._seed, "shuffle", self.updates), self.settings.kl_threshold
        figures: list[Tensor] = []
        for _ in range(self.settings.num_epochs):
            order = torch.randperm(len(batch["advantage"]), generator=shuffle)
            for places in order.chunk(self.settings.mini_batches):
                figures.append(self._minibatch({name: part[places] for name, part in batch.items()}))
                if limit is not None and float(figures[-1][3]) > limit:
                    return figures
        return figures

    def _minibatch(self, batch: Mapping[str, Tensor]) -> Tensor:
        """One gradient step; (policy loss, value loss, entropy, kl, clipped share, gradient norm)."""
        settings = self.settings
        logits = self._logits(batch["observation"], batch.get("legal"))
        log_prob, entropy = self._head.log_prob_and_entropy(logits, batch["action"])
        played = PlayedTurns(batch["log_prob"], batch["value"], batch["advantage"], batch["target"])
        value, bonus = self.value(batch["observation"]).squeeze(-1), settings.entropy_coefficient
        loss = ppo_loss(log_prob, entropy, value, played, self._losses, torch.zeros(()), bonus)
        # one after the other: with half the memory in use, it stays in the cache
        actor_loss = loss.objective + loss.entropy if bonus else loss.objective
        gradient_of = dict(zip(self._actor, torch.autograd.grad(actor_loss, self._actor), strict=True))
        by_critic = torch.autograd.grad(loss.critic, self._critic)
        gradient_of |= zip(self._critic, by_critic, strict=True)
        self._optimizer.set_gradients([gradient_of[parameter] for parameter in self._parameters])
        norm = clip_gradients([self._optimizer], settings.max_grad_norm)
        self._optimizer.step()
        log_ratio = (log_prob - batch["log_prob"]).detach()
        kl = (log_ratio.exp() - 1 - log_ratio).mean()
        return torch.stack(
            [loss.objective.detach(), loss.distance.detach(), entropy.detach(), kl, loss.clip_share, norm]
        )

    def state_dict(self) -> dict[str, Any]:
        """Weights, optimizer, counters, and the stored stretch in progress."""
        return {
            **super().state_dict(),
            "parameters": copies_of_weights(self._parameters),
            "optimizer": self._optimizer.state_dict(),
            "learning_rate": self.learning_rate,
            "updates": self.updates,
            "stored": {name: np.array(buffer[: self._filled]) for name, buffer in self._buffers.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The inverse of `state_dict`."""
        super().load_state_dict(state)
        put_weights(self._parameters, state["parameters"])
        self._optimizer.load_state_dict(state["optimizer"])
        self.learning_rate, self.updates, self._noise = float(state["learning_rate"]), int(state["updates"]), None
        stored = arrays(state["stored"])
        self._filled = len(stored["reward"])
        if "legal" in stored:
            self._keep_legal(stored["legal"].shape[-1])
        for name, buffer in self._buffers.items():
            buffer[: self._filled] = stored[name]
