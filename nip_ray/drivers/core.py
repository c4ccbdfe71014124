"""One timestep of learners and environments, and the state between timesteps, shared by all drivers.

Decisions that matter here:
- there is one loop body, `Core.advance`, for training and evaluation, for one learner and many; drivers only determine
  how often it runs, and where. So sequential, parallel and step drivers cannot diverge;
- the order is: every learner's pre_interaction, every learner's act, every environment's step, render, every learner's
  record_transition, every learner's infos, every learner's post_interaction, learners in their order. A learner only
  sees its own copies;
- env steps count transitions: steps that only begin an episode are not counted.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from nip_ray.cluster.interrupts import safe_point
from nip_ray.drivers.contract import Agent, Scope, Tracker, Transition, resolve_scopes, rows, stack
from nip_ray.drivers.environments import Copies, Recipe, copies_of, num_copies_of, recipe_of
from nip_ray.drivers.statistics import EpisodeStatistics, information
from nip_ray.errors import UserError
from nip_ray.settings.drivers import DriverSettings, EnvironmentSettings

Row = dict[str, Any]


def nothing(told: Any) -> None:
    """Default receiver of rows and checkpoints."""


@dataclass(frozen=True)
class Reports:
    """on_row receives the metrics of every `write_interval` timesteps, on_checkpoint the timestep at every
    `checkpoint_interval` (0: never)."""

    write_interval: int = 0
    on_row: Callable[[Row], None] = nothing
    checkpoint_interval: int = 0
    on_checkpoint: Callable[[int], None] = nothing

    def next_due(self, timestep: int, end: int) -> int:
        """The first timestep after this one at which something is due, `end` at the latest."""
        intervals = (interval for interval in (self.write_interval, self.checkpoint_interval) if interval)
        return min([end, *((timestep // interval + 1) * interval for interval in intervals)])

    def checkpoint_if_due(self, timestep: int) -> None:
        """Request a checkpoint if due."""
        if self.checkpoint_interval and timestep % self.checkpoint_interval == 0:
            self.on_checkpoint(timestep)

    def tell(self, timestep: int, row: Callable[[], Row]) -> None:
        """Pass on the row that `row` makes, and request a checkpoint, if due."""
        if self.write_interval and timestep % self.write_interval == 0:
            self.on_row(row())
        self.checkpoint_if_due(timestep)


SILENT = Reports()


class Pending:
    """Actions that are still being computed elsewhere."""

    def result(self) -> Any:
        """Wait for them."""
        raise NotImplementedError


@dataclass
class Learner:
    """An agent and its copies. scope: its rows within its environment. statistics: of its episodes. tracker:
    receives the environment's infos (None: the agent, among its own metrics; in evaluation they are kept apart from
    training's)."""

    name: str
    agent: Agent
    scope: Scope
    tracker: Tracker | None = None
    statistics: EpisodeStatistics = field(init=False)

    def __post_init__(self) -> None:
        self.statistics = EpisodeStatistics(self.scope[1] - self.scope[0])


