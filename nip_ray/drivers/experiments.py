"""Copies of one of our protocols as an environment for drivers, and the experiment in a runner file.

Decisions that matter here:
- a timestep is one round of every copy. Copies play in batches: a finished copy waits, without transitions, until all
  of its batch have finished; then all restart. So a batch is a rollout of the core, of whole episodes;
- observations are ids and tokens, not the agents' own: learners have the scenario, and rebuild observations as
  elsewhere. The same holds for games with positions, which follow from tokens;
- batch k of all copies of all learners plays the episodes of a run's iteration k, and a learner's slice of them is the
  same in an environment of its own and in a shared one. Evaluation plays held-out instances;
- a state is ids and tokens, too: messages are replayed.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nip_ray.config.experiment import ExperimentConfig
from nip_ray.config.keys import branches, keys_of, tag_of
from nip_ray.config.load import apply_overrides, config_from_dict, load_config, plain, settings_from
from nip_ray.config.paths import with_absolute_paths
from nip_ray.config.rules import check
from nip_ray.drivers.contract import Agent, Scope, arrays
from nip_ray.drivers.environments import Recipe
from nip_ray.environments.copies import refuse_graded
from nip_ray.errors import UserError
from nip_ray.evaluation.claims import shares
from nip_ray.learning.policy import Action
from nip_ray.play.core import BatchedPlay, episode_seeds, instance_ids
from nip_ray.play.scenario import Scenario
from nip_ray.progress import say
from nip_ray.rllib.shared import scenario_of
from nip_ray.seeding import stable_seed
from nip_ray.settings.drivers import ExperimentAgentSettings, ExperimentEnvironmentSettings, RunnerSettings

TRAIN, TEST = "train", "test"


class ProtocolCopies:
    """n copies of a scenario's protocol, with the interface of `nip_ray.drivers.environments.Copies`.

    first, total: the place of its first copy among the copies of all learners, and their number. observations: n rows
    of "id", "seed", "round" (int64), "over", "cut" (bool), "verdict" (int64), "turn" (agent -> bool), "main" (R, A, C,
    M), "decision" (R, A) and, if there is one, "linear" (R, A, C, M).

    Actions are agent -> {"message", "linear", "decision"}, one row per copy, with or without a turn; under zero
    knowledge also "similarity" (n,).
    """

    def __init__(self, scenario: Scenario, num_copies: int, total: int | None = None) -> None:
        self.scenario, self.protocol = scenario, scenario.protocol
        refuse_graded(self.protocol)
        self.num_copies = self.num_envs = num_copies
        self.first, self.total = 0, total or num_copies
        self.observations: Any = None
        self._play = BatchedPlay(scenario)
        self._seed, self._split = 0, TRAIN
        self._batches = {TRAIN: 0, TEST: 0}  # number of started batches

    def placed(self, first: int) -> "ProtocolCopies":
        """These copies, with `first` as the number of the first among all."""
        self.first = first
        return self

    def reset(self, seed: int, *purpose: str | int) -> None:
        """Begin a new batch: for "evaluation" of held-out instances, from the first on, else the next of training."""
        self._seed, self._split = seed, TEST if purpose[:1] == ("evaluation",) else TRAIN
        if self._split == TEST:
            self._batches[TEST] = 0
        self._begin()

    def state(self) -> None:
        """Return None: there is no global state."""

    @torch.no_grad()
    def step(self, actions: Mapping[str, Any]) -> tuple[Any, Any, Any, Any, np.ndarray | None, Mapping[str, Any]]:
        """One round; see `Copies.step`. infos["outcomes"]: the results of the verdicts of finished episodes."""
        play, open_B = self._play, ~self._play.state.ended_B
        similarity = actions.get("similarity")
        chosen: dict[str, tuple[Tensor, Action]] = {}
        for agent in self.protocol.agents:
            if len(copy_N := self._turns(agent)):
                chosen[agent] = copy_N, {name: torch.from_numpy(part)[copy_N] for name, part in actions[agent].items()}
        outcome = play.step(chosen, None if similarity is None else torch.from_numpy(similarity))
        state = play.state
        over_B = open_B & state.ended_B
        cut_B = over_B & state.exhausted_B if self.protocol.cuts else torch.zeros_like(over_B)
        reward_AB = outcome.reward_BA.t().contiguous().numpy()
        agents = self.protocol.agents
        terminated, truncated = dict.fromkeys(agents, (over_B & ~cut_B).numpy()), dict.fromkeys(agents, cut_B.numpy())
        infos: dict[str, Any] = {}
        if bool(over_B.any()) and self.protocol.verifier is not None:
            found = shares(self.protocol, play.decision_B.numpy(), state.y_B.numpy(), state.seed_B.numpy())
            infos["outcomes"] = {
                f"verifier/{name}": np.where(of_B, hit_B.astype(float), np.nan) for name, (hit_B, of_B) in found.items()
            }
        valid = None if bool(open_B.all()) else open_B.numpy()
        self.observations = led_to = self._shown()
        if play.finished:
            self._begin()
        return led_to, dict(zip(agents, reward_AB, strict=True)), terminated, truncated, valid, infos

    def render(self) -> None:
        """Do nothing: there are transcripts."""

    def close(self) -> None:
        """Do nothing."""

    def snapshot(self) -> dict[str, Any] | None:
        """The state of the copies, in values for a checkpoint; None if they have not begun."""
        if self.observations is None:
            return None
        said = {
            name: np.array(self.observations[name])
            for name in ("main", "linear", "decision")
            if name in self.observations
        }
        return {
            "seed": self._seed,
            "split": self._split,
            "batches": dict(self._batches),
            "round": self._play.round,
            **said,
        }

    def restore(self, stored: Mapping[str, Any] | None) -> bool:
        """The inverse of `snapshot`; True if the copies are in their former episodes again."""
        if stored is None:
            return False
        self._seed, self._split = int(stored["seed"]), str(stored["split"])
        self._batches = {split: int(count) for split, count in stored["batches"].items()}
        self._batches[self._split] -= 1
        self._begin()
        said = {
            name: torch.from_numpy(arrays(stored[name])) for name in ("main", "linear", "decision") if name in stored
        }
        for r in range(int(stored["round"])):
            self._play_again(said, r)
        self.observations = self._shown()
        return True

    def _begin(self) -> None:
        number = self._batches[self._split]
        self._batches[self._split] = number + 1
        # every learner is evaluated on the same instances
        first, total = (self.first, self.total) if self._split == TRAIN else (0, self.num_copies)
        own = slice(first, first + self.num_copies)
        id_E = instance_ids(self.scenario, self._split, self._seed, number * total, total)
        self._play.reset(id_E[own], episode_seeds(self._seed, number * total, total)[own])
        self.observations = self._shown()

    def _shown(self) -> dict[str, Any]:
        play, state = self._play, self._play.state
        shown = {
            "id": play.id_B.numpy(),
            "seed": state.seed_B.numpy(),
            "round": state.round_B.numpy(),
            "over": state.ended_B.numpy(),
            "cut": state.exhausted_B.numpy(),
            "verdict": play.decision_B.numpy(),
            "turn": {agent: play.turn_B(agent).numpy() for agent in self.protocol.agents},
            "main": play.main_BRACM.numpy().copy(),  # written in place by the next round
            "decision": play.decision_BRA.numpy().copy(),
        }
        return shown if play.linear_BRACM is None else {**shown, "linear": play.linear_BRACM.numpy().copy()}

    def _turns(self, agent: str) -> Tensor:
        return self._play.turn_B(agent).nonzero().flatten()

    @torch.no_grad()
    def _play_again(self, said: Mapping[str, Tensor], r: int) -> None:
        """Round `r` replayed; its rewards are already known."""
        chosen: dict[str, tuple[Tensor, Action]] = {}
        for a, agent in enumerate(self.protocol.agents):
            copy_N, writes = self._turns(agent), list(self.protocol.writes[agent])
            if not len(copy_N):
                continue
            action = {"message": said["main"][copy_N, r, a][:, writes].flatten(1).clamp_min(0)}
            if "linear" in said:
                action["linear"] = said["linear"][copy_N, r, a][:, writes].flatten(1).clamp_min(0)
            if agent in self.protocol.deciders:
                action["decision"] = said["decision"][copy_N, r, a]
            chosen[agent] = copy_N, action
        similarity_B = None if self.protocol.zero_knowledge is None else torch.zeros(self.num_copies)
        self._play.step(chosen, similarity_B)


def read_experiment(settings: ExperimentEnvironmentSettings, stored: Path | None = None) -> ExperimentConfig:
    """The config in settings, with their changes; or `stored`: a file in a run's folder, with the changes.

    It imports known code alone: `load_runner` knows what a runner file of the user's own names. Raises UserError for an
    invalid config, or one of language models.
    """
    named = (settings.config, settings.changes) if stored is None else (stored, ())
    found = load_config(*named, checked=False, of_run=True)
    if not isinstance(found, ExperimentConfig):
        raise UserError(
            f"environment.config: {settings.config} is about language models, expected an experiment of agents with"
            " networks"
        )
    return with_absolute_paths(found) if stored is None else found


def experiment_recipe(settings: ExperimentEnvironmentSettings, experiment: ExperimentConfig) -> Recipe:
    """A recipe for the copies of an experiment, here or in another process."""
    make = partial(_make, experiment.model_dump(mode="json"), settings.num_copies)
    return Recipe(make, settings.num_copies, settings.shared, divisible=True)


def _make(dumped: dict[str, Any], total: int, num_copies: int) -> ProtocolCopies:
    return ProtocolCopies(scenario_of(dumped), num_copies, total)


def own_experiment(experiment: ExperimentConfig, changes: Sequence[str], where: str) -> ExperimentConfig:
    """The experiment with one learner's own settings. For another algorithm it keeps the settings that both have.

    Raises UserError, which begins with `where`, for faults in them.
    """
    if not changes:
        return experiment
    try:
        data = apply_overrides(plain(experiment), changes)
        if isinstance(data["algorithm"], dict) and data["algorithm"].get("name") != experiment.algorithm.name:
            data = apply_overrides(
                data | {"algorithm": _shared_settings(experiment, data["algorithm"].get("name"))}, changes
            )
        found = config_from_dict(data)
    except UserError as error:
        raise UserError(f"{where}: {error}") from None
    assert isinstance(found, ExperimentConfig)
    if _alone_agent(found) != _alone_agent(experiment):
        raise UserError(
            f"{where}: solo training is a protocol of its own, put algorithm.name and algorithm.agent into"
            " environment.changes"
        )
    return found


def _shared_settings(experiment: ExperimentConfig, name: Any) -> dict[str, Any]:
    """The experiment's settings of its algorithm that the algorithm `name` also has: same key, possible value."""
    kinds = {tag_of(kind): kind for kind in branches(ExperimentConfig.model_fields["algorithm"].annotation)}
    if name not in kinds:
        return {"name": name}
    shared = {"name": name}
    for key, value in plain(experiment.algorithm).items():
        if key in keys_of(kinds[name]) and key != "name":
            with suppress(UserError):
                settings_from({key: value}, kinds[name])
                shared[key] = value
    return shared


