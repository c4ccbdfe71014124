"""RLlib algorithms, one a learning rule, and their configs; `ALGORITHMS` has the config class of each `algorithm.name`."""

from nip_ray.rllib.algorithms.base import ProtocolAlgorithm
from nip_ray.rllib.algorithms.config import ProtocolAlgorithmConfig
from nip_ray.rllib.algorithms.dqn import ProtocolDQN, ProtocolDQNConfig
from nip_ray.rllib.algorithms.ppo import ProtocolPPO, ProtocolPPOConfig
from nip_ray.rllib.algorithms.reinforce import Reinforce, ReinforceConfig
from nip_ray.rllib.algorithms.solo import SoloAgent, SoloAgentConfig
from nip_ray.rllib.algorithms.stackelberg import StackelbergPG, StackelbergPGConfig

ALGORITHMS: dict[str, type[ProtocolAlgorithmConfig]] = {
    "dqn": ProtocolDQNConfig,
    "ppo": ProtocolPPOConfig,
    "reinforce": ReinforceConfig,
    "solo": SoloAgentConfig,
    "stackelberg": StackelbergPGConfig,
}

__all__ = [
    "ALGORITHMS",
    "ProtocolAlgorithm",
    "ProtocolAlgorithmConfig",
    "ProtocolDQN",
    "ProtocolDQNConfig",
    "ProtocolPPO",
    "ProtocolPPOConfig",
    "Reinforce",
    "ReinforceConfig",
    "SoloAgent",
    "SoloAgentConfig",
    "StackelbergPG",
    "StackelbergPGConfig",
]