class Part:
    """One environment and the learners that share it."""

    def __init__(self, copies: Copies | Any, learners: Sequence[Learner]) -> None:
        """copies: `Copies` or an object with their interface."""
        self.copies, self.learners = copies, list(learners)
        self._alone = len(self.learners) == 1
        self._before: Any = None
        self._states: Any = None
        self._actions: Any = None
        self._transition: Transition | None = None

    def act(self, timestep: int, timesteps: int, explore: bool) -> None:
        """Request actions from every learner."""
        self._before = self.copies.observations
        states = self._states = self.copies.state()
        parts = []
        for learner in self.learners:
            start, stop = learner.scope
            seen = self._before if self._alone else rows(self._before, start, stop)
            own_states = states if states is None or self._alone else rows(states, start, stop)
            parts.append(learner.agent.act(seen, timestep, timesteps, explore=explore, states=own_states))
        self._actions = stack([part.result() if isinstance(part, Pending) else part for part in parts])

    def step(self) -> None:
        """Step the environment."""
        led_to, reward, terminated, truncated, valid, infos = self.copies.step(self._actions)
        after = None if self._states is None else self.copies.state_led_to()
        self._transition = Transition(
            self._before, self._actions, reward, led_to, terminated, truncated, valid, infos, self._states, after
        )

    def record(self, timestep: int, timesteps: int) -> None:
        """Pass every learner its rows."""
        whole = self.transition
        for learner in self.learners:
            transition = whole if self._alone else slice_of(whole, *learner.scope)
            learner.agent.record_transition(transition, timestep, timesteps)
            learner.statistics.add(transition)

    def track(self, info: str) -> None:
        """Pass every learner the scalars in `info` of the environment's infos."""
        infos = self.transition.infos
        numbers = information(infos, info) if infos else {}
        for learner in self.learners if numbers else ():
            add = learner.agent.track_data if learner.tracker is None else learner.tracker.add
            for tag, value in numbers.items():
                add(tag, value)

    @property
    def transition(self) -> Transition:
        """The newest transition of all its copies. Raises RuntimeError before the first."""
        if self._transition is None:
            raise RuntimeError("no timestep was made yet")
        return self._transition


_ROWS = (
    "observations",
    "actions",
    "rewards",
    "next_observations",
    "terminated",
    "truncated",
    "valid",
    "states",
    "next_states",
)


def slice_of(whole: Transition, start: int, stop: int) -> Transition:
    """The rows start to stop of a transition; of the infos the "outcomes" (see `Transition`)."""
    cut = {name: rows(value, start, stop) for name in _ROWS if (value := getattr(whole, name)) is not None}
    outcomes = whole.infos.get("outcomes")
    own = {"outcomes": rows(outcomes, start, stop)} if isinstance(outcomes, Mapping) else {}
    return replace(whole, **cut, infos={**whole.infos, **own})


