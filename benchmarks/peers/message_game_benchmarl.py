"""The message game by BenchMARL's IPPO: a task of our own, each agent a group of its own; 512 copies as one batched
environment of TorchRL. An action is one number, since its masked distribution has one factor; policy and value have a
hidden layer each, since it does not share them."""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _clock import Clock
from benchmarl.algorithms import IppoConfig
from benchmarl.environments.common import TaskClass
from benchmarl.experiment import Callback, Experiment, ExperimentConfig
from benchmarl.models.mlp import MlpConfig
from tensordict import TensorDict
from torchrl.data import Binary, Categorical, Composite, Unbounded
from torchrl.envs import EnvBase

import nip_ray.vector

CONFIG = Path(__file__).resolve().parents[2] / "tune_configs" / "message_game.yaml"
COPIES, ROUNDS = 512, 8


class Game(EnvBase):
    """All copies in one batch; agents are groups of one."""

    def __init__(self, copies: int, seed: int) -> None:
        super().__init__(batch_size=[copies])
        self.game, self.first_seed = nip_ray.vector.parallel(CONFIG, copies), seed
        self.names = self.game.possible_agents
        self.group_map = {name: [name] for name in self.names}
        seen = self.observed(self.game.reset(seed=seed)[0])
        observations, actions, rewards = {}, {}, {}
        for name in self.names:
            width, choices = seen[name, "observation"].shape[-1], seen[name, "action_mask"].shape[-1]
            observation = Unbounded((copies, 1, width))
            mask = Binary(shape=(copies, 1, choices), dtype=torch.bool)
            observations[name] = Composite(observation=observation, action_mask=mask, shape=(copies, 1))
            actions[name] = Composite(action=Categorical(choices, (copies, 1)), shape=(copies, 1))
            rewards[name] = Composite(reward=Unbounded((copies, 1, 1)), shape=(copies, 1))
        self.observation_spec = Composite(observations, shape=(copies,))
        self.action_spec = Composite(actions, shape=(copies,))
        self.reward_spec = Composite(rewards, shape=(copies,))

    def observed(self, seen: Any) -> TensorDict:
        """Flat observations, and masks of joint actions."""
        found, copies = {}, self.game.num_copies
        for name in self.names:
            parts = [np.reshape(x, (copies, -1)) for x in seen[name]["observation"].values()]
            flat = torch.from_numpy(np.concatenate(parts, 1).astype(np.float32))[:, None]
            masks = np.split(seen[name]["action_mask"] == 1, np.cumsum(self.game.copies.sizes[name])[:-1], 1)
            joint = masks[0]
            for mask in masks[1:]:
                joint = (joint[:, :, None] & mask[:, None]).reshape(copies, -1)
            both = {"observation": flat, "action_mask": torch.from_numpy(joint)[:, None]}
            found[name] = TensorDict(both, batch_size=[copies, 1])
        return TensorDict(found, batch_size=[copies])

    def _reset(self, tensordict: Any, **kwargs: Any) -> TensorDict:
        if tensordict is None or "_reset" not in tensordict:
            self.seen = self.observed(self.game.reset(seed=self.first_seed)[0])
        return self.seen.clone()  # copies that ended have begun again

    def _step(self, tensordict: Any) -> TensorDict:
        actions = {}
        for name in self.names:
            number_B = tensordict[name, "action"][:, 0].numpy()
            actions[name] = np.stack(np.unravel_index(number_B, self.game.copies.sizes[name]), 1)
        seen, rewards, terminations, _, _ = self.game.step(actions)
        self.seen = self.observed(seen)
        found = self.seen.clone()
        for name in self.names:
            found[name, "reward"] = torch.from_numpy(rewards[name].copy())[:, None, None]
        found["terminated"] = torch.from_numpy(terminations[self.names[0]].copy())[:, None]
        found["done"] = found["terminated"].clone()
        return found

    def _set_seed(self, seed: int | None) -> None:
        self.first_seed = seed


class GameTask(TaskClass):
    """The game as a task of BenchMARL."""

    def get_env_fun(self, num_envs: int, continuous_actions: bool, seed: int | None, device: Any) -> Callable[[], Game]:
        """Its environment."""
        return lambda: Game(num_envs, seed or 0)

    def supports_continuous_actions(self) -> bool:
        """No."""
        return False

    def supports_discrete_actions(self) -> bool:
        """Yes."""
        return True

    def has_render(self, env: Any) -> bool:
        """No."""
        return False

    def max_steps(self, env: Any) -> int:
        """Rounds."""
        return ROUNDS

    def group_map(self, env: Any) -> dict[str, list[str]]:
        """Each agent alone."""
        return env.group_map

    def _part(self, env: Any, key: str) -> Composite:
        spec = env.full_observation_spec_unbatched.clone()
        for name in env.names:
            for other in [other for other in list(spec[name].keys()) if other != key]:
                del spec[name, other]
        return spec

    def observation_spec(self, env: Any) -> Composite:
        """Their observations."""
        return self._part(env, "observation")

    def action_mask_spec(self, env: Any) -> Composite:
        """Their masks."""
        return self._part(env, "action_mask")

    def action_spec(self, env: Any) -> Composite:
        """Their actions."""
        return env.full_action_spec_unbatched

    def state_spec(self, env: Any) -> None:
        """None."""

    def info_spec(self, env: Any) -> None:
        """None."""

    @staticmethod
    def env_name() -> str:
        """Its name."""
        return "nip_ray"


class Timed(Callback):
    """After each update of both agents."""

    def on_batch_collected(self, batch: Any) -> None:
        """Eight rounds are one episode."""
        self.returns = batch["next", "verifier", "reward"].sum(1).flatten().tolist()

    def on_train_end(self, training_td: Any, group: str) -> None:
        """The verifier is the second."""
        if group == "verifier" and not clock.goes_on(COPIES * ROUNDS, self.returns):
            raise StopIteration


clock = Clock("benchmarl", "torchrl", "torch", "nip_ray")
clock.door(nip_ray.vector.VectorParallel, "step")
torch.set_num_threads(1)
settings = ExperimentConfig.get_from_yaml()
settings.loggers, settings.create_json, settings.render, settings.evaluation = [], False, False, False
settings.save_folder = tempfile.mkdtemp()
settings.gamma, settings.lr, settings.adam_eps, settings.clip_grad_val = 0.9, 5e-3, 1e-8, 1.0
settings.max_n_frames, settings.max_n_iters = None, 10**6
settings.on_policy_collected_frames_per_batch, settings.on_policy_n_envs_per_worker = COPIES * ROUNDS, COPIES
settings.on_policy_n_minibatch_iters, settings.on_policy_minibatch_size = 4, 2048
rule = IppoConfig.get_from_yaml()
rule.entropy_coef, rule.critic_coef, rule.loss_critic_type, rule.lmbda = 0.001, 1.0, "smooth_l1", 0.95
model = MlpConfig(num_cells=[64], layer_class=torch.nn.Linear, activation_class=torch.nn.Tanh)
experiment = Experiment(
    task=GameTask("message_game", {}), algorithm_config=rule, model_config=model, critic_model_config=model,
    seed=clock.seed, config=settings, callbacks=[Timed()],
)  # fmt: skip
clock.start()
try:
    experiment.run()
except (StopIteration, RuntimeError):
    if clock.iterations < 2:
        raise
clock.show()
