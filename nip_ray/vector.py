"""A protocol as a batched environment: many copies of it, all agents, arrays in and out.

    import nip_ray.vector
    env = nip_ray.vector.parallel("tune_configs/message_game.yaml", num_copies=256)
    observations, infos = env.reset(seed=0)
    observations, rewards, terminations, truncations, infos = env.step({agent: actions})

Decisions that matter here:
- the interface is PettingZoo's of parallel environments, with an axis of copies in front of every array;
- a copy that ends begins its next episode in the same step: `terminations` or `truncations` has it, its reward is the
  last one of the old episode, its observation the first of the new one. The last observation is in `infos["final"]`;
- copy i, seeded with s, plays the episodes of `nip_ray.pettingzoo.parallel` seeded with s + i.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces

from nip_ray.environments.copies import Array, Arrays, Copies, action_space, mask_space
from nip_ray.environments.experiment import AnyConfig, experiment_of
from nip_ray.rllib.shared import scenario_of

Observation = dict[str, Any]
"""{"observation": the scenario's own entries, each (B, ...), "action_mask": (B, choices of all factors) int8}."""
PerAgent = dict[str, Array]


def parallel(
    config: AnyConfig | Mapping[str, Any] | Path | str, num_copies: int, *, split: str = "train"
) -> "VectorParallel":
    """`num_copies` copies of the experiment's protocol. config: as of `nip_ray.pettingzoo.parallel`. split: instances
    of "train" or "test". Raises UserError for a config that is invalid, of language models, or under zero knowledge."""
    scenario = scenario_of(experiment_of(config).model_dump(mode="json"))
    return VectorParallel(Copies(scenario, num_copies, split))


class VectorParallel:
    """See `parallel`. possible_agents: all agents. copies: the episodes."""

    def __init__(self, copies: Copies) -> None:
        self.copies, self.num_copies, self.possible_agents = copies, copies.num_copies, list(copies.agents)

    def observation_space(self, agent: str) -> spaces.Dict:
        """The space of one copy's observations of `agent`."""
        mask = mask_space(sum(self.copies.sizes[agent]))
        return spaces.Dict({"observation": self.copies.spaces[agent], "action_mask": mask})

    def action_space(self, agent: str) -> spaces.Space[Any]:
        """The space of one copy's actions of `agent`; `step` takes B of them, also of agents without a turn."""
        return action_space(self.copies.sizes[agent])

    def reset(
        self, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[dict[str, Observation], dict[str, Any]]:
        """Begin an episode in every copy; see `Copies.reset`."""
        self.copies.reset(seed, options)
        return self._observed(), self._infos(self.copies.facts())

    def step(
        self, actions: Mapping[str, Array]
    ) -> tuple[dict[str, Observation], PerAgent, PerAgent, PerAgent, dict[str, Any]]:
        """Play one round in every copy. Returns (observations, rewards, terminations, truncations, infos), arrays (B,)
        by agent; all agents of a copy end together.

        infos: "turn" and "illegal" (B,) by agent; "instance" and of proofs "label" and "verdict" (B,), of the episode
        that was stepped; and if copies have ended "final": their numbers as "copies" (N,) and by agent their last
        observations (N, ...).
        """
        copies = self.copies
        copies.refuse_unknown(actions)
        reward_BA = copies.step(actions).numpy()
        over_B, cut_B, facts = copies.play.over_B, copies.cut_B, {k: x.copy() for k, x in copies.facts().items()}
        infos = self._infos(facts)
        if bool(over_B.any()):
            copy_N = over_B.nonzero().flatten()
            last = {agent: _rows(seen, copy_N.numpy()) for agent, seen in self._observed().items()}
            infos["final"] = {"copies": copy_N.numpy(), **last}
            copies.restart(copy_N)
            infos["turn"] = self._turns()
        ended_B, cut = (over_B & ~cut_B).numpy(), cut_B.numpy()
        rewards = {agent: reward_BA[:, place] for place, agent in enumerate(copies.agents)}
        agents = copies.agents
        return self._observed(), rewards, dict.fromkeys(agents, ended_B), dict.fromkeys(agents, cut), infos

    def render(self, copy: int = 0) -> str:
        """The dialogue of one copy so far, one line per round."""
        return self.copies.text(copy)

    def _observed(self) -> dict[str, Observation]:
        return {
            agent: {
                "observation": self.copies.observe(agent),
                "action_mask": np.concatenate(self.copies.legal(agent), 1),
            }
            for agent in self.copies.agents
        }

    def _turns(self) -> PerAgent:
        return {agent: self.copies.turn_B(agent).numpy() for agent in self.copies.agents}

    def _infos(self, facts: Arrays) -> dict[str, Any]:
        illegal = {agent: illegal_B.numpy().copy() for agent, illegal_B in self.copies.illegal.items()}
        return {"turn": self._turns(), "illegal": illegal, **facts}


def _rows(seen: Observation, copy_N: Array) -> Observation:
    own = {key: x[copy_N] for key, x in seen["observation"].items()}
    return {"observation": own, "action_mask": seen["action_mask"][copy_N]}
