"""`ProtocolEnv`: one copy of the batched core as an RLlib `MultiAgentEnv`, for stock algorithms, third parties and tests of equality."""

# RLlib annotates more narrowly than it behaves:
# pyright: basic, reportArgumentType=false, reportOptionalMemberAccess=false, reportAttributeAccessIssue=false
# pyright: reportReturnType=false, reportOptionalSubscript=false, reportIncompatibleMethodOverride=false
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from ray.rllib.env.multi_agent_env import MultiAgentEnv

from nip_ray.play.core import BatchedPlay
from nip_ray.protocols import CONTINUE, NUM_SEEDS
from nip_ray.rllib.module import layout_of
from nip_ray.rllib.shared import scenario_of


class ProtocolEnv(MultiAgentEnv):
    """One protocol copy. config: {"experiment": a dumped `ExperimentConfig`, "split": "train" (default) or "test"}.

    Agents whose turn it is get an observation and are asked to act; actions are flat MultiDiscrete arrays (`Layout`).
    ``reset(options={"id": i, "seed": s})`` starts a given instance with a given episode seed; otherwise both are drawn from the
    env's generator, which ``reset(seed=...)`` seeds. Rewards of a round go to all agents that have acted so far.
    """

    def __init__(self, config: dict[str, Any] | None = None) -> None:
        super().__init__()
        if not config or "experiment" not in config:
            raise ValueError('ProtocolEnv needs config={"experiment": ExperimentConfig(...).model_dump()}')
        self.play = BatchedPlay(scenario_of(config["experiment"]))
        scenario = self.play.scenario
        self.agents = self.possible_agents = list(scenario.protocol.agents)
        self.layouts = {agent: layout_of(scenario, agent) for agent in self.agents}
        self.instances = scenario.ids(config.get("split", "train"))
        self.random = np.random.default_rng(config["experiment"].get("seed", 0))
        self.action_spaces = {agent: gym.spaces.MultiDiscrete(layout.sizes) for agent, layout in self.layouts.items()}
        self._start(int(self.instances[0]), 0)
        self.observation_spaces = {agent: _space(self._observe(agent)) for agent in self.agents}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[dict[str, Any], dict[str, Any]]:
        """Start an episode."""
        if seed is not None:
            self.random = np.random.default_rng(seed)
        given = options or {}
        instance = given.get("id", self.instances[self.random.integers(len(self.instances))])
        self._start(int(instance), int(given.get("seed", self.random.integers(NUM_SEEDS))))
        return self._turns(), {}

    def step(
        self, action_dict: dict[str, Any]
    ) -> tuple[dict[str, Any], dict[str, float], dict[str, bool], dict[str, bool], dict[str, Any]]:
        """Play one round with the actions of those whose turn it is."""
        copy = torch.zeros(1, dtype=torch.long)
        actions = {}
        for agent, flat in action_dict.items():
            action = self.layouts[agent].split(torch.as_tensor(np.asarray(flat)).view(1, -1))
            if self.layouts[agent].decides and not self._may_decide(agent):
                action["decision"] = torch.full_like(action["decision"], CONTINUE)
            actions[agent] = (copy, action)
        self.acted.update(action_dict)
        outcome = self.play.step(actions)
        reward = {agent: float(outcome.reward_BA[0, a]) for a, agent in enumerate(self.agents) if agent in self.acted}
        done = self.play.finished
        cut = done and self.play.protocol.cuts and bool(self.play.state.exhausted_B[0])
        obs = {agent: self._observe(agent) for agent in self.acted} if done else self._turns()
        infos = {agent: {"verdict": int(self.play.decision_B[0])} for agent in obs}
        return obs, reward, {"__all__": done and not cut}, {"__all__": cut}, infos

    def _start(self, instance: int, seed: int) -> None:
        self.play.reset(torch.tensor([instance]), torch.tensor([seed]))
        self.acted: set[str] = set()

    def _may_decide(self, agent: str) -> bool:
        return bool(self._tensors(agent)["may_decide"][0])

    def _turns(self) -> dict[str, Any]:
        return {agent: self._observe(agent) for agent in self.agents if bool(self.play.turn_B(agent)[0])}

    def _tensors(self, agent: str) -> dict[str, torch.Tensor]:
        return self.play.observe(agent, torch.zeros(1, dtype=torch.long))

    def _observe(self, agent: str) -> dict[str, np.ndarray[Any, Any]]:
        return {key: np.asarray(value[0].numpy(), dtype=_dtype(value)) for key, value in self._tensors(agent).items()}


def _dtype(tensor: torch.Tensor) -> Any:
    if tensor.dtype == torch.bool:
        return np.int8
    return np.float32 if tensor.dtype.is_floating_point else np.int64


def _space(obs: dict[str, np.ndarray[Any, Any]]) -> gym.spaces.Dict:
    """Boxes without bounds worth the name: flags, real numbers of any size, and small whole numbers."""
    return gym.spaces.Dict({key: _box(x) for key, x in obs.items()})


def _box(x: np.ndarray[Any, Any]) -> gym.spaces.Box:
    if x.dtype == np.float32:
        return gym.spaces.Box(-np.inf, np.inf, x.shape, np.float32)
    return gym.spaces.Box(0, 1 if x.dtype == np.int8 else 1 << 16, x.shape, x.dtype.type)
