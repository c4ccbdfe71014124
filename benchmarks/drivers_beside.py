"""The same benchmarks of skrl, whose trainers the drivers follow, so that both can be measured in turns on one machine:
`--beside` of benchmarks/drivers.py. skrl is not a dependency of this package; `pip install --target DIR skrl
tensorboard` keeps it apart, PYTHONPATH=DIR.

CartPole-v1, policy and value nets of 2 x 64 tanh, 2048 transitions an update, 8 passes of 2 parts, logging off: as
section 8.1 of the reference measurements and as the drivers' own cases.
"""

import time
from typing import Any

import gymnasium
import torch
from torch import nn

WARM_UP = 2  # updates


def rate(copies: int, learners: int, updates: int) -> float:
    """Env steps a second of skrl's sequential trainer, after a warm-up. Raises ImportError without skrl."""
    import skrl
    from skrl.envs.wrappers.torch import wrap_env
    from skrl.trainers.torch import SequentialTrainer

    skrl.logger.setLevel("ERROR")
    env: Any = wrap_env(
        gymnasium.make_vec("CartPole-v1", copies, vectorization_mode="vector_entry_point"), verbose=False
    )
    rollouts = 2048 * learners // copies
    agents = [_agent(env, rollouts, copies // learners) for _ in range(learners)]
    options: dict[str, Any] = {"headless": True, "disable_progressbar": True, "close_environment_at_exit": False}
    trainer: Any = SequentialTrainer(
        env=env,
        agents=agents if learners > 1 else agents[0],
        scopes=[copies // learners] * learners if learners > 1 else None,
        cfg={**options, "timesteps": WARM_UP * rollouts},
    )
    trainer.train()
    trainer.cfg.timesteps = rollouts * max(1, updates // learners)
    start = time.perf_counter()
    trainer.train()
    seconds = time.perf_counter() - start
    env.close()
    return trainer.cfg.timesteps * copies / seconds


def _agent(env: Any, rollouts: int, copies: int) -> Any:
    from skrl.agents.torch.ppo import PPO, PPO_CFG
    from skrl.memories.torch import RandomMemory
    from skrl.models.torch import CategoricalMixin, DeterministicMixin, Model

    spaces = {"observation_space": env.observation_space, "action_space": env.action_space, "device": env.device}

    def net(width: int) -> nn.Sequential:
        return nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, width))

    class Policy(CategoricalMixin, Model):
        """Logits."""

        def __init__(self) -> None:
            Model.__init__(self, **spaces)
            CategoricalMixin.__init__(self)
            self.net = net(2)

        def compute(self, inputs: Any, role: str) -> tuple[torch.Tensor, dict[str, Any]]:
            """Of observations."""
            return self.net(inputs["observations"]), {}

    class Value(DeterministicMixin, Model):
        """A number."""

        def __init__(self) -> None:
            Model.__init__(self, **spaces)
            DeterministicMixin.__init__(self)
            self.net = net(1)

        def compute(self, inputs: Any, role: str) -> tuple[torch.Tensor, dict[str, Any]]:
            """Of observations."""
            return self.net(inputs["observations"]), {}

    settings = PPO_CFG(rollouts=rollouts, learning_epochs=8, mini_batches=2, learning_rate=1e-3)
    settings.experiment.write_interval = settings.experiment.checkpoint_interval = 0
    memory = RandomMemory(memory_size=rollouts, num_envs=copies, device=env.device)
    return PPO(models={"policy": Policy(), "value": Value()}, memory=memory, cfg=settings, **spaces)
