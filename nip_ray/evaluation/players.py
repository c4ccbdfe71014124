"""The players of a run that is evaluated."""

from collections.abc import Mapping

from torch import nn

from nip_ray.config.experiment import ExperimentConfig
from nip_ray.config.learning_rules import value_learners
from nip_ray.learning.dqn import GreedyPlayer
from nip_ray.settings.dqn import DQNSettings


def players(config: ExperimentConfig, networks: Mapping[str, nn.Module]) -> dict[str, nn.Module]:
    """Agent -> who plays for it: its network, or what plays the best move where deep Q-learning made its logits values."""
    if not isinstance(config.algorithm, DQNSettings):
        return dict(networks)
    learned = value_learners(config, tuple(networks))
    return {agent: GreedyPlayer(network) if agent in learned else network for agent, network in networks.items()}
