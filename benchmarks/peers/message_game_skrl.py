"""The message game by skrl's IPPO: 512 copies in one batch, behind its wrapper of multi-agent environments."""

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import skrl
import torch
from _clock import Clock
from skrl.envs.wrappers.torch.base import MultiAgentEnvWrapper
from skrl.memories.torch import RandomMemory
from skrl.models.torch import DeterministicMixin, Model, MultiCategoricalMixin
from skrl.multi_agents.torch.ippo import IPPO, IPPO_CFG
from skrl.trainers.torch import SequentialTrainer
from skrl.utils import set_seed
from torch import nn

import nip_ray.vector

CONFIG = Path(__file__).resolve().parents[2] / "tune_configs" / "message_game.yaml"
COPIES, ROUNDS = 512, 8
PARTS = ("learning_rate_scheduler", "observation_preprocessor", "state_preprocessor", "value_preprocessor")
"""Settings whose empty default skrl 2.1.1 refuses."""


class Game(MultiAgentEnvWrapper):
    """Observations of an agent in a row: its mask first."""

    def __init__(self, env: Any, seed: int | None) -> None:
        super().__init__(env)
        self.agents_, self.seed = list(env.possible_agents), seed
        sizes = env.copies.sizes
        self.spaces = {agent: gymnasium.spaces.MultiDiscrete(sizes[agent]) for agent in self.agents_}
        widths = {agent: self.flat(seen).shape[1] for agent, seen in env.reset()[0].items()}
        self.seen = {agent: gymnasium.spaces.Box(0, 1, (width,)) for agent, width in widths.items()}
        self.returns: list[float] = []
        self.total_B = np.zeros(COPIES)

    num_envs = property(lambda self: COPIES)
    agents = possible_agents = property(lambda self: self.agents_)
    num_agents = property(lambda self: len(self.agents_))
    observation_spaces = property(lambda self: self.seen)
    action_spaces = property(lambda self: self.spaces)
    state_spaces = property(lambda self: dict.fromkeys(self.agents_))

    @staticmethod
    def flat(seen: Any) -> torch.Tensor:
        """(B, width)."""
        parts = [seen["action_mask"], *seen["observation"].values()]
        return torch.from_numpy(np.concatenate([np.reshape(x, (len(x), -1)) for x in parts], 1).astype(np.float32))

    def reset(self) -> Any:
        """Begin."""
        seen, self.seed = self._env.reset(seed=self.seed)[0], None
        return {agent: self.flat(one) for agent, one in seen.items()}, {}

    def step(self, actions: Any) -> Any:
        """A round."""
        seen, *results, _ = self._env.step({agent: x.long().numpy() for agent, x in actions.items()})
        self.total_B += results[0]["verifier"]
        over_B = results[1]["verifier"]
        self.returns += self.total_B[over_B].tolist()
        self.total_B[over_B] = 0
        columns = [{agent: torch.from_numpy(x.copy()).view(-1, 1) for agent, x in part.items()} for part in results]
        return {agent: self.flat(one) for agent, one in seen.items()}, *columns, {}

    def state(self) -> dict[str, None]:
        """None."""
        return dict.fromkeys(self.agents_)

    def render(self, *args: Any, **kwargs: Any) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""


class Agent(MultiCategoricalMixin, DeterministicMixin, Model):
    """Policy and value on one hidden layer."""

    def __init__(self, observation_space: Any, action_space: Any) -> None:
        Model.__init__(self, observation_space=observation_space, action_space=action_space, device="cpu")
        MultiCategoricalMixin.__init__(self, role="policy")
        DeterministicMixin.__init__(self, role="value")
        self.choices = int(action_space.nvec.sum())
        self.hidden = nn.Linear(observation_space.shape[0], 64)
        self.policy, self.value = nn.Linear(64, self.choices), nn.Linear(64, 1)

    def act(self, inputs: Any, *, role: str = "") -> Any:
        """By role."""
        return (MultiCategoricalMixin if role == "policy" else DeterministicMixin).act(self, inputs, role=role)

    def compute(self, inputs: Any, role: str) -> Any:
        """Masked logits, or a value."""
        seen = inputs["observations"]
        hidden = torch.tanh(self.hidden(seen))
        if role == "value":
            return self.value(hidden), {}
        return self.policy(hidden).masked_fill(seen[:, : self.choices] == 0, -1e8), {}


clock = Clock("skrl", "torch", "nip_ray")
clock.door(nip_ray.vector.VectorParallel, "step")
torch.set_num_threads(1)
skrl.logger.setLevel("ERROR")
set_seed(clock.seed)
env: Any = Game(nip_ray.vector.parallel(CONFIG, COPIES), clock.seed)
models: Any = {}
for name in env.agents_:
    both = Agent(env.seen[name], env.spaces[name])
    models[name] = {"policy": both, "value": both}
empty: Any = {f"{part}_kwargs": {name: {} for name in env.agents_} for part in PARTS}
settings = IPPO_CFG(
    rollouts=ROUNDS, learning_epochs=4, mini_batches=2, learning_rate=5e-3, discount_factor=0.9, gae_lambda=0.95,
    grad_norm_clip=1.0, entropy_loss_scale=0.001, value_loss_scale=1.0, value_clip=0.0,
    **empty,
)  # fmt: skip
settings.experiment.write_interval = settings.experiment.checkpoint_interval = 0
agents = IPPO(
    possible_agents=env.agents_,
    models=models,
    memories={name: RandomMemory(memory_size=ROUNDS, num_envs=COPIES, device="cpu") for name in env.agents_},
    cfg=settings,
    observation_spaces=env.seen,
    action_spaces=env.spaces,
    state_spaces=env.state_spaces,
    device="cpu",
)
options = {"headless": True, "disable_progressbar": True, "close_environment_at_exit": False, "timesteps": ROUNDS}
trainer = SequentialTrainer(env=env, agents=agents, cfg=options)
clock.start()
while True:
    env.returns.clear()
    trainer.train()
    if not clock.goes_on(COPIES * ROUNDS, env.returns):
        break
clock.show()
