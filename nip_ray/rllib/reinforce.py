"""REINFORCE for independent agents: the reward to go within the episode, or advantages of a critic.

The loss is in `nip_ray.learning.policy_gradient`; this module has the config and the data flow.
"""

# RLlib annotates more narrowly than it behaves:
# pyright: basic, reportArgumentType=false, reportOptionalMemberAccess=false, reportAttributeAccessIssue=false
# pyright: reportReturnType=false, reportOptionalSubscript=false, reportIncompatibleMethodOverride=false
import torch
from ray.rllib.algorithms.algorithm import Algorithm
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.core.learner import Learner
from ray.rllib.utils.annotations import override
from torch import Tensor

from nip_ray.learning.policy import LogPolicy
from nip_ray.learning.policy_gradient import (
    critic,
    entropy_weight,
    mean,
    part,
    returns_to_go,
    score_loss,
    turn_counts,
)
from nip_ray.play.rollout import Rollout, own_rows
from nip_ray.rllib.algorithm import ProtocolAlgorithm
from nip_ray.rllib.beyond_sampled import further_terms, imitation_loss, weights_of
from nip_ray.rllib.config import ProtocolAlgorithmConfig
from nip_ray.rllib.learner import (
    AgentData,
    Loss,
    Prepared,
    ProtocolLearner,
    agent_data,
    all_taught,
    explained_variance,
    normalised,
    taught_data,
    with_verdicts,
)
from nip_ray.settings.ppo import ReinforceSettings


class ReinforceConfig(ProtocolAlgorithmConfig):
    """Config of `Reinforce`; settings: `ReinforceSettings`."""

    settings_class = ReinforceSettings

    def __init__(self, algo_class: type[Algorithm] | None = None) -> None:
        super().__init__(algo_class=algo_class or Reinforce)

    @override(AlgorithmConfig)
    def get_default_learner_class(self) -> type[Learner]:
        """Our REINFORCE learner."""
        return ReinforceLearner


class Reinforce(ProtocolAlgorithm):
    """REINFORCE with or without a critic; the update is `ReinforceLearner`'s."""

    @classmethod
    @override(Algorithm)
    def get_default_config(cls) -> ReinforceConfig:
        """A `ReinforceConfig`."""
        return ReinforceConfig()


class ReinforceLearner(ProtocolLearner[ReinforceSettings]):
    """Independent REINFORCE learners, one per agent, updated in lock-step."""

    @torch.no_grad()
    def prepare(self, rollout: Rollout) -> Prepared:
        """Rows with the weights of their log-probabilities: discounted reward to go, or generalised advantages."""
        agents, metrics = {}, {}
        for index, agent in enumerate(self.scenario.protocol.agents):
            if agent not in self.updated:
                continue
            if self.settings.baseline == "critic":
                data = agent_data(self.scenario, self.networks[agent], rollout, agent, self.settings)
                if data is not None:
                    agents[agent] = data
                    metrics[agent] = {} if data.only_taught else {"explained_variance": explained_variance(data)}
                continue
            rows = own_rows(self.scenario, rollout, agent)
            if len(rows.copy_N) and all_taught(rows):
                agents[agent] = taught_data(rows)
            elif len(rows.copy_N):
                return_N = returns_to_go(rollout.reward_BRA[:, :, index], self.settings.gamma)[
                    rows.copy_N, rows.round_N
                ]
                data = AgentData(rows, torch.zeros_like(return_N), return_N, return_N)
                agents[agent] = with_verdicts(
                    data, self.scenario, self.networks[agent], rollout, self.settings, before=False
                )
                metrics[agent] = {"reward_to_go": return_N.mean()}
        return Prepared(agents, metrics)

    def agent_loss(self, agent: str, data: AgentData, own: Tensor, all_rows: Tensor) -> Loss:
        """-mean log pi * weight, minus the entropy bonus, plus the critic's loss if there is one."""
        settings, rows, network = self.settings, data.rows, self.networks[agent]
        with_critic = settings.baseline == "critic"
        obs = rows.obs_of(own)
        if data.only_taught:
            return imitation_loss(network(obs, True, False)[0], rows, own, all_rows)
        action = rows.action_of(own)
        policy, value_N = network(obs, True, with_critic)
        if settings.skip_silent_messages:
            policy = policy.silenced(action)
        log_policy: LogPolicy = policy.normalised()
        weight_N = data.advantage_N[own]
        if settings.normalize_advantage:
            weight_N = normalised(data, own, all_rows)
        # the rule's terms are means over these: all turns by default
        drawn_N, sampled_N = weights_of(data, own)
        weight_N = weight_N if sampled_N is None else weight_N * sampled_N
        actor = score_loss(log_policy.log_prob(action), rows.log_prob_N[own], weight_N, settings.max_importance_weight)
        message, decision = mean(log_policy.message_entropy(), drawn_N), mean(log_policy.decision_entropy(), drawn_N)
        entropy_loss = part(-entropy_weight(settings, agent) * (message + decision), drawn_N)
        critic_loss = torch.zeros_like(actor)
        if with_critic:
            critic_loss = settings.critic_coefficient * critic(
                value_N, data.value_N[own], data.target_N[own], settings, drawn_N
            )
            critic_loss = part(critic_loss, drawn_N)
        further = further_terms(policy, log_policy, data, own, all_rows, settings.normalize_advantage, None)
        metrics = {
            "objective": actor,
            "entropy_loss": entropy_loss,
            "entropy": message + decision,
            "message_entropy": message,
            "decision_entropy": decision,
            "critic": critic_loss,
            **further,
            **turn_counts(drawn_N),
        }
        return Loss(sum(further.values(), actor + entropy_loss + critic_loss), metrics)
