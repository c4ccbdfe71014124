"""`ProtocolPPO`: independent PPO learners on a batched protocol, as an RLlib `Algorithm`."""

# RLlib annotates more narrowly than it behaves:
# pyright: basic, reportArgumentType=false, reportOptionalMemberAccess=false, reportAttributeAccessIssue=false
# pyright: reportReturnType=false, reportOptionalSubscript=false, reportIncompatibleMethodOverride=false
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any, Self

from ray.rllib.algorithms.algorithm import Algorithm
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.core.learner import Learner
from ray.rllib.utils.annotations import override

from nip_ray.config.experiment import ExperimentConfig
from nip_ray.errors import UserError
from nip_ray.learning.ppo import base_lr
from nip_ray.rllib.algorithms.base import ProtocolAlgorithm, ProtocolAlgorithmConfig
from nip_ray.settings.ppo import PPOSettings

# our name -> RLlib's, where RLlib has a field of the same meaning: it stays readable and tunable under its own name
_RLLIB_NAMES = {"lr": "lr", "gamma": "gamma", "num_epochs": "num_epochs", "minibatch_size": "minibatch_size"}


class ProtocolPPOConfig(ProtocolAlgorithmConfig):
    """Config of `ProtocolPPO`::

    config = ProtocolPPOConfig().experiment(load_config("tune_configs/quickstart.yaml")).training(lr=1e-3)
    algorithm = config.build_algo()
    algorithm.train()
    """

    def __init__(self, algo_class: type[Algorithm] | None = None) -> None:
        super().__init__(algo_class=algo_class or ProtocolPPO)
        self._take(PPOSettings())

    @override(ProtocolAlgorithmConfig)
    def experiment(self, config: ExperimentConfig | Mapping[str, Any]) -> Self:
        """Take everything from an experiment config, the learning rule's settings included."""
        made = config if isinstance(config, ExperimentConfig) else ExperimentConfig.model_validate(config)
        super().experiment(made)
        self._take(made.algorithm)
        return self

    @override(AlgorithmConfig)
    def training(self, **kwargs: Any) -> Self:
        """Change fields of `PPOSettings` by name (lr, gamma, lam, clip_epsilon ...); others go to RLlib."""
        ours = {f.name for f in fields(PPOSettings)} - {"name"}
        changed = {key: kwargs.pop(key) for key in list(kwargs) if key in ours}
        if changed:  # not otherwise: RLlib calls this for keys of its own while it takes over what Tune has chosen
            self._take(replace(self.ppo_settings(), **changed))
        return super().training(**kwargs) if kwargs else self

    def ppo_settings(self) -> PPOSettings:
        """The settings in force: RLlib's own fields win where both exist, so that Tune can search over them."""
        return PPOSettings(**{**self.ppo, **{ours: getattr(self, theirs) for ours, theirs in _RLLIB_NAMES.items()}})

    @override(ProtocolAlgorithmConfig)
    def skips_silent_messages(self) -> bool:
        """As the settings say."""
        return self.ppo_settings().skip_silent_messages

    @override(ProtocolAlgorithmConfig)
    def base_lr(self, iteration: int) -> float:
        """The learning rate of an iteration, annealed over the experiment's iterations where the settings ask for it."""
        return base_lr(self.ppo_settings(), iteration, self.total_iterations)

    @override(AlgorithmConfig)
    def validate(self) -> None:
        """RLlib's checks, and ours."""
        if self.minibatch_size is None or self.minibatch_size < 1:
            raise UserError(f"minibatch_size: {self.minibatch_size}: must be at least 1 frame")
        super().validate()

    @override(AlgorithmConfig)
    def get_default_learner_class(self) -> type[Learner]:
        """Our PPO learner."""
        from nip_ray.rllib.learners.ppo import PPOLearner

        return PPOLearner

    def _take(self, settings: PPOSettings) -> None:
        # a dict, in which Tune finds search spaces, and without what RLlib has: Tune would find those twice
        self.ppo = {f.name: getattr(settings, f.name) for f in fields(settings) if f.name not in _RLLIB_NAMES}
        for ours, theirs in _RLLIB_NAMES.items():
            setattr(self, theirs, getattr(settings, ours))


class ProtocolPPO(ProtocolAlgorithm):
    """Independent PPO; see `nip_ray.rllib.learners.ppo` for the update."""

    @classmethod
    @override(Algorithm)
    def get_default_config(cls) -> ProtocolPPOConfig:
        """A `ProtocolPPOConfig`."""
        return ProtocolPPOConfig()
