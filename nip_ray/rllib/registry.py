"""The learning rules that configs can name; `nip_ray.plugins.register_algorithm` adds your own."""

from nip_ray.rllib.config import ProtocolAlgorithmConfig
from nip_ray.rllib.dqn import ProtocolDQNConfig
from nip_ray.rllib.ppo import ProtocolPPOConfig
from nip_ray.rllib.reinforce import ReinforceConfig
from nip_ray.rllib.solo import SoloAgentConfig
from nip_ray.rllib.stackelberg import StackelbergPGConfig

ALGORITHMS: dict[str, type[ProtocolAlgorithmConfig]] = {
    "dqn": ProtocolDQNConfig,
    "ppo": ProtocolPPOConfig,
    "reinforce": ReinforceConfig,
    "solo": SoloAgentConfig,
    "stackelberg": StackelbergPGConfig,
}
"""`algorithm.name` -> the RLlib config of the rule."""
