"""The message game by Tianshou's PPO in one seat, the verifier's: 512 copies as one batch behind its vector
environment, the prover as nip_ray trained it. An action is one number. Choices out of play do nothing."""

from typing import Any

import numpy as np
import torch
from _clock import Clock
from gymnasium import spaces
from tianshou.algorithm.modelfree.ppo import PPO
from tianshou.algorithm.modelfree.reinforce import ProbabilisticActorPolicy
from tianshou.algorithm.optim import AdamOptimizerFactory
from tianshou.data import Collector, VectorReplayBuffer
from tianshou.env import BaseVectorEnv
from tianshou.utils.net.common import Net
from tianshou.utils.net.discrete import DiscreteActor, DiscreteCritic
from tianshou.utils.torch_utils import policy_within_training_step, torch_train_mode
from torch import nn

from nip_ray.gymnasium import VectorSeat

COPIES, STEPS = 512, 4096


class Seats(BaseVectorEnv):
    """The copies of a seat; those that ended have begun again when Tianshou resets them."""

    def __init__(self, seat: VectorSeat, seed: int) -> None:
        self.seat, self.env_num, self.is_closed, self.is_async, self.first_seed = seat, COPIES, False, False, seed
        self.sizes = seat.copies.sizes[seat.agent]
        self.choices = spaces.Discrete(int(np.prod(self.sizes)))
        self.seen = self.flat(seat.reset(seed=seed)[0])

    @staticmethod
    def flat(seen: Any) -> Any:
        """(B, width)."""
        return np.concatenate([np.reshape(x, (COPIES, -1)) for x in seen.values()], 1).astype(np.float32)

    def get_env_attr(self, key: str, id: Any = None) -> list[Any]:
        """The action space and nothing else."""
        return [self.choices if key == "action_space" else None] * COPIES

    def reset(self, id: Any = None, **kwargs: Any) -> Any:
        """All, or those that ended."""
        if id is None:
            self.seen = self.flat(self.seat.reset()[0])
        rows = self.seen if id is None else self.seen[id]
        return rows, np.array([{} for _ in rows])

    def step(self, action: Any, id: Any = None) -> Any:
        """A turn of all copies."""
        factors = np.stack(np.unravel_index(np.asarray(action), self.sizes), 1)
        seen, rewards, terminated, truncated, _ = self.seat.step(factors)
        self.seen = self.flat(seen)
        return self.seen, rewards, terminated, truncated, np.array([{"env_id": i} for i in range(COPIES)])

    def seed(self, seed: Any = None) -> list[None]:
        """Seeded at first."""
        return [None] * COPIES

    def close(self) -> None:
        """Nothing."""


clock = Clock("tianshou", "torch", "nip_ray")
clock.door(VectorSeat, "step")
torch.set_num_threads(1)
torch.manual_seed(clock.seed)
np.random.seed(clock.seed)
envs = Seats(VectorSeat(clock.run, "verifier", num_envs=COPIES), clock.seed)
body = Net(state_shape=envs.seen.shape[1], hidden_sizes=[64], activation=nn.Tanh)
actor = DiscreteActor(preprocess_net=body, action_shape=int(envs.choices.n), softmax_output=False)
policy = ProbabilisticActorPolicy(
    actor=actor, dist_fn=lambda logits: torch.distributions.Categorical(logits=logits), action_space=envs.choices,
    action_scaling=False, action_bound_method=None,
)  # fmt: skip
algorithm = PPO(
    policy=policy, critic=DiscreteCritic(preprocess_net=body), optim=AdamOptimizerFactory(lr=5e-3), eps_clip=0.2,
    vf_coef=1.0, ent_coef=0.001, max_grad_norm=1.0, gae_lambda=0.95, gamma=0.9, max_batchsize=STEPS,
)  # fmt: skip
collector = Collector(algorithm, envs, VectorReplayBuffer(STEPS, COPIES))
collector.reset()
clock.start()
while True:
    with torch.no_grad():
        played = collector.collect(n_step=STEPS)
    with policy_within_training_step(policy), torch_train_mode(algorithm):
        algorithm.update(buffer=collector.buffer, batch_size=2048, repeat=4)
    collector.reset_buffer(keep_statistics=True)
    if not clock.goes_on(played.n_collected_steps, played.returns):
        break
clock.show()
