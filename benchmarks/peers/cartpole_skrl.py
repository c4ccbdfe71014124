"""CartPole by skrl: PPO behind its sequential, step or parallel trainer (`--variant`), or DQN (`dqn`), in 16 copies,
with the settings of our config."""

import contextlib
import warnings
from typing import Any

import gymnasium
import skrl
import torch
from _clock import Clock
from skrl.agents.torch.dqn import DQN, DQN_CFG
from skrl.agents.torch.ppo import PPO, PPO_CFG
from skrl.envs.wrappers.torch import wrap_env
from skrl.memories.torch import RandomMemory
from skrl.models.torch import CategoricalMixin, DeterministicMixin, Model
from skrl.trainers.torch import ParallelTrainer, SequentialTrainer, StepTrainer
from skrl.utils import set_seed
from torch import nn

COPIES, ROUNDS = 16, 64


def net(width: int) -> nn.Sequential:
    """Two hidden layers."""
    return nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, width))


class Policy(CategoricalMixin, Model):
    """Logits."""

    def __init__(self, **spaces: Any) -> None:
        Model.__init__(self, **spaces)
        CategoricalMixin.__init__(self)
        self.net = net(2)

    def compute(self, inputs: Any, role: str) -> tuple[torch.Tensor, dict[str, Any]]:
        """Of observations."""
        return self.net(inputs["observations"]), {}


class Value(DeterministicMixin, Model):
    """A number, or a number for each action."""

    def __init__(self, width: int, **spaces: Any) -> None:
        Model.__init__(self, **spaces)
        DeterministicMixin.__init__(self)
        self.net = net(width)

    def compute(self, inputs: Any, role: str) -> tuple[torch.Tensor, dict[str, Any]]:
        """Of observations."""
        return self.net(inputs["observations"]), {}


class Counted(gymnasium.vector.VectorWrapper):
    """Keeps the returns of episodes."""

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self.returns: list[float] = []

    def step(self, actions: Any) -> Any:
        """A timestep."""
        found = super().step(actions)
        if "episode" in found[4]:
            self.returns += found[4]["episode"]["r"][found[4]["_episode"]].tolist()
        return found


def main() -> None:
    """Train."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    skrl.logger.setLevel("ERROR")
    set_seed(clock.seed)
    vector = gymnasium.make_vec("CartPole-v1", COPIES, vectorization_mode="vector_entry_point")
    counted = Counted(gymnasium.wrappers.vector.RecordEpisodeStatistics(vector))
    env: Any = wrap_env(counted, verbose=False)
    spaces = {"observation_space": env.observation_space, "action_space": env.action_space, "device": env.device}
    if clock.variant == "dqn":
        timesteps = 6250
        settings: Any = DQN_CFG(
            batch_size=64, polyak=0.01, learning_rate=1e-3, learning_starts=100, target_update_interval=1,
            exploration_scheduler=lambda timestep, _: max(0.05, 1 - 0.95 * timestep / 3125),
        )  # fmt: skip
        models: dict[str, Model] = {"q_network": Value(2, **spaces), "target_q_network": Value(2, **spaces)}
        kind, memory = DQN, RandomMemory(memory_size=50_000 // COPIES, num_envs=COPIES, device=env.device)
    else:
        timesteps = 12_500
        settings = PPO_CFG(
            rollouts=ROUNDS, learning_epochs=8, mini_batches=4, learning_rate=2.5e-3, discount_factor=0.99,
            gae_lambda=0.95, value_loss_scale=0.5, value_clip=0.0, grad_norm_clip=0.5,
            learning_rate_scheduler=torch.optim.lr_scheduler.LinearLR,
            learning_rate_scheduler_kwargs={
                "start_factor": 1.0, "end_factor": 0.01, "total_iters": timesteps // ROUNDS * 8,
            },
        )  # fmt: skip
        models = {"policy": Policy(**spaces), "value": Value(1, **spaces)}
        kind, memory = PPO, RandomMemory(memory_size=ROUNDS, num_envs=COPIES, device=env.device)
    settings.experiment.write_interval = settings.experiment.checkpoint_interval = 0
    agent: Any = kind(models=models, memory=memory, cfg=settings, **spaces)
    options = {"headless": True, "disable_progressbar": True, "close_environment_at_exit": False}
    if clock.variant == "step":
        trainer: Any = StepTrainer(env=env, agents=agent, cfg={**options, "timesteps": timesteps})
        clock.start()
        for timestep in range(timesteps):
            trainer.train(timestep=timestep, timesteps=timesteps)
            if timestep % ROUNDS == ROUNDS - 1 and not ended(counted):
                break
    else:
        after = agent.post_interaction

        def timed(*, timestep: int, timesteps: int) -> None:
            after(timestep=timestep, timesteps=timesteps)
            if timestep % ROUNDS == ROUNDS - 1 and not ended(counted):
                raise KeyboardInterrupt

        agent.post_interaction = timed
        kind_of_trainer = ParallelTrainer if clock.variant == "parallel" else SequentialTrainer
        trainer = kind_of_trainer(env=env, agents=agent, cfg={**options, "timesteps": timesteps})
        clock.start()
        with contextlib.suppress(KeyboardInterrupt):
            trainer.train()
    clock.show()


def ended(counted: Counted) -> bool:
    """False when the clock says so."""
    goes_on = clock.goes_on(COPIES * ROUNDS, counted.returns)
    counted.returns.clear()
    return goes_on


clock = Clock("skrl", "torch", "gymnasium", window=50)
if __name__ == "__main__":
    main()
