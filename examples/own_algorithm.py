"""A custom algorithm: advantage-weighted regression (Peng et al., 2019, arXiv:1910.00177) for agents that learn
independently.

`examples/own_algorithm.yaml` trains with it: nip-ray train examples/own_algorithm.yaml
"""

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from nip_ray.learning.policy_gradient import critic
from nip_ray.play.rollout import Rollout
from nip_ray.plugins import register_algorithm
from nip_ray.rllib.config import ProtocolAlgorithmConfig
from nip_ray.rllib.learner import AgentData, Loss, Prepared, ProtocolLearner, agent_data, normalised_like
from nip_ray.settings.options import FORBID_UNKNOWN, option
from nip_ray.settings.ppo import OnPolicySettings


@dataclass(frozen=True)
class AWRSettings(OnPolicySettings):
    """Its settings, in addition to those of all policy gradients."""

    __pydantic_config__ = FORBID_UNKNOWN
    name: Literal["awr"] = option("awr", "The learning rule: advantage-weighted regression.")
    temperature: float = option(0.5, "Advantages are divided by this; lower follows the best moves more closely.", gt=0)


class AWRLearner(ProtocolLearner):
    """Increases the probability of actions by the exponential of their advantage."""

    def prepare(self, rollout: Rollout) -> Prepared:
        """Rows, advantages and value targets of every agent that learns and had a turn."""
        found = {
            agent: agent_data(self.scenario, self.networks[agent], rollout, agent, self.settings)
            for agent in sorted(self.updated)
        }
        return Prepared({agent: data for agent, data in found.items() if data is not None})

    def agent_loss(self, agent: str, data: AgentData, own: Tensor, all_rows: Tensor) -> Loss:
        """-mean min(exp(A / temperature), 20) log pi, and the critic's loss, over the rows `own`."""
        policy, value_N = self.networks[agent](data.rows.obs_of(own))
        advantage_N = normalised_like(data.advantage_N[own], data.advantage_N[all_rows])
        weight_N = (advantage_N / self.settings.temperature).exp().clamp(max=20)
        objective = -(weight_N * policy.log_prob(data.rows.action_of(own))).mean()
        value_loss = self.settings.critic_coefficient * critic(
            value_N, data.value_N[own], data.target_N[own], self.settings
        )
        metrics = {
            "objective": objective,
            "critic": value_loss,
            "entropy": policy.entropy().mean(),
        }  # logged as learn/<agent>/objective ...
        return Loss(objective + value_loss, metrics)


class AWRConfig(ProtocolAlgorithmConfig):  # an RLlib config, like the built-in ones
    settings_class = AWRSettings

    def get_default_learner_class(self) -> type[ProtocolLearner]:
        return AWRLearner


register_algorithm(AWRConfig)
