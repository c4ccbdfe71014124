"""The message game by TorchRL: its collector, GAE, replay buffer and ClipPPOLoss for each agent, as in its tutorial of
several agents; 512 copies as one batched environment. An action is one number, since its masked distribution has one
factor."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from _clock import Clock
from tensordict import TensorDict
from tensordict.nn import TensorDictModule, TensorDictSequential
from torch import nn
from torchrl.collectors import Collector
from torchrl.data import Binary, Categorical, Composite, LazyTensorStorage, ReplayBuffer, Unbounded
from torchrl.data.replay_buffers.samplers import SamplerWithoutReplacement
from torchrl.envs import EnvBase
from torchrl.modules import ActorValueOperator, MaskedCategorical, ProbabilisticActor
from torchrl.objectives import ClipPPOLoss, ValueEstimators

import nip_ray.vector

CONFIG = Path(__file__).resolve().parents[2] / "tune_configs" / "message_game.yaml"
COPIES, ROUNDS, EPOCHS, MINIBATCH = 512, 8, 4, 2048


class Game(EnvBase):
    """All copies in one batch; agents are nested keys."""

    def __init__(self, seed: int) -> None:
        super().__init__(batch_size=[COPIES])
        self.game, self.first_seed = nip_ray.vector.parallel(CONFIG, COPIES), seed
        self.names = self.game.possible_agents
        seen = self.observed(self.game.reset(seed=seed)[0])
        self.observation_spec = Composite(
            {
                name: Composite(
                    observation=Unbounded((COPIES, seen[name, "observation"].shape[1])),
                    action_mask=Binary(shape=(COPIES, seen[name, "action_mask"].shape[1]), dtype=torch.bool),
                    shape=(COPIES,),
                )
                for name in self.names
            },
            shape=(COPIES,),
        )
        choices = {name: seen[name, "action_mask"].shape[1] for name in self.names}
        self.action_spec = Composite(
            {name: Composite(action=Categorical(n, (COPIES,)), shape=(COPIES,)) for name, n in choices.items()},
            shape=(COPIES,),
        )
        self.reward_spec = Composite(
            {name: Composite(reward=Unbounded((COPIES, 1)), shape=(COPIES,)) for name in self.names}, shape=(COPIES,)
        )

    def observed(self, seen: Any) -> TensorDict:
        """Flat observations, and masks of joint actions."""
        found = TensorDict(batch_size=[COPIES])
        for name in self.names:
            parts = [np.reshape(x, (COPIES, -1)) for x in seen[name]["observation"].values()]
            found[name, "observation"] = torch.from_numpy(np.concatenate(parts, 1).astype(np.float32))
            masks = np.split(seen[name]["action_mask"] == 1, np.cumsum(self.game.copies.sizes[name])[:-1], 1)
            joint = masks[0]
            for mask in masks[1:]:
                joint = (joint[:, :, None] & mask[:, None]).reshape(COPIES, -1)
            found[name, "action_mask"] = torch.from_numpy(joint)
        return found

    def _reset(self, tensordict: Any, **kwargs: Any) -> TensorDict:
        if tensordict is None or "_reset" not in tensordict:
            self.seen = self.observed(self.game.reset(seed=self.first_seed)[0])
        return self.seen.clone()  # copies that ended have begun again

    def _step(self, tensordict: Any) -> TensorDict:
        actions = {}
        for name in self.names:
            factors = np.unravel_index(tensordict[name, "action"].numpy(), self.game.copies.sizes[name])
            actions[name] = np.stack(factors, 1)
        seen, rewards, terminations, _, _ = self.game.step(actions)
        self.seen = self.observed(seen)
        found = self.seen.clone()
        for name in self.names:
            found[name, "reward"] = torch.from_numpy(rewards[name].copy())[:, None]
        found["terminated"] = torch.from_numpy(terminations[self.names[0]].copy())[:, None]
        found["done"] = found["terminated"].clone()
        return found

    def _set_seed(self, seed: int | None) -> None:
        self.first_seed = seed


def operator(name: str, spec: Any) -> ActorValueOperator:
    """Policy and value on one hidden layer."""
    width, choices = spec.observation_spec[name, "observation"].shape[1], spec.action_spec[name, "action"].n
    body = TensorDictModule(
        nn.Sequential(nn.Linear(width, 64), nn.Tanh()), in_keys=[(name, "observation")], out_keys=[(name, "hidden")]
    )
    actor = ProbabilisticActor(
        TensorDictModule(nn.Linear(64, choices), in_keys=[(name, "hidden")], out_keys=[(name, "logits")]),
        in_keys={"logits": (name, "logits"), "mask": (name, "action_mask")},
        out_keys=[(name, "action")],
        distribution_class=MaskedCategorical,
        return_log_prob=True,
        log_prob_key=(name, "log_prob"),
    )
    value = TensorDictModule(nn.Linear(64, 1), in_keys=[(name, "hidden")], out_keys=[(name, "state_value")])
    return ActorValueOperator(body, actor, value)


clock = Clock("torchrl", "tensordict", "torch", "nip_ray")
clock.door(nip_ray.vector.VectorParallel, "step")
torch.set_num_threads(1)
torch.manual_seed(clock.seed)
env = Game(clock.seed)
operators = {name: operator(name, env) for name in env.names}
losses, optimizers = {}, {}
for name, both in operators.items():
    loss = ClipPPOLoss(
        both.get_policy_operator(), both.get_value_operator(), clip_epsilon=0.2, entropy_coeff=0.001,
        critic_coeff=1.0, loss_critic_type="smooth_l1", normalize_advantage=True,
    )  # fmt: skip
    own = {key: (name, key) for key in ("action", "reward", "advantage", "value_target")}
    loss.set_keys(
        **own, sample_log_prob=(name, "log_prob"), value=(name, "state_value"), done="done", terminated="terminated"
    )
    loss.make_value_estimator(ValueEstimators.GAE, gamma=0.9, lmbda=0.95)
    losses[name], optimizers[name] = loss, torch.optim.Adam(both.parameters(), lr=5e-3)
policy = TensorDictSequential(*[operators[name].get_policy_operator() for name in env.names])
collector = Collector(env, policy, frames_per_batch=COPIES * ROUNDS, total_frames=-1)
buffer = ReplayBuffer(
    storage=LazyTensorStorage(COPIES * ROUNDS), sampler=SamplerWithoutReplacement(), batch_size=MINIBATCH
)
clock.start()
for played in collector:
    with torch.no_grad():
        for loss in losses.values():
            loss.value_estimator(
                played, params=loss.critic_network_params, target_params=loss.target_critic_network_params
            )
    buffer.empty()
    buffer.extend(played.reshape(-1))
    for _ in range(EPOCHS):
        for part in buffer:
            for name, loss in losses.items():
                found = loss(part)
                total = found["loss_objective"] + found["loss_critic"] + found["loss_entropy"]
                optimizers[name].zero_grad()
                total.backward()
                nn.utils.clip_grad_norm_(operators[name].parameters(), 1.0)
                optimizers[name].step()
    returns = played["next", "verifier", "reward"].sum(1).flatten().tolist()  # eight rounds, one episode
    if not clock.goes_on(played.numel(), returns):
        break
clock.show()
collector.shutdown()
