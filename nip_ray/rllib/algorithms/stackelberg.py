"""`StackelbergPG`: SPG, LOLA, SOS and their clipped variants on a batched protocol, as an RLlib `Algorithm`."""

# RLlib annotates more narrowly than it behaves:
# pyright: basic, reportArgumentType=false, reportOptionalMemberAccess=false, reportAttributeAccessIssue=false
# pyright: reportReturnType=false, reportOptionalSubscript=false, reportIncompatibleMethodOverride=false
from ray.rllib.algorithms.algorithm import Algorithm
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.core.learner import Learner
from ray.rllib.utils.annotations import override

from nip_ray.rllib.algorithms.base import ProtocolAlgorithm
from nip_ray.rllib.algorithms.config import ProtocolAlgorithmConfig
from nip_ray.settings.stackelberg import StackelbergSettings


class StackelbergPGConfig(ProtocolAlgorithmConfig):
    """Config of `StackelbergPG`; settings: `StackelbergSettings`."""

    settings_class = StackelbergSettings

    def __init__(self, algo_class: type[Algorithm] | None = None) -> None:
        super().__init__(algo_class=algo_class or StackelbergPG)

    @override(AlgorithmConfig)
    def get_default_learner_class(self) -> type[Learner]:
        """Our opponent-shaping learner."""
        from nip_ray.rllib.learners.stackelberg import StackelbergLearner

        return StackelbergLearner


class StackelbergPG(ProtocolAlgorithm):
    """Leaders who foresee how followers learn; see `nip_ray.rllib.learners.stackelberg` for the update."""

    @classmethod
    @override(Algorithm)
    def get_default_config(cls) -> StackelbergPGConfig:
        """A `StackelbergPGConfig`."""
        return StackelbergPGConfig()
