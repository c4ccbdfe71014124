"""skrl's PPO on CartPole: its own checkpoints (`experiment.checkpoint_interval`) and `agent.load`.

By hand: finding the newest complete file (`torch.save` writes in place), and the number of remaining timesteps (its
trainers begin at 0).
"""

import re
from typing import Any

import gymnasium
import skrl
import torch
from _resume_row import INTERVAL, Rows, generators, optimizer_digest
from skrl.agents.torch.ppo import PPO, PPO_CFG
from skrl.envs.wrappers.torch import wrap_env
from skrl.memories.torch import RandomMemory
from skrl.models.torch import CategoricalMixin, DeterministicMixin, Model
from skrl.trainers.torch import SequentialTrainer
from skrl.utils import set_seed
from torch import nn

COPIES, ROLLOUTS, EPOCHS = 4, 128, 4


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
    """A number."""

    def __init__(self, **spaces: Any) -> None:
        Model.__init__(self, **spaces)
        DeterministicMixin.__init__(self)
        self.net = net(1)

    def compute(self, inputs: Any, role: str) -> tuple[torch.Tensor, dict[str, Any]]:
        """Of observations."""
        return self.net(inputs["observations"]), {}


class Written(PPO):
    """PPO that writes a row after each update, when its checkpoint is written."""

    rows: Any = None
    begun = 0

    def post_interaction(self, *, timestep: int, timesteps: int) -> None:
        """Like PPO's."""
        super().post_interaction(timestep=timestep, timesteps=timesteps)
        if (timestep + 1) % ROLLOUTS == 0:
            weights = torch.cat(
                [value.detach().flatten() for value in [*self.policy.parameters(), *self.value.parameters()]]
            )
            figures = {
                "weights": float(weights.double().abs().mean()),
                "reward": float(self.memory.get_tensor_by_name("returns").mean()),
            }
            self.rows.write(
                "row", self.begun + (timestep + 1) // ROLLOUTS, figures, counter=timestep + 1, **self.state()
            )

    def state(self) -> dict[str, Any]:
        """The state except the counter, which the trainer has."""
        envs = [env.unwrapped.np_random.bit_generator.state for env in self.envs]
        rates = [group["lr"] for group in self.optimizer.param_groups]
        return {"lr": rates, "optimizer": optimizer_digest(self.optimizer), "generators": generators(envs)}


def main() -> None:
    """Train, or resume."""
    rows = Rows()
    skrl.logger.setLevel("ERROR")
    set_seed(0)
    vector = gymnasium.make_vec("CartPole-v1", COPIES, vectorization_mode="sync")
    env: Any = wrap_env(vector, verbose=False)
    spaces = {"observation_space": env.observation_space, "action_space": env.action_space, "device": env.device}
    settings = PPO_CFG(
        rollouts=ROLLOUTS,
        learning_epochs=EPOCHS,
        mini_batches=4,
        learning_rate=1e-3,
        learning_rate_scheduler=torch.optim.lr_scheduler.LinearLR,
        learning_rate_scheduler_kwargs={
            "start_factor": 1.0,
            "end_factor": 0.0,
            "total_iters": rows.iterations * EPOCHS,
        },
    )
    settings.experiment.directory, settings.experiment.experiment_name = (
        str(rows.folder),
        "resumed" if rows.resume else "run",
    )
    settings.experiment.write_interval, settings.experiment.checkpoint_interval = 0, ROLLOUTS * INTERVAL
    memory = RandomMemory(memory_size=ROLLOUTS, num_envs=COPIES, device=env.device)
    agent: Any = Written(
        models={"policy": Policy(**spaces), "value": Value(**spaces)}, memory=memory, cfg=settings, **spaces
    )
    agent.rows, agent.envs = rows, vector.unwrapped.envs
    if rows.resume:
        agent.begun = restored(rows, agent)
    left = (rows.iterations - agent.begun) * ROLLOUTS
    SequentialTrainer(
        env=env, agents=agent, cfg={"timesteps": left, "headless": True, "disable_progressbar": True}
    ).train()


def restored(rows: Rows, agent: Any) -> int:
    """Load the newest readable file; returns its number of updates."""
    files = {
        int(re.findall(r"\d+", path.stem)[-1]): path for path in rows.folder.glob("run/checkpoints/agent_[0-9]*.pt")
    }
    for timestep in sorted(files, reverse=True):
        try:
            agent.load(str(files[timestep]))
        except (RuntimeError, EOFError, OSError):
            print(f"torn: {files[timestep].name}")
            continue
        rows.write("restored", timestep // ROLLOUTS, counter=0, **agent.state())
        return timestep // ROLLOUTS
    return 0


if __name__ == "__main__":
    main()
