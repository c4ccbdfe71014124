"""Protocols as PettingZoo environments: `aec`, in which agents act one after the other, and `parallel`, in which all
act in every round.

    import pettingzoo, nip_ray.pettingzoo
    env = nip_ray.pettingzoo.aec("tune_configs/message_game.yaml", render_mode="ansi")
    env = pettingzoo.make("parallel", "nip_ray/graph_isomorphism_debate-v0")

Importing this module registers a task under each of its protocols (`IDS`).

Decisions that matter here:
- an observation is {"observation": the scenario's own entries, "action_mask": the legal choices}. An action is a number
  if it has one factor, else an array of one number for each factor (docs/environments.md), and the mask an array, or a
  tuple of one array for each factor;
- agents with turns in the same round act one after the other under `aec`, and do not see each other's actions in
  between. In `parallel`, agents without a turn have one legal action, which does nothing and may be left out;
- all agents get rewards in every round, as in the core; all end together.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gymnasium import spaces

from nip_ray.config.experiment import ExperimentConfig, TextExperimentConfig
from nip_ray.environments.copies import action_space, mask_space
from nip_ray.environments.experiment import experiment_of
from nip_ray.environments.single import SinglePlay
from nip_ray.errors import UserError, require
from nip_ray.rllib.shared import scenario_of
from nip_ray.settings.state_tracking import PROTOCOLS as CHAIN_PROTOCOLS

require("pettingzoo", "pettingzoo")

from pettingzoo import AECEnv, ParallelEnv, aec_registry, register  # noqa: E402
from pettingzoo.utils.wrappers import OrderEnforcingWrapper  # noqa: E402

Config = ExperimentConfig | TextExperimentConfig | Mapping[str, Any] | Path | str


def aec(config: Config, *, split: str = "train", render_mode: str | None = None) -> AECEnv[str, Any, Any]:
    """The experiment's protocol, agent after agent. config: an experiment, its keys, a YAML file or a run folder.

    split: instances of "train" or "test". ``reset(seed=...)`` seeds the draws (without, copies differ), and
    ``reset(options={"id": i, "seed": s})`` chooses instance and episode seed. Raises UserError for a config that is
    invalid, of language models, or under zero knowledge.
    """
    return OrderEnforcingWrapper(ProtocolAEC(config, split, render_mode))


def parallel(config: Config, *, split: str = "train", render_mode: str | None = None) -> ParallelEnv[str, Any, Any]:
    """The same, all agents in every round. Arguments as of `aec`."""
    return ProtocolParallel(config, split, render_mode)


class Environment:
    """The common part of both kinds. single: the episode."""

    def __init__(self, config: Config, split: str, render_mode: str | None) -> None:
        if render_mode not in (None, "ansi"):
            raise UserError(f"render_mode: got {render_mode!r}, expected ansi or none")
        experiment = experiment_of(config)
        self.single = SinglePlay(scenario_of(experiment.model_dump(mode="json")), split)
        self.render_mode, self.possible_agents = render_mode, list(self.single.agents)
        self.agents: list[str] = []
        self.metadata = {"name": f"{experiment.scenario.name}_{self.single.protocol.name}_v0", "render_modes": ["ansi"]}
        self.metadata["is_parallelizable"] = False
        self.action_spaces = {agent: action_space(layout.sizes) for agent, layout in self.single.layouts.items()}
        self.observation_spaces: dict[str, spaces.Space[Any]] = {}
        for agent, seen in self.single.observation_spaces.items():
            masks = [mask_space(size) for size in self.single.layouts[agent].sizes]
            mask = masks[0] if len(masks) == 1 else spaces.Tuple(masks)
            self.observation_spaces[agent] = spaces.Dict({"observation": seen, "action_mask": mask})

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        """The space of `agent`'s observations."""
        return self.observation_spaces[agent]

    def action_space(self, agent: str) -> spaces.Space[Any]:
        """The space of `agent`'s actions."""
        return self.action_spaces[agent]

    def observe(self, agent: str) -> dict[str, Any]:
        """The current observation of `agent`, with or without a turn."""
        masks = self.single.legal(agent)
        return {"observation": self.single.observe(agent), "action_mask": masks[0] if len(masks) == 1 else tuple(masks)}

    def render(self) -> str | None:
        """The dialogue so far, under render mode ansi."""
        return self.single.text() if self.render_mode == "ansi" else None

    def close(self) -> None:
        """Do nothing."""

    def _begin(self, seed: int | None, options: dict[str, Any] | None) -> None:
        self.single.reset(seed, options)
        self.agents = list(self.possible_agents)

    def _ends(self) -> tuple[dict[str, bool], dict[str, bool], dict[str, dict[str, Any]]]:
        """The current (terminations, truncations, infos)."""
        over, cut = self.single.play.finished, self.single.cut
        infos = {agent: self.single.info(agent) for agent in self.agents}
        return dict.fromkeys(self.agents, over and not cut), dict.fromkeys(self.agents, cut), infos


