"""CartPole by Stable-Baselines3: PPO, or DQN (`--variant dqn`), in 16 copies, with the settings of our config."""

import gymnasium
import torch
from _clock import Clock
from stable_baselines3 import DQN, PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from torch import nn

COPIES, ROUNDS = 16, 64


class Timed(BaseCallback):
    """Every 64 timesteps."""

    def _on_step(self) -> bool:
        self.seen = getattr(self, "seen", [])
        self.seen += [info["episode"]["r"] for info in self.locals["infos"] if "episode" in info]
        if self.n_calls % ROUNDS != 1 or self.n_calls == 1:
            return True
        goes_on, self.seen = clock.goes_on(COPIES * ROUNDS, self.seen), []
        return goes_on


clock = Clock("stable_baselines3", "torch", "gymnasium", window=50)
torch.set_num_threads(1)
envs = make_vec_env(lambda: gymnasium.make("CartPole-v1"), COPIES, seed=clock.seed)
net = {"net_arch": [64, 64], "activation_fn": nn.Tanh}
if clock.variant == "dqn":
    steps = 100_000
    learner = DQN(
        "MlpPolicy", envs, learning_rate=1e-3, buffer_size=50_000, learning_starts=1600, batch_size=64, tau=0.01,
        gamma=0.99, train_freq=1, gradient_steps=1, target_update_interval=1, exploration_fraction=0.5,
        exploration_final_eps=0.05, max_grad_norm=10, policy_kwargs=net, seed=clock.seed, device="cpu",
    )  # fmt: skip
else:
    steps = 200_000
    learner = PPO(
        "MlpPolicy", envs, learning_rate=lambda left: 2.5e-3 * left, n_steps=ROUNDS, batch_size=256, n_epochs=8,
        gamma=0.99, gae_lambda=0.95, ent_coef=0.0, vf_coef=0.5, max_grad_norm=0.5, policy_kwargs=net, seed=clock.seed,
        device="cpu",
    )  # fmt: skip
clock.start()
learner.learn(steps, callback=Timed())
clock.show()