class Core:
    """Learners in the middle of their episodes. timestep: number done. parts: environments with their learners."""

    def __init__(self, parts: Sequence[Part], settings: DriverSettings, seed: int) -> None:
        self.parts, self.settings, self.seed = list(parts), settings, seed
        self.learners = [learner for part in self.parts for learner in part.learners]
        self.timestep = self.resets = 0
        self.training = False
        self._times = [0.0, 0.0, 0.0]
        self._row_begins = (time.perf_counter(), 0, 0)

    @property
    def env_steps(self) -> int:
        """Number of transitions of all learners so far."""
        return sum(learner.statistics.env_steps for learner in self.learners)

    def enable_training(self, enabled: bool) -> None:
        """Enable it for every learner; if there are no episodes yet, begin them."""
        self.training = enabled
        for learner in self.learners:
            learner.agent.enable_training_mode(enabled)
        if any(part.copies.observations is None for part in self.parts):
            self.reset()

    def train(self, end: int, reports: Reports) -> None:
        """Train up to timestep `end`."""
        self.enable_training(True)
        self.mark_time()
        while self.timestep < end:
            self.advance()
            reports.tell(self.timestep, self.row)
            safe_point()

    def reset(self) -> None:
        """Begin new episodes in all copies; those in flight are cut."""
        for part in self.parts:
            part.copies.reset(self.seed, "episodes" if self.training else "evaluation", self.timestep, self.resets)
        for learner in self.learners:
            learner.statistics.begin()
            learner.agent.begin()
        self.resets += 1

    def advance(self, explore: bool = True, timestep: int | None = None, timesteps: int | None = None) -> None:
        """One timestep of all learners. timestep, timesteps: passed on (None: the counter, the settings' total)."""
        at = self.timestep if timestep is None else timestep
        total = self.settings.timesteps if timesteps is None else timesteps
        parts, learners, times = self.parts, self.learners, self._times
        for learner in learners:
            learner.agent.pre_interaction(at, total)
        started = time.perf_counter()
        for part in parts:
            part.act(at, total, explore)
        acted = time.perf_counter()
        for part in parts:
            part.step()
        stepped = time.perf_counter()
        if not self.settings.headless and at % self.settings.render_interval == 0:
            for part in parts:
                part.copies.render()
        for part in parts:
            part.record(at, total)
        for part in parts:
            part.track(self.settings.environment_info)
        recorded = time.perf_counter()
        for learner in learners:
            learner.agent.post_interaction(at, total)
        times[0] += acted - started
        times[1] += stepped - acted
        times[2] += time.perf_counter() - recorded
        self.timestep += 1

    def row(self) -> dict[str, Any]:
        """Metrics since the last row: `LEARNER/...`, `time/...`, and counts of all learners."""
        now, steps = time.perf_counter(), self.env_steps
        then, steps_then, timestep_then = self._row_begins
        done = max(1, self.timestep - timestep_then)
        made: dict[str, Any] = {"iteration": self.timestep, "env_steps_total": steps}
        made["env_steps_per_s"] = (steps - steps_then) / max(now - then, 1e-9)
        made["episodes_total"] = sum(learner.statistics.episodes for learner in self.learners)
        for learner in self.learners:
            figures = {**learner.statistics.take(), **learner.agent.tracked()}
            made |= {f"{learner.name}/{tag}": value for tag, value in figures.items()}
        for name, seconds in zip(("inference_ms", "env_ms", "learn_ms"), self._times, strict=True):
            made[f"time/{name}"] = 1e3 * seconds / done
        self._times = [0.0, 0.0, 0.0]
        self._row_begins = (now, steps, self.timestep)
        return made

    def mark_time(self) -> None:
        """Exclude the time so far from rows: training is about to begin, or to continue."""
        self._row_begins = (time.perf_counter(), self.env_steps, self.timestep)
        self._times = [0.0, 0.0, 0.0]

    def evaluate(self, timesteps: int, parts: Sequence[Part] | None = None) -> dict[str, float]:
        """Metrics `LEARNER/...` of the current agents, over `timesteps` of fresh episodes, without learning.

        parts: other environments for the same agents; without, this one's own are used, and training continues from
        fresh episodes.
        """
        core = evaluation_core(self, parts)
        for learner in core.learners:
            learner.agent.enable_training_mode(False)
        for part in core.parts:
            part.copies.reset(self.seed, "evaluation", self.timestep)
        for _ in range(timesteps):
            core.advance(explore=self.settings.stochastic_evaluation)
        for learner in core.learners:
            learner.agent.enable_training_mode(self.training)
        if parts is None and self.training:
            self.reset()
        elif parts is None:
            for part in self.parts:
                part.copies.observations = None  # the next training begins new episodes
        return core.evaluation_figures()

    def evaluation_figures(self) -> dict[str, float]:
        """Metrics `LEARNER/...` of an evaluation since the last call."""
        figures: dict[str, float] = {}
        for learner in self.learners:
            taken = {**learner.statistics.take(), **(learner.tracker.take() if learner.tracker else {})}
            figures |= {f"{learner.name}/{tag}": value for tag, value in taken.items()}
            figures[f"{learner.name}/env_steps"] = learner.statistics.env_steps
        return figures

    def state_dict(self) -> dict[str, Any]:
        """The full state for the next timesteps, agents included, in values for a checkpoint."""
        return {
            "timestep": self.timestep,
            "resets": self.resets,
            "parts": [part.copies.snapshot() for part in self.parts],
            "statistics": [learner.statistics.state_dict() for learner in self.learners],
            "agents": [learner.agent.state_dict() for learner in self.learners],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The inverse of `state_dict`. Environments without snapshots begin new episodes, and learners are notified."""
        if len(state["agents"]) != len(self.learners) or len(state["parts"]) != len(self.parts):
            raise UserError(
                f"checkpoint: got {len(state['agents'])} learners, expected {len(self.learners)} as in the settings"
            )
        self.timestep, self.resets = int(state["timestep"]), int(state["resets"])
        for learner, statistics, agent in zip(self.learners, state["statistics"], state["agents"], strict=True):
            learner.statistics.load_state_dict(statistics)
            learner.agent.load_state_dict(agent)
        begun_again = [not part.copies.restore(stored) for part, stored in zip(self.parts, state["parts"], strict=True)]
        for part, again in zip(self.parts, begun_again, strict=True):
            if again:
                part.copies.reset(self.seed, "resumed", self.timestep, self.resets)
                for learner in part.learners:
                    learner.statistics.begin()
                    learner.agent.begin()
        self.mark_time()

    def close(self) -> None:
        """End the environments."""
        for part in self.parts:
            part.copies.close()


def evaluation_core(core: Core, parts: Sequence[Part] | None = None) -> Core:
    """The same agents in the same environments (or in those of `parts`), with counts of its own."""
    made = []
    for part in core.parts if parts is None else parts:
        made.append(
            Part(
                part.copies,
                [Learner(learner.name, learner.agent, learner.scope, Tracker()) for learner in part.learners],
            )
        )
    return Core(made, core.settings, core.seed)


Environment = Any
"""A `Recipe`, `EnvironmentSettings`, or an environment with Gymnasium's vector interface, which learners then share."""


def as_recipe(environment: Environment) -> Recipe | None:
    """A recipe for the environment; None for an existing one."""
    if isinstance(environment, EnvironmentSettings):
        return recipe_of(environment)
    return environment if isinstance(environment, Recipe) else None


def learners_and_scopes(
    environment: Environment, agents: Agent | Sequence[Agent], scopes: Sequence[int] | None, names: Sequence[str] | None
) -> tuple[list[Agent], tuple[Scope, ...], list[str]]:
    """(agents, their ranges of copies, their names). Raises UserError if they do not fit; see `resolve_scopes`."""
    listed = list(agents) if isinstance(agents, Sequence) else [agents]
    recipe = as_recipe(environment)
    found = resolve_scopes(recipe.num_copies if recipe else num_copies_of(environment), len(listed), scopes)
    chosen = list(names) if names is not None else [f"learner_{place}" for place in range(len(listed))]
    if len(chosen) != len(listed) or len(set(chosen)) != len(chosen):
        raise UserError(
            f"learners: got the names {', '.join(chosen)} for {len(listed)}, expected a different one for each"
        )
    for name, agent, (start, stop) in zip(chosen, listed, found, strict=True):
        own = getattr(agent, "num_copies", stop - start)
        if own != stop - start:
            raise UserError(
                f"learners: {name} is made for {own} copies and gets {stop - start}, make it for as many as its"
                " scope has"
            )
    return listed, found, chosen


def make_parts(
    environment: Environment, agents: Sequence[Agent], scopes: Sequence[Scope], names: Sequence[str]
) -> list[Part]:
    """One environment that all share, or one for each learner."""
    recipe = as_recipe(environment)
    learners = [Learner(name, agent, scope) for name, agent, scope in zip(names, agents, scopes, strict=True)]
    if recipe is None or recipe.shared:
        return [Part(copies_of(recipe.make(recipe.num_copies) if recipe else environment), learners)]
    return [own_part(recipe, learner.agent, learner.scope, learner.name) for learner in learners]


def own_part(recipe: Recipe, agent: Agent, scope: Scope, name: str, num_copies: int | None = None) -> Part:
    """A learner with an environment of its own: of the size of its scope, or of `num_copies`."""
    count = scope[1] - scope[0] if num_copies is None else num_copies
    return Part(copies_of(recipe.make(count), scope[0]), [Learner(name, agent, (0, count))])
