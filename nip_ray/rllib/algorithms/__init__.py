"""RLlib algorithms: `ProtocolPPO` and its config."""

from nip_ray.rllib.algorithms.base import ProtocolAlgorithm, ProtocolAlgorithmConfig
from nip_ray.rllib.algorithms.ppo import ProtocolPPO, ProtocolPPOConfig

__all__ = ["ProtocolAlgorithm", "ProtocolAlgorithmConfig", "ProtocolPPO", "ProtocolPPOConfig"]