class ProtocolAEC(Environment, AECEnv[str, Any, Any]):
    """See `aec`."""

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        """Begin an episode."""
        self._begin(seed, options)
        self.rewards = dict.fromkeys(self.agents, 0.0)
        self._cumulative_rewards = dict.fromkeys(self.agents, 0.0)
        self._skip_agent_selection = None
        self._begin_round()

    def step(self, action: Any) -> None:
        """The selected agent's action; the round is played once all agents with a turn have acted."""
        agent = self.agent_selection
        if self.terminations[agent] or self.truncations[agent]:
            self._was_dead_step(action)
            return
        self._cumulative_rewards[agent] = 0.0
        self._chosen[agent] = self.single.checked(agent, {agent: action})
        waiting = [other for other in self.single.turns if other not in self._chosen]
        if waiting:
            self._clear_rewards()
            self.agent_selection = waiting[0]
            return
        self.rewards = self.single.step(self._chosen)
        self._begin_round()
        self._accumulate_rewards()

    def _begin_round(self) -> None:
        self._chosen: dict[str, Any] = {}
        self.terminations, self.truncations, self.infos = self._ends()
        self.agent_selection = (self.single.turns or self.agents)[0]


class ProtocolParallel(Environment, ParallelEnv[str, Any, Any]):
    """See `parallel`."""

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
        """Begin an episode."""
        self._begin(seed, options)
        return {agent: self.observe(agent) for agent in self.agents}, self._ends()[2]

    def step(
        self, actions: dict[str, Any]
    ) -> tuple[dict[str, Any], dict[str, float], dict[str, bool], dict[str, bool], dict[str, dict[str, Any]]]:
        """Play one round."""
        self.single.refuse_unbegun()
        if not self.agents:
            raise UserError("step: the episode is over, reset() begins another")
        self.single.copies.refuse_unknown(actions)
        rewards = self.single.step(actions)
        seen, ends = {agent: self.observe(agent) for agent in self.agents}, self._ends()
        if self.single.play.finished:
            self.agents = []
        return seen, rewards, *ends


def _tasks() -> dict[str, dict[str, Any]]:
    """Id without its version -> config."""
    games = ("matching_pennies", "rock_paper_scissors", "prisoners_dilemma")
    found = {
        game: {"protocol": {"name": "matrix_game"}, "scenario": {"name": "matrix_game", "game": game}} for game in games
    }
    for game in ("kuhn_poker", "leduc_poker"):
        found[game] = {"protocol": {"name": game}, "scenario": {"name": "matrix_game", "game": game}}
    found |= {name: {"protocol": {"name": name}, "scenario": {"name": name}} for name in ("message_game", "hironaka")}
    proofs = (
        "nip", "adp", "debate", "open_debate", "critique", "mnip", "merlin_arthur", "consultancy", "open_consultancy",
        "helpful_sneaky", "judge_panel", "solo_verifier",
    )  # fmt: skip
    tasks: dict[str, tuple[str, ...]] = dict.fromkeys(("graph_isomorphism", "image_classification"), proofs)
    tasks["state_tracking"] = CHAIN_PROTOCOLS
    pairs = ((task, protocol) for task, protocols in tasks.items() for protocol in protocols)
    return found | {
        f"{task}_{protocol}": {"protocol": {"name": protocol}, "scenario": {"name": task}} for task, protocol in pairs
    }


IDS = {f"nip_ray/{name}-v0": config for name, config in _tasks().items()}
"""Id -> the config behind it, with the defaults of its task."""


for _name, _config in IDS.items():
    if _name not in aec_registry:
        register("aec", _name, "nip_ray.pettingzoo:aec", kwargs={"config": _config})
        register("parallel", _name, "nip_ray.pettingzoo:parallel", kwargs={"config": _config})