def _alone_agent(experiment: ExperimentConfig) -> str | None:
    """The solo agent, if any."""
    return str(getattr(experiment.algorithm, "agent")) if experiment.algorithm.name == "solo" else None  # noqa: B009


def experiment_agents(
    settings: RunnerSettings, experiment: ExperimentConfig, scopes: Sequence[Scope], fresh: bool
) -> list[Agent]:
    """Learners of a runner file, one per scope. fresh: with their configs' initial weights (else a state is loaded).

    The first learner's seed is the runner's, so that alone it is the learner of `nip-ray train`. Raises UserError for
    changes and weights that do not fit.
    """
    from nip_ray.drivers.agents.protocol import ProtocolAgent, check_drivable, warn_of_iterations

    owns = []
    for place, learner in enumerate(settings.learners):
        assert isinstance(learner.algorithm, ExperimentAgentSettings)
        where, seed = f"learners.{place}.algorithm.changes", stable_seed(settings.seed, "learner", place) % 2**31
        own = own_experiment(experiment, learner.algorithm.changes, where)
        check_drivable(own)
        warn_of_iterations(own)
        owns.append(alone(own, seed if place else settings.seed, scopes[place][1] - scopes[place][0]))
        try:
            check(owns[-1])  # such as a minibatch of more frames than these copies play
        except UserError as error:
            raise UserError(f"learners.{place}: {error}") from None
    made: list[Agent] = []
    for own in owns:
        agent = ProtocolAgent(own.model_dump(mode="json"), own.play.num_copies)
        if fresh and (own.pretraining.agents or own.initial_weights):
            _put_first_weights(agent, own, Path(settings.experiment.storage_path))
        made.append(agent)
    return made


def _put_first_weights(agent: Any, experiment: ExperimentConfig, storage: Path) -> None:
    """Load pretrained bodies, then weights of other runs, as at the beginning of `nip-ray train`."""
    from nip_ray.runs.initial_weights import initial_weights, put_weights
    from nip_ray.runs.pretraining import pretrain

    cache = storage / "pretrained" if experiment.pretraining.cache is None else Path(experiment.pretraining.cache)
    pretrained = pretrain(experiment, cache) if experiment.pretraining.agents else {}
    taken, notes = initial_weights(experiment)
    for note in (*notes, *(note for found in pretrained.values() for note in found.notes)):
        say(f"warning: {note}")
    put_weights(agent.algorithm, {**{name: found.weights for name, found in pretrained.items()}, **taken})


def alone(experiment: ExperimentConfig, seed: int, num_copies: int) -> ExperimentConfig:
    """The experiment for a learner in one process: its own seed and copies, without processes of its own."""
    play = replace(experiment.play, num_copies=num_copies, num_env_runners=0, max_staleness=0)
    learners = replace(experiment.learners, num_learners=0)
    return experiment.model_copy(update={"seed": seed, "play": play, "learners": learners})
