"""What the benchmarks share: a yardstick of the machine, medians, and a plain torch PPO loop without RLlib."""

import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nip_ray.config.experiment import ExperimentConfig
from nip_ray.config.load import load_config
from nip_ray.learning.advantages import normalise, own_turn_advantages
from nip_ray.learning.groups import FlatOptimizer, clip_gradients
from nip_ray.learning.ppo import base_lr, critic, objective
from nip_ray.play.batch import AgentRows, own_rows
from nip_ray.play.core import BatchedPlay, episode_seeds, instance_ids, play_rollout
from nip_ray.play.rollout import Rollout
from nip_ray.play.scenario import Scenario
from nip_ray.protocols import from_settings
from nip_ray.scenarios.registry import build_agents, build_scenario
from nip_ray.seeding import generator

ROOT = Path(__file__).resolve().parents[1]


def yardstick_ms() -> float:
    """Milliseconds for a fixed piece of work (forward and backward of a small graph network and an attention block)."""
    generator_ = torch.Generator().manual_seed(0)
    adjacency = (torch.rand(256, 22, 22, generator=generator_) < 0.4).float()
    features = torch.randn(256, 22, 16, generator=generator_)
    layers = [(nn.Linear(16, 64), nn.Linear(64, 16)) for _ in range(5)]
    joint = nn.Linear(16, 48)

    def work() -> None:
        x = features
        for up, down in layers:
            x = down(torch.tanh(up(torch.tanh(x) + adjacency @ x))) / 8
        q, k, v = joint(x).view(256, 22, 3, 4, 4).permute(2, 0, 3, 1, 4)
        F.scaled_dot_product_attention(q, k, v).pow(2).mean().backward()

    for _ in range(5):
        work()
    return statistics.median(timed(work) for _ in range(20)) * 1e3


def timed(function: Callable[[], Any]) -> float:
    """Seconds that one call takes."""
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def machine() -> str:
    """One line on the machine."""
    threads = torch.get_num_threads()
    return f"{platform.machine()}, {os.cpu_count()} cores, torch {torch.__version__}, {threads} threads, yardstick {yardstick_ms():.1f} ms"


def config(name: str, *overrides: str) -> ExperimentConfig:
    """A config of `tune_configs`."""
    return load_config(ROOT / "tune_configs" / f"{name}.yaml", overrides)


def show(title: str, figures: dict[str, Any]) -> None:
    """Print one result as a JSON line."""
    print(json.dumps({"benchmark": title, **figures}))


@dataclass(frozen=True)
class _Data:
    rows: AgentRows
    value_N: Tensor
    advantage_N: Tensor
    target_N: Tensor


class PlainLoop:
    """The same play and the same PPO as `ProtocolPPO`, as a plain torch loop: no RLlib, no metrics, no checks."""

    def __init__(self, experiment: ExperimentConfig, device: str = "cpu") -> None:
        self.config, self.settings = experiment, experiment.algorithm
        self.scenario: Scenario = build_scenario(from_settings(experiment.protocol), experiment.scenario).to(device)
        self.agents = {name: agent.to(device) for name, agent in build_agents(self.scenario, experiment.scenario, experiment.seed).items()}
        self.optimizers = {name: FlatOptimizer(agent.groups(), self.settings.lr) for name, agent in self.agents.items()}
        self.play, self.device, self.iteration = BatchedPlay(self.scenario, device), device, 0
        self.beta = torch.tensor(self.settings.kl_beta, device=device)

    def sample(self) -> Rollout:
        """One iteration's episodes."""
        seed, copies = self.config.seed, self.config.play.num_copies
        first = self.iteration * copies
        ids = instance_ids(self.scenario, "train", seed, first, copies)
        noise = generator(seed, "play", self.iteration, 0, device=self.device)
        return play_rollout(self.play, self.agents, ids, episode_seeds(seed, first, copies), noise, self.settings.skip_silent_messages)

    def learn(self, rollout: Rollout) -> None:
        """All epochs over one iteration's episodes."""
        settings = self.settings
        data = {agent: self._prepare(rollout, index, agent) for index, agent in enumerate(self.scenario.protocol.agents)}
        size = max(1, settings.minibatch_size // rollout.num_rounds)
        permute = generator(self.config.seed, "minibatches", self.iteration)
        for optimizer in self.optimizers.values():
            optimizer.set_learning_rate(base_lr(settings, self.iteration, self.config.iterations))
        for _ in range(settings.num_epochs):
            order = torch.randperm(rollout.num_copies, generator=permute).to(self.device)
            for copies in order.split(size):
                losses = [self._loss(agent, part, part.rows.of_copies(copies)) for agent, part in data.items()]
                parameters = [p for optimizer in self.optimizers.values() for p in optimizer.parameters]
                found = iter(torch.autograd.grad(losses, parameters, allow_unused=True))
                for optimizer in self.optimizers.values():
                    optimizer.set_gradients([next(found) for _ in optimizer.parameters])
                joint = settings.clip_gradients == "joint"
                for group in [list(self.optimizers.values())] if joint else [[o] for o in self.optimizers.values()]:
                    clip_gradients(group, settings.max_grad_norm)
                for optimizer in self.optimizers.values():
                    optimizer.step()
        self.iteration += 1

    @torch.no_grad()
    def _prepare(self, rollout: Rollout, index: int, agent: str) -> _Data:
        rows = own_rows(self.scenario, rollout, agent)
        _, value_N = self.agents[agent](rows.obs, False, True)
        advantage, target = own_turn_advantages(
            rollout.reward_BRA[:, :, index], rows.spread(value_N), rows.row_BR >= 0, self.settings.gamma, self.settings.lam
        )
        at = (rows.copy_N, rows.round_N)
        return _Data(rows, value_N, advantage[at], target[at])

    def _loss(self, agent: str, data: _Data, own: Tensor) -> Tensor:
        settings, rows = self.settings, data.rows
        policy, value_N = self.agents[agent]({key: value[own] for key, value in rows.obs.items()})
        action = {key: value[own] for key, value in rows.action.items()}
        if settings.skip_silent_messages:
            policy = policy.silenced(action)
        log_policy = policy.normalised()
        log_prob_N = log_policy.log_prob(action)
        advantage_N = normalise(data.advantage_N[own])
        actor, _, _ = objective(log_prob_N, rows.log_prob_N[own], advantage_N, settings, self.beta)
        entropy = log_policy.entropy().mean()
        value_loss = critic(value_N, data.value_N[own], data.target_N[own], settings)
        return actor - settings.entropy_coefficient * entropy + settings.critic_coefficient * value_loss
