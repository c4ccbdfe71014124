"""Former place of the algorithms and their configs, kept for one version; each is now in its learning rule's file."""

import sys
import warnings

from nip_ray.rllib import algorithm, config, dqn, ppo, reinforce, solo, stackelberg
from nip_ray.rllib.algorithm import ProtocolAlgorithm
from nip_ray.rllib.config import ProtocolAlgorithmConfig
from nip_ray.rllib.dqn import ProtocolDQN, ProtocolDQNConfig
from nip_ray.rllib.ppo import ProtocolPPO, ProtocolPPOConfig
from nip_ray.rllib.reinforce import Reinforce, ReinforceConfig
from nip_ray.rllib.solo import SoloAgent, SoloAgentConfig
from nip_ray.rllib.stackelberg import StackelbergPG, StackelbergPGConfig

__all__ = [
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

warnings.warn(
    "nip_ray.rllib.algorithms: import from nip_ray.rllib.ppo, .reinforce, .stackelberg, .solo, .dqn, .config or"
    " .algorithm instead",
    DeprecationWarning,
    stacklevel=2,
)
_FORMER = {
    "base": algorithm,
    "config": config,
    "dqn": dqn,
    "ppo": ppo,
    "reinforce": reinforce,
    "solo": solo,
    "stackelberg": stackelberg,
}
sys.modules.update({f"{__name__}.{name}": module for name, module in _FORMER.items()})
