"""The loops in this process: all timesteps at once, one at a time, or written out for copying.

Decisions that matter here:
- learners act one after the other within each timestep, by `Core.advance`: a driver only determines how often it runs,
  and where;
- `train_by_hand` does the same call by call, with public pieces, for one learner and its copies: a template if no
  driver fits.
"""

import atexit
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from nip_ray.drivers.contract import Agent, Transition, stack
from nip_ray.drivers.core import (
    SILENT,
    Core,
    Environment,
    Part,
    Reports,
    as_recipe,
    evaluation_core,
    learners_and_scopes,
    make_parts,
    own_part,
)
from nip_ray.drivers.environments import Copies
from nip_ray.drivers.statistics import EpisodeStatistics, information
from nip_ray.errors import UserError
from nip_ray.progress import progress_line
from nip_ray.settings.drivers import DriverSettings

_STEPS_PER_REPORT = 64
Step = tuple[Any, Any, Any, Any, Any]


class SequentialDriver:
    """Trains and evaluates learners in this process.

    environment: settings, a recipe (each learner then has an environment of its own, unless it is shared), or a vector
    environment. agents: one or several. scopes: numbers of copies (None: equal shares, the remainder to the last).
    names: prefixes of their metrics' keys. Raises UserError if they do not fit.
    """

    def __init__(
        self,
        environment: Environment,
        agents: Agent | Sequence[Agent],
        settings: DriverSettings,
        scopes: Sequence[int] | None = None,
        names: Sequence[str] | None = None,
        seed: int = 0,
    ) -> None:
        self.agents, self.scopes, self.names = learners_and_scopes(environment, agents, scopes, names)
        self.settings, self.seed, self._recipe = settings, seed, as_recipe(environment)
        self._set_up(environment)

    def _set_up(self, environment: Environment) -> None:
        self.core = Core(make_parts(environment, self.agents, self.scopes, self.names), self.settings, self.seed)
        if self.settings.close_environment_at_exit:
            atexit.register(self.close)

    @property
    def timestep(self) -> int:
        """Number of timesteps done."""
        return self.core.timestep

    @property
    def env_steps(self) -> int:
        """Number of transitions of all learners."""
        return self.core.env_steps

    def train(self, until: int | None = None, reports: Reports = SILENT) -> None:
        """Train up to timestep `until` (None: the settings' total), from the present one.

        Raises TrainingError when training fails.
        """
        total = self.settings.timesteps
        with progress_line("", self.timestep, total, not self.settings.progress_bar, "timestep") as report:

            def told(row: dict[str, Any]) -> None:
                report(row["iteration"], row)
                reports.on_row(row)

            end = total if until is None else min(until, total)
            self.core.train(end, replace(reports, on_row=told))

    def evaluate(self, timesteps: int, num_copies: int | None = None) -> dict[str, float]:
        """Metrics `LEARNER/...` over `timesteps` of fresh episodes, without learning; actions are greedy by default.

        With an environment that can be recreated, in separate copies (`num_copies` each, None: as many as in training),
        in one environment of all these if it is shared and cannot be split; else in those of training, which continues
        with fresh episodes afterwards.
        """
        parts = self._evaluation_parts(num_copies)
        try:
            return self.core.evaluate(timesteps, parts)
        finally:
            for part in parts or []:
                part.copies.close()

    def _evaluation_parts(self, num_copies: int | None) -> list[Part] | None:
        recipe = self._recipe
        if recipe is None:
            return None
        named = list(zip(self.agents, self.scopes, self.names, strict=True))
        if recipe.shared and not recipe.divisible:
            scopes = (
                self.scopes
                if num_copies is None
                else tuple((i * num_copies, (i + 1) * num_copies) for i in range(len(named)))
            )
            return make_parts(replace(recipe, num_copies=scopes[-1][1]), self.agents, scopes, self.names)
        return [own_part(recipe, agent, scope, name, num_copies) for agent, scope, name in named]

    def state_dict(self) -> dict[str, Any]:
        """The full state of training, in values for `nip_ray.storage.checkpoint`."""
        return self.core.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The inverse of `state_dict`. Raises UserError for a state of other learners."""
        self.core.load_state_dict(state)

    def close(self) -> None:
        """End the environments."""
        atexit.unregister(self.close)
        self.core.close()

    def __str__(self) -> str:
        """A description, one learner per line."""
        lines = [f"{type(self).__name__}: {self.scopes[-1][1]} copies, {len(self.agents)} learners"]
        for name, agent, (start, stop) in zip(self.names, self.agents, self.scopes, strict=True):
            lines.append(f"  {name}: {type(agent).__name__}, copies {start} to {stop - 1}")
        return "\n".join(lines)


class StepDriver(SequentialDriver):
    """`step` makes one timestep of training, `evaluate_step` one of evaluation.

    Counters start at 0. To go from training to evaluation or back begins new episodes.
    """

    def _set_up(self, environment: Environment) -> None:
        super()._set_up(environment)
        self._mode: bool | None = None  # True if the newest timestep was one of training
        self._open = ExitStack()
        self._report: Any = None
        self._evaluation = evaluation_core(self.core)

    def train(self, until: int | None = None, reports: Reports = SILENT) -> None:
        """Like `SequentialDriver.train`."""
        self._switch(True)
        super().train(until, reports)

    def step(self, timestep: int | None = None, timesteps: int | None = None) -> Step:
        """One timestep of training: (observations, rewards, terminated, truncated, infos) as from the environment.

        timestep, timesteps: passed to learners (None: the counter, the settings' total). Separate environments give one
        list of infos, in the learners' order.
        """
        self._switch(True)
        self.core.advance(True, timestep, timesteps)
        if self._report is None:
            quiet = not self.settings.progress_bar
            self._report = self._open.enter_context(
                progress_line("", self.timestep, self.settings.timesteps, quiet, "timestep")
            )
        if self.timestep % _STEPS_PER_REPORT == 0 or self.timestep == self.settings.timesteps:
            self._report(self.timestep, {})
        return self._newest(self.core)

    def evaluate_step(self, timestep: int | None = None, timesteps: int | None = None) -> Step:
        """One timestep of evaluation in the same copies, without learning or counting."""
        self._switch(False)
        self._evaluation.advance(self.settings.stochastic_evaluation, timestep, timesteps)
        return self._newest(self._evaluation)

    def reset(self) -> None:
        """Reset counters to 0, with fresh episodes at the next step; learned weights stay."""
        self.core.timestep = self._evaluation.timestep = 0
        self._mode = None
        self._open.close()
        self._report = None

    def close(self) -> None:
        """End the environments and the progress bar."""
        self._open.close()
        super().close()

    def evaluation_figures(self) -> dict[str, float]:
        """Metrics `LEARNER/...` of the timesteps of evaluation since the last call."""
        return self._evaluation.evaluation_figures()

    def _switch(self, training: bool) -> None:
        if self._mode is training:
            return
        core = self.core
        begun = core.parts[0].copies.observations is not None
        core.enable_training(training)
        if begun and (self._mode is not None or core.timestep == 0):
            core.reset()
        if not training:
            for learner in self._evaluation.learners:
                learner.statistics.begin()
        self._mode = training

    def _newest(self, core: Core) -> Step:
        whole = [part.transition for part in core.parts]
        shown = stack([part.copies.observations for part in core.parts])
        rewards, terminated, truncated = (
            stack([getattr(one, name) for one in whole]) for name in ("rewards", "terminated", "truncated")
        )
        return (
            shown,
            rewards,
            terminated,
            truncated,
            whole[0].infos if len(whole) == 1 else [one.infos for one in whole],
        )


def train_by_hand(
    copies: Copies,
    agent: Agent,
    timesteps: int,
    *,
    start: int = 0,
    stop: int | None = None,
    seed: int = 0,
    statistics: EpisodeStatistics | None = None,
    environment_info: str = "episode",
    render_interval: int | None = None,
) -> None:
    """Train `agent` on all of `copies` from timestep `start` to `stop` (None: the end) of `timesteps`.

    Fresh copies play the episodes that a sequential driver with this seed would play. statistics: of their episodes.
    environment_info: key of the environment's infos with the scalars that the agent tracks. render_interval: timesteps
    between two pictures (None: none).
    """
    agent.enable_training_mode(True)
    if copies.observations is None:
        copies.reset(seed, "episodes", 0, 0)
    for timestep in range(start, timesteps if stop is None else stop):
        agent.pre_interaction(timestep, timesteps)
        observations, states = copies.observations, copies.state()
        actions = agent.act(observations, timestep, timesteps, states=states)
        led_to, rewards, terminated, truncated, valid, infos = copies.step(actions)
        next_states = None if states is None else copies.state_led_to()
        transition = Transition(
            observations, actions, rewards, led_to, terminated, truncated, valid, infos, states, next_states
        )
        if render_interval is not None and timestep % render_interval == 0:
            copies.render()
        agent.record_transition(transition, timestep, timesteps)
        if statistics is not None:
            statistics.add(transition)
        for tag, value in information(infos, environment_info).items():
            agent.track_data(tag, value)
        agent.post_interaction(timestep, timesteps)


class ManualDriver(SequentialDriver):
    """`train_by_hand` behind the drivers' interface, learner after learner."""

    def train(self, until: int | None = None, reports: Reports = SILENT) -> None:
        """Like `SequentialDriver.train`, without a progress bar. Raises UserError if learners share an environment."""
        core, settings, total = self.core, self.settings, self.settings.timesteps
        if any(len(part.learners) > 1 for part in core.parts):
            raise UserError(
                "driver: by hand an environment has one learner; use the sequential driver for learners that share one"
            )
        end = total if until is None else min(until, total)
        core.enable_training(True)
        core.mark_time()
        while core.timestep < end:
            at = core.timestep
            stop = reports.next_due(at, end)
            for part in core.parts:
                learner = part.learners[0]
                train_by_hand(
                    part.copies,
                    learner.agent,
                    total,
                    start=at,
                    stop=stop,
                    statistics=learner.statistics,
                    environment_info=settings.environment_info,
                    render_interval=None if settings.headless else settings.render_interval,
                )
            core.timestep = stop
            reports.tell(stop, core.row)
