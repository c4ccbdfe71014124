"""REINFORCE for independent agents: the reward to go within the episode, or advantages of a critic.

The loss is in `nip_ray.learning.reinforce`; here stands what is done with which rows.
"""

# RLlib annotates more narrowly than it behaves:
# pyright: basic, reportArgumentType=false, reportOptionalMemberAccess=false, reportAttributeAccessIssue=false
# pyright: reportReturnType=false, reportOptionalSubscript=false, reportIncompatibleMethodOverride=false
import torch
from torch import Tensor

from nip_ray.learning.advantages import returns_to_go
from nip_ray.learning.policy import LogPolicy
from nip_ray.learning.ppo import critic
from nip_ray.learning.reinforce import score_loss
from nip_ray.play.batch import own_rows
from nip_ray.play.rollout import Rollout
from nip_ray.rllib.learners.base import ProtocolLearner
from nip_ray.rllib.learners.rows import AgentData, agent_data, explained_variance, normalised_like


class ReinforceLearner(ProtocolLearner):
    """Independent REINFORCE learners, one per agent, updated in lock-step."""

    def metric_names(self) -> tuple[str, ...]:
        """Means over minibatches; with a critic also its loss."""
        return ("objective", "entropy_loss", "entropy", "message_entropy", "decision_entropy", "critic")

    @torch.no_grad()
    def prepare(self, rollout: Rollout) -> dict[str, AgentData]:
        """Rows with what their log-probabilities are weighted by: discounted reward to go, or generalised advantages."""
        prepared = {}
        for index, agent in enumerate(self.scenario.protocol.agents):
            if agent not in self.updated:
                continue
            if self.settings.baseline == "critic":
                data = agent_data(self.scenario, self.networks[agent], rollout, agent, self.settings)
                if data is not None:
                    prepared[agent] = data
                    self.once[agent] = {"explained_variance": explained_variance(data)}
                continue
            rows = own_rows(self.scenario, rollout, agent)
            if len(rows.copy_N):
                return_N = returns_to_go(rollout.reward_BRA[:, :, index], self.settings.gamma)[rows.copy_N, rows.round_N]
                prepared[agent] = AgentData(rows, torch.zeros_like(return_N), return_N, return_N)
                self.once[agent] = {"reward_to_go": return_N.mean()}
        return prepared

    def agent_loss(self, agent: str, data: AgentData, own: Tensor, all_rows: Tensor) -> Tensor:
        """-mean log pi * weight, minus the entropy bonus, plus the critic's loss where there is one."""
        settings, rows = self.settings, data.rows
        with_critic = settings.baseline == "critic"
        action = rows.action_of(own)
        policy, value_N = self.networks[agent](rows.obs_of(own), True, with_critic)
        if settings.skip_silent_messages:
            policy = policy.silenced(action)
        log_policy: LogPolicy = policy.normalised()
        weight_N = data.advantage_N[own]
        if settings.normalize_advantage:
            weight_N = normalised_like(weight_N, data.advantage_N[all_rows])
        actor = score_loss(log_policy.log_prob(action), rows.log_prob_N[own], weight_N, settings.max_importance_weight)
        message, decision = log_policy.message_entropy().mean(), log_policy.decision_entropy().mean()
        entropy_loss = -settings.entropy_coefficient * (message + decision)
        critic_loss = torch.zeros_like(actor)
        if with_critic:
            critic_loss = settings.critic_coefficient * critic(value_N, data.value_N[own], data.target_N[own], settings)
        parts = (actor, entropy_loss, message + decision, message, decision, critic_loss)
        self.sums.setdefault(agent, []).append(torch.stack([part.detach() for part in parts]))
        return actor + entropy_loss + critic_loss
