"""One agent alone on the labels: it plays the derived protocol in which it decides at once, and learns from the label.

The loss is in `nip_ray.learning.policy`.
"""

# RLlib annotates more narrowly than it behaves:
# pyright: basic, reportArgumentType=false, reportOptionalMemberAccess=false, reportAttributeAccessIssue=false
# pyright: reportReturnType=false, reportOptionalSubscript=false, reportIncompatibleMethodOverride=false
from dataclasses import dataclass, replace

from ray.rllib.algorithms.algorithm import Algorithm
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.core.learner import Learner
from ray.rllib.utils.annotations import override
from torch import Tensor

from nip_ray.learning.policy import accuracy, decision_loss
from nip_ray.play.rollout import AgentRows, Rollout, own_rows
from nip_ray.rllib.algorithm import ProtocolAlgorithm
from nip_ray.rllib.config import ProtocolAlgorithmConfig
from nip_ray.rllib.learner import Loss, Prepared, ProtocolLearner
from nip_ray.settings.solo import SoloSettings


class SoloAgentConfig(ProtocolAlgorithmConfig):
    """Config of `SoloAgent`; settings: `SoloSettings`. The game is the derived protocol for an agent alone."""

    settings_class = SoloSettings

    def __init__(self, algo_class: type[Algorithm] | None = None) -> None:
        super().__init__(algo_class=algo_class or SoloAgent)

    @override(AlgorithmConfig)
    def get_default_learner_class(self) -> type[Learner]:
        """Our supervised learner."""
        return SoloLearner


class SoloAgent(ProtocolAlgorithm):
    """One agent plays alone and decides at once; it learns from the labels."""

    @classmethod
    @override(Algorithm)
    def get_default_config(cls) -> SoloAgentConfig:
        """A `SoloAgentConfig`."""
        return SoloAgentConfig()


@dataclass(frozen=True)
class LabelledRows:
    """The rows of round 0, without any messages, with their labels (N,)."""

    rows: AgentRows
    y_N: Tensor


class SoloLearner(ProtocolLearner[SoloSettings]):
    """Supervised learning of the agent's decision, through its whole network."""

    def rounds_per_copy(self, rollout: Rollout) -> int:
        """An instance is one frame."""
        return 1

    def prepare(self, rollout: Rollout) -> Prepared:
        """The first turns of all copies."""
        turn_BRA = rollout.turn_BRA.clone()
        turn_BRA[:, 1:] = False
        (agent,) = self.scenario.protocol.agents
        if agent not in self.updated:
            return Prepared({})
        rows = own_rows(self.scenario, replace(rollout, turn_BRA=turn_BRA), agent)
        return Prepared({agent: LabelledRows(rows, rollout.y_B[rows.copy_N])})

    def agent_loss(self, agent: str, data: LabelledRows, own: Tensor, all_rows: Tensor) -> Loss:
        """Cross-entropy of the decision and the label."""
        policy, _ = self.networks[agent](data.rows.obs_of(own), True, False)
        loss = decision_loss(policy, data.y_N[own])
        return Loss(loss, {"loss": loss, "accuracy": accuracy(policy, data.y_N[own])})
