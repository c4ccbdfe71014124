"""PPO for independent agents, from rollouts: values and advantages over own turns, then joint minibatches.

The losses are in `nip_ray.learning.policy_gradient`; this module has the config, the data flow and the update.
"""

# RLlib annotates more narrowly than it behaves:
# pyright: basic, reportArgumentType=false, reportOptionalMemberAccess=false, reportAttributeAccessIssue=false
# pyright: reportReturnType=false, reportOptionalSubscript=false, reportIncompatibleMethodOverride=false
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from ray.rllib.algorithms.algorithm import Algorithm
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.core.learner import Learner
from ray.rllib.utils.annotations import override
from torch import Tensor, nn

from nip_ray.learning.groups import learning_mode
from nip_ray.learning.policy import LogPolicy
from nip_ray.learning.policy_gradient import (
    PlayedTurns,
    entropy_weight,
    mean,
    next_beta,
    next_lr,
    ppo_loss,
    turn_counts,
)
from nip_ray.play.rollout import Rollout
from nip_ray.rllib.algorithm import ProtocolAlgorithm
from nip_ray.rllib.beyond_sampled import further_terms, imitation_loss, weights_of
from nip_ray.rllib.config import ProtocolAlgorithmConfig
from nip_ray.rllib.learner import (
    AgentData,
    Loss,
    Prepared,
    ProtocolLearner,
    Step,
    agent_data,
    explained_variance,
    normalised,
)
from nip_ray.settings.ppo import PPOSettings

_LARGEST_LOG_WEIGHT = math.log(2.0)  # for rollouts with older weights; the default bound of REINFORCE


class ProtocolPPOConfig(ProtocolAlgorithmConfig):
    """Config of `ProtocolPPO`::

    config = ProtocolPPOConfig().experiment(load_config("tune_configs/quickstart.yaml")).training(lr=1e-3)
    algorithm = config.build_algo()
    algorithm.train()
    """

    settings_class = PPOSettings

    def __init__(self, algo_class: type[Algorithm] | None = None) -> None:
        super().__init__(algo_class=algo_class or ProtocolPPO)

    @override(AlgorithmConfig)
    def get_default_learner_class(self) -> type[Learner]:
        """Our PPO learner."""
        return PPOLearner


class ProtocolPPO(ProtocolAlgorithm):
    """Independent PPO; the update is `PPOLearner`'s."""

    @classmethod
    @override(Algorithm)
    def get_default_config(cls) -> ProtocolPPOConfig:
        """A `ProtocolPPOConfig`."""
        return ProtocolPPOConfig()


