"""PPO for agents that talk to each other, on one page and without Ray: play, advantages, loss, step.

    python examples/ppo_loop.py tune_configs/message_game.yaml --set iterations=20

Read this before the engine: `nip-ray train` does the same in the same order, to the same weights bit by bit (where
minibatches divide the copies), and adds what a long run needs: metrics, evaluation, checkpoints, workers, games that
are cut off, and refusals of what cannot work. Shapes: B copies of an episode, R rounds, N turns of one agent, K copies
of a minibatch.
"""

import argparse
from dataclasses import dataclass

import torch
from torch import Tensor

from nip_ray.config.experiment import ExperimentConfig
from nip_ray.config.load import AnyConfig, load_config
from nip_ray.errors import UserError
from nip_ray.evaluation.metrics import rollout_metrics
from nip_ray.learning.groups import FlatOptimizer, clip_gradients
from nip_ray.learning.policy_gradient import (
    PlayedTurns,
    base_lr,
    entropy_weight,
    normalise,
    own_turn_advantages,
    ppo_loss,
)
from nip_ray.play.core import BatchedPlay, episode_seeds, instance_ids, play_rollout
from nip_ray.play.rollout import AgentRows, Rollout, own_rows
from nip_ray.protocols import from_settings
from nip_ray.scenarios.registry import build_agents, build_scenario
from nip_ray.seeding import generator
from nip_ray.settings.ppo import PPOSettings


@dataclass(frozen=True)
class Data:
    """An agent's data: its turns (observations, actions, old log-probabilities), and three numbers for each."""

    rows: AgentRows
    value_N: Tensor
    advantage_N: Tensor
    target_N: Tensor


class PlainLoop:
    """`sample`, then `learn`, for every iteration. The networks are `agents`."""

    def __init__(self, experiment: AnyConfig, device: str = "cpu") -> None:
        if not isinstance(experiment, ExperimentConfig) or not isinstance(experiment.algorithm, PPOSettings):
            raise UserError(f"algorithm.name: got {experiment.algorithm.name}, expected ppo")
        if experiment.schedules:
            raise UserError("schedules: here everybody always learns, set it to {} or use `nip-ray train`")
        if experiment.search is not None or experiment.algorithm.verdict_gradient != "sampled":
            raise UserError(
                "search, algorithm.verdict_gradient: here actions that were drawn teach alone, use `nip-ray train`"
            )
        self.config, self.settings, self.device = experiment, experiment.algorithm, device
        self.scenario = build_scenario(from_settings(experiment.protocol), experiment.scenario).to(device)
        self.agents = {
            name: agent.to(device)
            for name, agent in build_agents(self.scenario, experiment.scenario, experiment.seed).items()
        }
        self.optimizers = {name: FlatOptimizer(agent.groups(), self.settings.lr) for name, agent in self.agents.items()}
        self.play = BatchedPlay(self.scenario, device)
        self.beta = torch.tensor(self.settings.kl_beta, device=device)  # only for the loss "kl_penalty"
        self.iteration = 0

    def sample(self) -> Rollout:
        """Play one iteration's episodes, all copies at once, to their ends."""
        seed, copies = self.config.seed, self.config.play.num_copies
        first = self.iteration * copies
        id_B = instance_ids(self.scenario, "train", seed, first, copies)
        noise = generator(seed, "play", self.iteration, 0, device=self.device)
        return play_rollout(
            self.play, self.agents, id_B, episode_seeds(seed, first, copies), noise, self.settings.skip_silent_messages
        )

    @torch.no_grad()
    def prepare(self, rollout: Rollout, agent: str) -> Data:
        """The agent's own turns and their advantages: from one of its turns to its next, across other agents' turns."""
        rows = own_rows(self.scenario, rollout, agent)
        _, value_N = self.agents[agent](rows.obs, False, True)
        reward_BR = rollout.reward_BRA[:, :, self.scenario.protocol.agents.index(agent)]
        advantage_BR, target_BR = own_turn_advantages(
            reward_BR, rows.spread(value_N), rows.row_BR >= 0, self.settings.gamma, self.settings.lam
        )
        turns = (rows.copy_N, rows.round_N)
        return Data(rows, value_N, advantage_BR[turns], target_BR[turns])

    def loss(self, agent: str, data: Data, own_N: Tensor) -> Tensor:
        """Policy objective, entropy bonus and critic of one agent, over some of its turns."""
        settings, rows = self.settings, data.rows
        action = rows.action_of(own_N)
        policy, value_N = self.agents[agent](rows.obs_of(own_N))
        if settings.skip_silent_messages:
            policy = policy.silenced(action)
        log_policy = policy.normalised()
        advantage_N = normalise(data.advantage_N[own_N])
        played = PlayedTurns(rows.log_prob_N[own_N], data.value_N[own_N], advantage_N, data.target_N[own_N])
        log_prob_N, entropy, bonus = (
            log_policy.log_prob(action),
            log_policy.entropy().mean(),
            entropy_weight(settings, agent),
        )
        return ppo_loss(log_prob_N, entropy, value_N, played, settings, self.beta, bonus).value

    def learn(self, rollout: Rollout) -> None:
        """All epochs over one iteration's episodes. A minibatch has the same copies for all agents, so they stay in
        step."""
        settings, optimizers = self.settings, list(self.optimizers.values())
        data = {agent: self.prepare(rollout, agent) for agent in self.scenario.protocol.agents}
        size = max(1, settings.minibatch_copies or settings.minibatch_size // rollout.num_rounds)
        shuffle = generator(self.config.seed, "minibatches", self.iteration)
        for optimizer in optimizers:
            optimizer.set_learning_rate(base_lr(settings, self.iteration, self.config.iterations))
        for _ in range(settings.num_epochs):
            for copy_K in torch.randperm(rollout.num_copies, generator=shuffle).to(self.device).split(size):
                losses = [self.loss(agent, own, own.rows.of_copies(copy_K)) for agent, own in data.items()]
                parameters = [parameter for optimizer in optimizers for parameter in optimizer.parameters]
                gradients = iter(torch.autograd.grad(losses, parameters, allow_unused=True))
                for optimizer in optimizers:
                    optimizer.set_gradients([next(gradients) for _ in optimizer.parameters])
                for group in (
                    [optimizers] if settings.clip_gradients == "joint" else [[optimizer] for optimizer in optimizers]
                ):
                    clip_gradients(group, settings.max_grad_norm)
                for optimizer in optimizers:
                    optimizer.step()
        self.iteration += 1


def main() -> None:
    """Train by a config, and print the results."""
    parser = argparse.ArgumentParser(description="PPO in a plain loop, without Ray.")
    parser.add_argument("config", help="YAML config with algorithm.name ppo")
    parser.add_argument("--set", action="append", default=[], metavar="A.B=C", help="set a key; repeatable")
    arguments = parser.parse_args()
    loop = PlainLoop(load_config(arguments.config, arguments.set))
    while loop.iteration < loop.config.iterations:
        rollout = loop.sample()
        loop.learn(rollout)
        found = rollout_metrics(loop.scenario.protocol, rollout, {})
        print(loop.iteration, *(f"{key} {value:.3f}" for key, value in found.items()), sep="  ")


if __name__ == "__main__":
    main()
