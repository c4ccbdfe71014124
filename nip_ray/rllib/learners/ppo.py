"""PPO for independent agents, from rollouts: values and advantages over own turns, then joint minibatches.

The losses are in `nip_ray.learning.ppo`; here stands what is done with which rows.
"""

# RLlib annotates more narrowly than it behaves:
# pyright: basic, reportArgumentType=false, reportOptionalMemberAccess=false, reportAttributeAccessIssue=false
# pyright: reportReturnType=false, reportOptionalSubscript=false, reportIncompatibleMethodOverride=false
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from nip_ray.learning.advantages import normalise, own_turn_advantages
from nip_ray.learning.policy import LogPolicy
from nip_ray.learning.ppo import critic, next_beta, objective
from nip_ray.play.batch import AgentRows, own_rows
from nip_ray.play.rollout import Rollout
from nip_ray.rllib.learners.base import JointMinibatch, ProtocolLearner, learning_mode
from nip_ray.settings.ppo import PPOSettings

_METRICS = ("objective", "entropy_loss", "critic", "entropy", "message_entropy", "decision_entropy", "kl", "clip_share", "value_error")


@dataclass(frozen=True)
class AgentData:
    """One agent's rows with old values, advantages and value targets, each (N,)."""

    rows: AgentRows
    value_N: Tensor
    advantage_N: Tensor
    target_N: Tensor


