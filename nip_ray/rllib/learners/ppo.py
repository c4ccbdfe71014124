"""PPO for independent agents, from rollouts: values and advantages over own turns, then joint minibatches.

The losses are in `nip_ray.learning.ppo`; here stands what is done with which rows.
"""

# RLlib annotates more narrowly than it behaves:
# pyright: basic, reportArgumentType=false, reportOptionalMemberAccess=false, reportAttributeAccessIssue=false
# pyright: reportReturnType=false, reportOptionalSubscript=false, reportIncompatibleMethodOverride=false
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from nip_ray.learning.policy import LogPolicy
from nip_ray.learning.ppo import critic, next_beta, next_lr, objective
from nip_ray.play.rollout import Rollout
from nip_ray.rllib.learners.base import ProtocolLearner
from nip_ray.rllib.learners.rows import AgentData, agent_data, explained_variance, normalised_like

_METRICS = ("objective", "entropy_loss", "critic", "entropy", "message_entropy", "decision_entropy", "kl", "clip_share", "value_error")
_NO_KL = (0.0, 0.0, 0.0)


class PPOLearner(ProtocolLearner):
    """Independent PPO learners, one per agent, updated in lock-step."""

    def build(self) -> None:
        """Also the coefficients of the KL penalty and the adaptive learning rates, one per agent."""
        super().build()
        self.beta = {agent: torch.tensor(self.settings.kl_beta, device=self._device) for agent in self.networks}
        self.lr = {agent: self.own_lr(agent, self.settings.lr) for agent in self.optimizers}
        # of this learner's rows of the current minibatch, and of the whole update: sums of -log ratio and of the k3 estimate, rows
        self.seen_kl: dict[str, Tensor] = {}
        self.total_kl: dict[str, Tensor] = {}

    def metric_names(self) -> tuple[str, ...]:
        """Means over minibatches; value_error is the mean absolute difference of value and target."""
        return _METRICS

    def set_learning_rates(self, lr: float) -> None:
        """The base learning rate, or each agent's own where it adapts."""
        if not self.settings.adaptive_lr:
            super().set_learning_rates(lr)
            return
        for agent, optimizer in self.optimizers.items():
            optimizer.set_learning_rate(self.lr[agent])

    @torch.no_grad()
    def prepare(self, rollout: Rollout) -> dict[str, AgentData]:
        """Rows, values, advantages and targets of every agent that learns and had a turn."""
        prepared = {}
        self.seen_kl, self.total_kl = {}, {}
        for agent in self.scenario.protocol.agents:
            if agent not in self.updated:
                continue
            data = agent_data(self.scenario, self.networks[agent], rollout, agent, self.settings)
            if data is None:
                continue
            prepared[agent] = data
            self.once[agent] = {"explained_variance": explained_variance(data)}
            if self.settings.loss == "kl_penalty":
                self.once[agent]["kl_beta"] = self.beta[agent]
            if self.settings.adaptive_lr:
                self.once[agent]["lr"] = torch.tensor(self.lr[agent])
        return prepared

    def agent_loss(self, agent: str, data: AgentData, own: Tensor, all_rows: Tensor) -> Tensor:
        """The PPO loss; advantages are normalised over all rows of the minibatch, whoever works on them."""
        settings, rows = self.settings, data.rows
        obs = rows.obs_of(own)
        action = rows.action_of(own)
        policy, value_N = self.networks[agent](obs)
        if settings.skip_silent_messages:
            policy = policy.silenced(action)
        log_policy: LogPolicy = policy.normalised()
        advantage_N = data.advantage_N[own]
        if settings.normalize_advantage:
            advantage_N = normalised_like(advantage_N, data.advantage_N[all_rows])
        log_prob_N, old_log_prob_N = log_policy.log_prob(action), rows.log_prob_N[own]
        actor, kl, clip_share = objective(log_prob_N, old_log_prob_N, advantage_N, settings, self.beta[agent])
        message, decision = log_policy.message_entropy().mean(), log_policy.decision_entropy().mean()
        entropy = message + decision
        critic_loss = settings.critic_coefficient * critic(value_N, data.value_N[own], data.target_N[own], settings)
        entropy_loss = -settings.entropy_coefficient * entropy
        error = (value_N - data.target_N[own]).abs().mean()
        parts = (actor, entropy_loss, critic_loss, entropy, message, decision, kl, clip_share, error)
        self.sums.setdefault(agent, []).append(torch.stack([part.detach() for part in parts]))
        if settings.loss == "kl_penalty" or settings.adaptive_lr:
            self._see_kl(agent, (log_prob_N - old_log_prob_N).detach())
        return actor + entropy_loss + critic_loss

    def after_minibatch(self, prepared: Mapping[str, AgentData]) -> None:
        """Move the KL coefficients of the agents that had rows in this minibatch, on whichever learner."""
        if self.settings.loss != "kl_penalty" or not prepared:
            return
        for agent, (total, _, count) in self._over_learners(self.seen_kl, prepared).items():
            moved = next_beta(self.beta[agent], total / count.clamp_min(1), self.settings)
            self.beta[agent] = torch.where(count > 0, moved, self.beta[agent])
        self.seen_kl = {}

    def after_update(self, prepared: Mapping[str, AgentData]) -> None:
        """Move the adaptive learning rates, by the mean divergence of the update."""
        if not self.settings.adaptive_lr:
            return
        for agent, (_, total, count) in self._over_learners(self.total_kl, prepared).items():
            if count > 0:
                self.lr[agent] = next_lr(self.lr[agent], float(total / count), self.settings)

    def extra_state(self) -> dict[str, Any]:
        """The KL coefficients and the adaptive learning rates."""
        return {"kl_beta": {agent: float(beta) for agent, beta in self.beta.items()}, "lr": dict(self.lr)}

    def load_extra_state(self, state: Mapping[str, Any]) -> None:
        """The inverse of `extra_state`."""
        self.beta = {agent: torch.tensor(value, device=self._device) for agent, value in state["kl_beta"].items()}
        self.lr = {**self.lr, **state.get("lr", {})}

    def _see_kl(self, agent: str, log_ratio_N: Tensor) -> None:
        unbiased = (log_ratio_N.exp() - 1 - log_ratio_N).sum()  # k3: never negative (Schulman, "Approximating KL divergence", 2020)
        seen = torch.stack([-log_ratio_N.sum(), unbiased, torch.full_like(unbiased, len(log_ratio_N))])
        self.seen_kl[agent] = seen
        self.total_kl[agent] = self.total_kl[agent] + seen if agent in self.total_kl else seen

    def _over_learners(self, sums: Mapping[str, Tensor], agents: Mapping[str, Any]) -> dict[str, Tensor]:
        """The sums of all learners, agent by agent, in one call: a learner may have no rows of some of them."""
        nothing = torch.tensor(_NO_KL, device=self._device)
        seen_A3 = torch.stack([sums.get(agent, nothing) for agent in agents])
        if self.distributed:
            torch.distributed.all_reduce(seen_A3)
        return dict(zip(agents, seen_A3.unbind(), strict=True))
