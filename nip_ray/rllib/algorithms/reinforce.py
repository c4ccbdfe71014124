"""`Reinforce`: REINFORCE on a batched protocol, as an RLlib `Algorithm`."""

# RLlib annotates more narrowly than it behaves:
# pyright: basic, reportArgumentType=false, reportOptionalMemberAccess=false, reportAttributeAccessIssue=false
# pyright: reportReturnType=false, reportOptionalSubscript=false, reportIncompatibleMethodOverride=false
from ray.rllib.algorithms.algorithm import Algorithm
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.core.learner import Learner
from ray.rllib.utils.annotations import override

from nip_ray.rllib.algorithms.base import ProtocolAlgorithm
from nip_ray.rllib.algorithms.config import ProtocolAlgorithmConfig
from nip_ray.settings.reinforce import ReinforceSettings


class ReinforceConfig(ProtocolAlgorithmConfig):
    """Config of `Reinforce`; settings: `ReinforceSettings`."""

    settings_class = ReinforceSettings

    def __init__(self, algo_class: type[Algorithm] | None = None) -> None:
        super().__init__(algo_class=algo_class or Reinforce)

    @override(AlgorithmConfig)
    def get_default_learner_class(self) -> type[Learner]:
        """Our REINFORCE learner."""
        from nip_ray.rllib.learners.reinforce import ReinforceLearner

        return ReinforceLearner


class Reinforce(ProtocolAlgorithm):
    """REINFORCE with or without a critic; see `nip_ray.rllib.learners.reinforce` for the update."""

    @classmethod
    @override(Algorithm)
    def get_default_config(cls) -> ReinforceConfig:
        """A `ReinforceConfig`."""
        return ReinforceConfig()