class PPOLearner(ProtocolLearner):
    """Independent PPO learners, one per agent, updated in lock-step."""

    def build(self) -> None:
        """Also the coefficients of the KL penalty, one per agent."""
        super().build()
        self.beta = {agent: torch.tensor(self.settings.kl_beta, device=self._device) for agent in self.networks}
        self.seen_kl: dict[str, Tensor] = {}  # of the current minibatch: (sum over this learner's rows, number of rows)

    @cached_property
    def settings(self) -> PPOSettings:
        """The algorithm's settings, put together once: every minibatch asks for them."""
        return self.config.ppo_settings()

    def metric_names(self) -> tuple[str, ...]:
        """Means over minibatches; value_error is the mean absolute difference of value and target."""
        return _METRICS

    @torch.no_grad()
    def prepare(self, rollout: Rollout) -> dict[str, AgentData]:
        """Rows, values, advantages and targets of every agent that learns and had a turn."""
        settings, prepared = self.settings, {}
        for index, agent in enumerate(self.scenario.protocol.agents):
            if agent not in self.optimizers:
                continue
            rows = own_rows(self.scenario, rollout, agent)
            if len(rows.copy_N) == 0:
                continue
            network = self.networks[agent].eval()
            _, value_N = network(rows.obs, False, True)
            learning_mode(network)
            advantage_BR, target_BR = own_turn_advantages(
                rollout.reward_BRA[:, :, index], rows.spread(value_N), rows.row_BR >= 0, settings.gamma, settings.lam
            )
            at = (rows.copy_N, rows.round_N)
            target_N = target_BR[at]
            prepared[agent] = AgentData(rows, value_N, advantage_BR[at], target_N)
            unexplained = (target_N - value_N).var(unbiased=False) / target_N.var(unbiased=False).clamp_min(1e-6)
            self.once[agent] = {"explained_variance": 1 - unexplained}
            if settings.loss == "kl_penalty":
                self.once[agent]["kl_beta"] = self.beta[agent]
        return prepared

    def losses(self, prepared: Mapping[str, AgentData], minibatch: JointMinibatch) -> dict[str, Tensor]:
        """Each agent's PPO loss; advantages are normalised over all rows of the minibatch, whoever works on them."""
        found = {}
        for agent, data in prepared.items():
            all_rows = data.rows.of_copies(minibatch.all_copies)
            own = all_rows if len(minibatch.own_copies) == len(minibatch.all_copies) else data.rows.of_copies(minibatch.own_copies)
            if len(own):
                found[agent] = self._loss(agent, data, all_rows, own)
            elif len(all_rows):  # another learner has rows: take part in the step
                found[agent] = torch.zeros((), device=self._device)
        return found

    def _loss(self, agent: str, data: AgentData, all_rows: Tensor, own: Tensor) -> Tensor:
        settings, rows = self.settings, data.rows
        obs = {key: value[own] for key, value in rows.obs.items()}
        action = {key: value[own] for key, value in rows.action.items()}
        policy, value_N = self.networks[agent](obs)
        if settings.skip_silent_messages:
            policy = policy.silenced(action)
        log_policy: LogPolicy = policy.normalised()
        advantage_N = data.advantage_N[own]
        if settings.normalize_advantage:
            advantage_N = _normalised_like(advantage_N, data.advantage_N[all_rows])
        actor, kl, clip_share = objective(log_policy.log_prob(action), rows.log_prob_N[own], advantage_N, settings, self.beta[agent])
        message, decision = log_policy.message_entropy().mean(), log_policy.decision_entropy().mean()
        entropy = message + decision
        critic_loss = settings.critic_coefficient * critic(value_N, data.value_N[own], data.target_N[own], settings)
        entropy_loss = -settings.entropy_coefficient * entropy
        error = (value_N - data.target_N[own]).abs().mean()
        parts = (actor, entropy_loss, critic_loss, entropy, message, decision, kl, clip_share, error)
        self.sums.setdefault(agent, []).append(torch.stack([part.detach() for part in parts]))
        self.seen_kl[agent] = torch.stack([kl * len(own), torch.full_like(kl, len(own))])
        share = len(own) / len(all_rows)
        return (actor + entropy_loss + critic_loss) * share

    def after_minibatch(self, prepared: Mapping[str, AgentData]) -> None:
        """Move the KL coefficients of the agents that had rows in this minibatch, on whichever learner."""
        if self.settings.loss != "kl_penalty" or not prepared:
            return
        nothing = torch.zeros(2, device=self._device)
        seen_A2 = torch.stack([self.seen_kl.get(agent, nothing) for agent in prepared])
        self.seen_kl = {}
        if self.distributed:  # one call for all agents: a learner may have no rows of some of them
            torch.distributed.all_reduce(seen_A2)
        for agent, (total, count) in zip(prepared, seen_A2.unbind(), strict=True):
            moved = next_beta(self.beta[agent], total / count.clamp_min(1), self.settings)
            self.beta[agent] = torch.where(count > 0, moved, self.beta[agent])

    @torch.no_grad()
    def refresh_statistics(self, prepared: Mapping[str, AgentData]) -> None:
        """One pass over all rows moves the running statistics of batch norms (the same on every learner)."""
        for agent, data in prepared.items():
            found = [module for module in self.networks[agent].modules() if isinstance(module, nn.BatchNorm1d)]
            norms = [norm for norm in found if norm.weight.requires_grad]  # a frozen body's stay as they are
            if norms:
                self.networks[agent].eval()
                for norm in norms:
                    norm.train()
                self.networks[agent](data.rows.obs)
                learning_mode(self.networks[agent])

    def extra_state(self) -> dict[str, Any]:
        """The KL coefficients."""
        return {"kl_beta": {agent: float(beta) for agent, beta in self.beta.items()}}

    def load_extra_state(self, state: Mapping[str, Any]) -> None:
        """The inverse of `extra_state`."""
        self.beta = {agent: torch.tensor(value, device=self._device) for agent, value in state["kl_beta"].items()}


def _normalised_like(own_N: Tensor, all_N: Tensor) -> Tensor:
    """`own_N` by the mean and deviation of `all_N` (the same rows or more)."""
    if own_N.shape == all_N.shape:
        return normalise(all_N)
    return (own_N - all_N.mean()) / all_N.std(unbiased=False).clamp_min(1e-6)
