"""Learners of other libraries learn through the environments of many copies: Stable-Baselines3, skrl, and one file in
the manner of CleanRL."""

from pathlib import Path
from typing import Any

import gymnasium
import pytest
import torch
from torch import nn

from examples import independent_ppo, stable_baselines3_seat
from nip_ray.config.load import load_config
from nip_ray.runs.experiment import run_experiment

CONFIGS = Path(__file__).resolve().parents[2] / "tune_configs"
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A prover and a verifier who understand each other."""
    changes = ["iterations=20", "play.num_copies=128", "algorithm.minibatch_size=256"]
    config = load_config(CONFIGS / "message_game.yaml", changes)
    return run_experiment(config, tmp_path_factory.mktemp("runs") / "message_game", quiet=True).run_dir


@pytest.mark.parametrize("agent", ["prover", "verifier"])
def test_stable_baselines3_learns_in_a_seat(run: Path, agent: str) -> None:
    assert stable_baselines3_seat.learn(str(run), agent, 40_000) > 0.7


def test_independent_ppo_learns_both_sides() -> None:
    returns = independent_ppo.train(str(CONFIGS / "message_game.yaml"))
    assert min(returns[-1].values()) > 0.9
    assert max(returns[0].values()) < 0.3


def test_skrl_learns_in_a_seat(run: Path) -> None:
    from skrl.agents.torch.ppo import PPO
    from skrl.envs.wrappers.torch import wrap_env
    from skrl.memories.torch import RandomMemory
    from skrl.models.torch import DeterministicMixin, Model, MultiCategoricalMixin
    from skrl.trainers.torch import SequentialTrainer

    torch.manual_seed(0)
    seat = gymnasium.make_vec("nip_ray/Seat-v0", num_envs=64, run_dir=run, agent="verifier")
    env = wrap_env(seat, wrapper="gymnasium", verbose=False)
    spaces: dict[str, Any] = dict(
        observation_space=env.observation_space, action_space=env.action_space, device=torch.device("cpu")
    )

    def network(out: int) -> nn.Module:
        width = gymnasium.spaces.flatdim(env.observation_space)
        return nn.Sequential(nn.Linear(width, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, out))

    class Policy(MultiCategoricalMixin, Model):
        def __init__(self) -> None:
            Model.__init__(self, **spaces)
            MultiCategoricalMixin.__init__(self)
            self.network = network(sum(env.action_space.nvec))

        def compute(self, inputs: dict[str, Any], role: str = "") -> tuple[Any, dict[str, Any]]:
            return self.network(inputs["observations"]), {}

    class Value(DeterministicMixin, Model):
        def __init__(self) -> None:
            Model.__init__(self, **spaces)
            DeterministicMixin.__init__(self)
            self.network = network(1)

        def compute(self, inputs: dict[str, Any], role: str = "") -> tuple[Any, dict[str, Any]]:
            return self.network(inputs["observations"]), {}

    agent = PPO(
        models={"policy": Policy(), "value": Value()},
        memory=RandomMemory(memory_size=16, num_envs=64, device=torch.device("cpu")),
        cfg={"rollouts": 16, "learning_epochs": 8, "mini_batches": 4, "entropy_loss_scale": 0.005,
             "experiment": {"write_interval": 0, "checkpoint_interval": 0}},
        **spaces,
    )  # fmt: skip
    trainer = SequentialTrainer(
        env=env, agents=agent, cfg={"timesteps": 640, "headless": True, "close_environment_at_exit": False}
    )
    trainer.train()
    seen, paid, ended = env.reset()[0], 0.0, 0
    for _ in range(64):
        with torch.no_grad():
            actions, _ = agent.policy.act({"observations": seen}, role="policy")
            seen, rewards, terminated, _, _ = env.step(actions)
        paid, ended = paid + float(rewards.sum()), ended + int(terminated.sum())
    assert paid / ended > 0.6
