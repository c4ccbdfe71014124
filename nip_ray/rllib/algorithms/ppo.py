"""`ProtocolPPO`: independent PPO learners on a batched protocol, as an RLlib `Algorithm`."""

# RLlib annotates more narrowly than it behaves:
# pyright: basic, reportArgumentType=false, reportOptionalMemberAccess=false, reportAttributeAccessIssue=false
# pyright: reportReturnType=false, reportOptionalSubscript=false, reportIncompatibleMethodOverride=false
from ray.rllib.algorithms.algorithm import Algorithm
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.core.learner import Learner
from ray.rllib.utils.annotations import override

from nip_ray.rllib.algorithms.base import ProtocolAlgorithm
from nip_ray.rllib.algorithms.config import ProtocolAlgorithmConfig
from nip_ray.settings.ppo import PPOSettings


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
        from nip_ray.rllib.learners.ppo import PPOLearner

        return PPOLearner


class ProtocolPPO(ProtocolAlgorithm):
    """Independent PPO; see `nip_ray.rllib.learners.ppo` for the update."""

    @classmethod
    @override(Algorithm)
    def get_default_config(cls) -> ProtocolPPOConfig:
        """A `ProtocolPPOConfig`."""
        return ProtocolPPOConfig()
