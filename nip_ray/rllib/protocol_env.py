"""`ProtocolEnv`: one copy of the batched core as an RLlib `MultiAgentEnv`, for stock algorithms, third parties and
tests of equality."""

# RLlib annotates more narrowly than it behaves:
# pyright: basic, reportArgumentType=false, reportOptionalMemberAccess=false, reportAttributeAccessIssue=false
# pyright: reportReturnType=false, reportOptionalSubscript=false, reportIncompatibleMethodOverride=false
from collections.abc import Iterable
from typing import Any

import gymnasium as gym
from ray.rllib.env.multi_agent_env import MultiAgentEnv

from nip_ray.environments.single import SinglePlay
from nip_ray.rllib.shared import scenario_of


class ProtocolEnv(MultiAgentEnv):
    """One protocol copy. config: {"experiment": a dumped `ExperimentConfig`, "split": "train" (default) or "test"}.

    Agents with a turn get an observation and must act; actions are flat MultiDiscrete arrays (`Layout`).
    ``reset(options={"id": i, "seed": s})`` starts a given instance with a given episode seed; otherwise both are drawn
    from the env's generator, which ``reset(seed=...)`` seeds; without, copies of the env differ. Rewards of a round go
    to all agents that have acted so far.
    """

    def __init__(self, config: dict[str, Any] | None = None) -> None:
        super().__init__()
        if not config or "experiment" not in config:
            raise ValueError('ProtocolEnv needs config={"experiment": ExperimentConfig(...).model_dump()}')
        self.single = SinglePlay(scenario_of(config["experiment"]), config.get("split", "train"), for_modules=True)
        self.play, self.layouts = self.single.play, self.single.layouts
        self.instances = self.single.copies.instances
        self.agents = self.possible_agents = self.single.agents
        self.action_spaces = {agent: gym.spaces.MultiDiscrete(layout.sizes) for agent, layout in self.layouts.items()}
        self.observation_spaces = self.single.observation_spaces
        self.acted: set[str] = set()

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Start an episode."""
        self.single.reset(seed, options)
        self.acted = set()
        return self._observed(self.single.turns), {}

    def step(
        self, action_dict: dict[str, Any]
    ) -> tuple[dict[str, Any], dict[str, float], dict[str, bool], dict[str, bool], dict[str, Any]]:
        """Play one round with the actions of the agents that have a turn."""
        self.acted.update(action_dict)
        paid = self.single.step(action_dict)
        done, cut = self.play.finished, self.single.cut
        obs = self._observed(self.acted if done else self.single.turns)
        infos = {agent: {"verdict": int(self.play.decision_B[0])} for agent in obs}
        return (
            obs,
            {agent: paid[agent] for agent in self.agents if agent in self.acted},
            {"__all__": done and not cut},
            {"__all__": cut},
            infos,
        )

    def _observed(self, agents: Iterable[str]) -> dict[str, Any]:
        return {agent: self.single.observe(agent) for agent in agents}
