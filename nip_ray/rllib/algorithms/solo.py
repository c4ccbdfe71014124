"""`SoloAgent`: supervised training of one agent on the labels, as an RLlib `Algorithm`."""

# RLlib annotates more narrowly than it behaves:
# pyright: basic, reportArgumentType=false, reportOptionalMemberAccess=false, reportAttributeAccessIssue=false
# pyright: reportReturnType=false, reportOptionalSubscript=false, reportIncompatibleMethodOverride=false
from ray.rllib.algorithms.algorithm import Algorithm
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.core.learner import Learner
from ray.rllib.utils.annotations import override

from nip_ray.rllib.algorithms.base import ProtocolAlgorithm
from nip_ray.rllib.algorithms.config import ProtocolAlgorithmConfig
from nip_ray.settings.solo import SoloSettings


class SoloAgentConfig(ProtocolAlgorithmConfig):
    """Config of `SoloAgent`; settings: `SoloSettings`. The game is the derived protocol in which the agent plays alone."""

    settings_class = SoloSettings

    def __init__(self, algo_class: type[Algorithm] | None = None) -> None:
        super().__init__(algo_class=algo_class or SoloAgent)

    @override(AlgorithmConfig)
    def get_default_learner_class(self) -> type[Learner]:
        """Our supervised learner."""
        from nip_ray.rllib.learners.solo import SoloLearner

        return SoloLearner


class SoloAgent(ProtocolAlgorithm):
    """One agent plays alone and decides at once; it learns from the labels. See `nip_ray.rllib.learners.solo` for the update."""

    @classmethod
    @override(Algorithm)
    def get_default_config(cls) -> SoloAgentConfig:
        """A `SoloAgentConfig`."""
        return SoloAgentConfig()