class PPOLearner(ProtocolLearner[PPOSettings]):
    """Independent PPO learners, one per agent, updated in lock-step."""

    def build(self) -> None:
        """Also the coefficients of the KL penalty and the adaptive learning rates, one per agent."""
        super().build()
        self.beta = {agent: torch.tensor(self.settings.kl_beta, device=self.device) for agent in self.networks}
        self.lr = {agent: self.own_lr(agent, self.settings.lr) for agent in self.optimizers}

    def set_learning_rates(self, lr: float) -> None:
        """The base learning rate, or each agent's own if adaptive."""
        if not self.settings.adaptive_lr:
            super().set_learning_rates(lr)
            return
        for agent, optimizer in self.optimizers.items():
            optimizer.set_learning_rate(self.lr[agent])

    @torch.no_grad()
    def prepare(self, rollout: Rollout) -> Prepared:
        """Rows, values, advantages and targets of every agent that learns and had a turn."""
        agents, metrics = {}, {}
        for agent in self.scenario.protocol.agents:
            if agent not in self.updated:
                continue
            data = agent_data(self.scenario, self.networks[agent], rollout, agent, self.settings)
            if data is None:
                continue
            if self.config.max_staleness and not data.only_taught:
                data = as_of_now(self.networks[agent], data, self.settings.skip_silent_messages)
            agents[agent] = data
            metrics[agent] = {} if data.only_taught else {"explained_variance": explained_variance(data)}
            if self.settings.loss == "kl_penalty":
                metrics[agent]["kl_beta"] = self.beta[agent]
            if self.settings.adaptive_lr:
                metrics[agent]["lr"] = torch.tensor(self.lr[agent])
        return Prepared(agents, metrics)

    def agent_loss(self, agent: str, data: AgentData, own: Tensor, all_rows: Tensor) -> Loss:
        """The PPO loss; advantages are normalised over all rows of the minibatch, on all learners.

        value_error is the mean absolute difference of value and target.
        """
        settings, rows, network = self.settings, data.rows, self.networks[agent]
        obs = rows.obs_of(own)
        if data.only_taught:
            return imitation_loss(network(obs, True, False)[0], rows, own, all_rows)
        action = rows.action_of(own)
        policy, value_N = network(obs)
        if settings.skip_silent_messages:
            policy = policy.silenced(action)
        log_policy: LogPolicy = policy.normalised()
        advantage_N = data.advantage_N[own]
        if settings.normalize_advantage:
            advantage_N = normalised(data, own, all_rows)
        if data.weight_N is not None:
            advantage_N = advantage_N * data.weight_N[own]
        log_prob_N, old_log_prob_N = log_policy.log_prob(action), rows.log_prob_N[own]
        # the rule's terms are means over these: all turns by default
        drawn_N, sampled_N = weights_of(data, own)
        message, decision = mean(log_policy.message_entropy(), drawn_N), mean(log_policy.decision_entropy(), drawn_N)
        played = PlayedTurns(old_log_prob_N, data.value_N[own], advantage_N, data.target_N[own], drawn_N, sampled_N)
        loss = ppo_loss(
            log_prob_N, message + decision, value_N, played, settings, self.beta[agent], entropy_weight(settings, agent)
        )
        clip = settings.clip_epsilon if settings.loss == "clip" else None
        further = further_terms(policy, log_policy, data, own, all_rows, settings.normalize_advantage, clip)
        metrics = {
            "objective": loss.objective,
            "entropy_loss": loss.entropy,
            "critic": loss.critic,
            "entropy": message + decision,
            "message_entropy": message,
            "decision_entropy": decision,
            "kl": loss.kl,
            "clip_share": loss.clip_share,
            "value_error": mean((value_N - data.target_N[own]).abs(), drawn_N),
            **further,
            **turn_counts(drawn_N),
        }
        moves = settings.loss == "kl_penalty" or settings.adaptive_lr
        log_ratio_N = (log_prob_N - old_log_prob_N).detach()
        sums = _divergence(log_ratio_N if drawn_N is None else log_ratio_N[drawn_N > 0]) if moves else None
        return Loss(sum(further.values(), loss.value), metrics, sums)

    def after_minibatch(self, prepared: Prepared, steps: Mapping[str, Step]) -> None:
        """Adapt the KL coefficients of the agents that had rows in this minibatch, on any learner."""
        if self.settings.loss != "kl_penalty" or not prepared.agents:
            return
        seen = {agent: [step] for agent, step in steps.items()}
        for agent, (total, _, count) in self._over_learners(seen, prepared).items():
            moved = next_beta(self.beta[agent], total / count.clamp_min(1), self.settings)
            self.beta[agent] = torch.where(count > 0, moved, self.beta[agent])

    def after_update(self, prepared: Prepared, steps: Mapping[str, list[Step]]) -> None:
        """Adapt the learning rates by the mean divergence of the update."""
        if not self.settings.adaptive_lr or not prepared.agents:
            return
        for agent, (_, total, count) in self._over_learners(steps, prepared).items():
            if count > 0:
                self.lr[agent] = next_lr(self.lr[agent], float(total / count), self.settings)

    def extra_state(self) -> dict[str, Any]:
        """The KL coefficients and the adaptive learning rates."""
        return {"kl_beta": {agent: float(beta) for agent, beta in self.beta.items()}, "lr": dict(self.lr)}

    def load_extra_state(self, state: Mapping[str, Any]) -> None:
        """The inverse of `extra_state`."""
        self.beta = {agent: torch.tensor(value, device=self.device) for agent, value in state["kl_beta"].items()}
        self.lr = {**self.lr, **state.get("lr", {})}

    def _over_learners(self, steps: Mapping[str, Sequence[Step]], prepared: Prepared) -> dict[str, Tensor]:
        """The sums of all steps and learners, agent by agent, in one call: a learner may lack rows of some agents."""
        nothing = torch.zeros(3, device=self.device)
        seen_A3 = torch.stack(
            [
                sum((step.sums for step in steps.get(agent, ()) if step.sums is not None), nothing)
                for agent in prepared.agents
            ]
        )
        if self.distributed:
            torch.distributed.all_reduce(seen_A3)
        return dict(zip(prepared.agents, seen_A3.unbind(), strict=True))


@torch.no_grad()
def as_of_now(network: nn.Module, data: AgentData, skip_silent_messages: bool) -> AgentData:
    """Data of a rollout with older weights. Ratios are to the probabilities under the current weights, and rows are
    weighted by the ratio of the actions' current probabilities to those at play, at most 2.

    Source: Hilton, Cobbe and Schulman, "Batch size-invariance for policy optimization", 2022, section 3: the decoupled
    clipped objective, mean w min(rho A, clip(rho) A), whose weights w have no bound there. With ratios to the playing
    weights, an update would start at the edge of the clip range, where the previous one ended.
    """
    network.eval()
    action = data.rows.action
    policy, _ = network(data.rows.obs, True, False)
    now_N = (policy.silenced(action) if skip_silent_messages else policy).log_prob(action)
    learning_mode(network)
    weight_N = (now_N - data.rows.log_prob_N).clamp(max=_LARGEST_LOG_WEIGHT).exp()
    return replace(data, rows=replace(data.rows, log_prob_N=now_N), weight_N=weight_N)


def _divergence(log_ratio_N: Tensor) -> Tensor:
    """(3,): sums of -log ratio and of the k3 estimate, which is never negative (Schulman, "Approximating KL
    divergence", 2020), and N."""
    unbiased = (log_ratio_N.exp() - 1 - log_ratio_N).sum()
    return torch.stack([-log_ratio_N.sum(), unbiased, torch.full_like(unbiased, len(log_ratio_N))])
