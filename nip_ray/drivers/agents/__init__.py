"""The built-in agents, by name."""

from typing import Any

from nip_ray.drivers.agents.dqn import DQNAgent
from nip_ray.drivers.agents.ppo import PPOAgent
from nip_ray.drivers.agents.random import RandomAgent
from nip_ray.drivers.contract import Agent
from nip_ray.seeding import stable_seed
from nip_ray.settings.drivers import LearnerSettings

AGENTS: dict[str, Any] = {"ppo": PPOAgent, "dqn": DQNAgent, "random": RandomAgent}
"""Name -> class, called with (observation space, action space, copies, algorithm settings, network settings, seed)."""


def make_agent(
    settings: LearnerSettings, observation_space: Any, action_space: Any, num_copies: int, seed: int, place: int
) -> Agent:
    """The agent of the learner at `place` among all. Raises UserError when its algorithm does not fit the spaces."""
    own_seed = stable_seed(seed, "learner", place)
    made: Agent = AGENTS[settings.algorithm.name](
        observation_space, action_space, num_copies, settings.algorithm, settings.network, own_seed
    )
    return made
