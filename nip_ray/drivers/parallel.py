"""Each learner in a process of its own, a Ray actor.

Decisions that matter here:
- learners with environments of their own take them along: nothing crosses processes between two rows of metrics, and
  results are identical to the sequential driver's;
- learners that share an environment (one that cannot be split) act in lock-step: the environment stays here, and per
  timestep and learner one message is sent, with everything since the last, and one returned, with actions;
- nothing is lost at the end: weights, optimizers, replay, statistics and episodes in flight are returned, and the
  driver's agents get the state of their doubles. Its checkpoints are those of the sequential driver.
"""

import atexit
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from nip_ray.cluster.interrupts import safe_point
from nip_ray.drivers.contract import Agent, Scope
from nip_ray.drivers.core import SILENT, Core, Environment, Pending, Reports, own_part
from nip_ray.drivers.environments import Recipe
from nip_ray.drivers.loops import SequentialDriver
from nip_ray.errors import LearnerLost, TrainingError, UserError
from nip_ray.progress import progress_line
from nip_ray.settings.drivers import DriverSettings

_START_S, _END_S = 300.0, 5.0
_SUMMED = ("env_steps_total", "env_steps_per_s", "episodes_total")


class ParallelDriver(SequentialDriver):
    """Trains and evaluates each learner in a process of its own; arguments as those of `SequentialDriver`.

    Uses the Ray that this process has joined; else a local one is started, and ended by `close`. Raises UserError if
    arguments do not fit or Ray has not enough processors, LearnerLost when a process is gone.
    """

    def _set_up(self, environment: Environment) -> None:
        settings = self.settings
        self._owns_ray = _ensure_ray(len(self.agents) * settings.threads_per_learner)
        atexit.register(self.close)
        self._closed = False
        self._seats = [_Seat(name, settings.threads_per_learner) for name in self.names]
        recipe = self._recipe
        self._together: SequentialDriver | None = None
        try:
            _answers([seat.call("hold", agent) for seat, agent in zip(self._seats, self.agents, strict=True)], _START_S)
            if recipe is None or recipe.shared:
                doubles: list[Any] = [
                    _Double(agent, seat) for agent, seat in zip(self.agents, self._seats, strict=True)
                ]
                sizes = [stop - start for start, stop in self.scopes]
                self._together = SequentialDriver(environment, doubles, settings, sizes, self.names, self.seed)
            else:
                orders = zip(self._seats, self.scopes, self.names, strict=True)
                _answers(
                    [seat.call("furnish", recipe, scope, name, settings, self.seed) for seat, scope, name in orders]
                )
        except BaseException:
            self.close()
            raise
        self._timestep = self._env_steps = 0

    @property
    def timestep(self) -> int:
        """Number of timesteps done."""
        return self._together.timestep if self._together else self._timestep

    @property
    def env_steps(self) -> int:
        """Number of transitions of all learners."""
        return self._together.env_steps if self._together else self._env_steps

    def train(self, until: int | None = None, reports: Reports = SILENT) -> None:
        """Like `SequentialDriver.train`; afterwards the driver's agents have learned."""
        if self._together is not None:
            self._together.train(until, reports)
        else:
            self._train_apart(until, reports)
        self.state_dict()

    def _train_apart(self, until: int | None, reports: Reports) -> None:
        total = self.settings.timesteps
        end = total if until is None else min(until, total)
        with progress_line("", self._timestep, total, not self.settings.progress_bar, "timestep") as report:
            while self._timestep < end:
                stop = reports.next_due(self._timestep, end)
                answers = self._ask("train", stop, reports.write_interval)
                self._timestep, self._env_steps = stop, sum(steps for steps, _ in answers)
                for rows in zip(*(rows for _, rows in answers), strict=True):
                    row = merged(rows)
                    report(stop, row)
                    reports.on_row(row)
                reports.checkpoint_if_due(stop)
                safe_point()

    def evaluate(self, timesteps: int, num_copies: int | None = None) -> dict[str, float]:
        """Like `SequentialDriver.evaluate`."""
        if self._together is not None:
            return self._together.evaluate(timesteps, num_copies)
        return {
            tag: value for figures in self._ask("evaluate", timesteps, num_copies) for tag, value in figures.items()
        }

    def state_dict(self) -> dict[str, Any]:
        """Like `SequentialDriver.state_dict`; the driver's agents get their doubles' state."""
        if self._together is not None:
            state = self._together.state_dict()
        else:
            found = self._ask("state")
            state = {
                **found[0],
                **{name: [one[name][0] for one in found] for name in ("parts", "statistics", "agents")},
            }
        for agent, learned in zip(self.agents, state["agents"], strict=True):
            agent.load_state_dict(learned)
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The inverse of `state_dict`. Raises UserError for a state of other learners."""
        if self._together is not None:
            self._together.load_state_dict(state)
            return
        if len(state["agents"]) != len(self.agents) or len(state["parts"]) != len(self.agents):
            raise UserError(
                f"checkpoint: got {len(state['agents'])} learners, expected {len(self.agents)} as in the settings"
            )
        own = [
            {**state, **{name: [state[name][place]] for name in ("parts", "statistics", "agents")}}
            for place in range(len(self.agents))
        ]
        _answers([seat.call("load", part) for seat, part in zip(self._seats, own, strict=True)])
        self._timestep = int(state["timestep"])
        self._env_steps = sum(int(statistics["env_steps"]) for statistics in state["statistics"])

    def close(self) -> None:
        """End the processes, the environments, and a Ray that was started here."""
        if self._closed:
            return
        self._closed = True
        atexit.unregister(self.close)
        if self._together is not None:
            self._together.close()
        for seat in self._seats:
            seat.end()
        if self._owns_ray:
            import ray

            ray.shutdown()

    def _ask(self, method: str, *arguments: Any) -> list[Any]:
        return _answers([seat.call(method, *arguments) for seat in self._seats])


def merged(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One row of metrics from those of all learners at the same timestep: counts are summed, times are maxima."""
    made: dict[str, Any] = {}
    for row in rows:
        for key, value in row.items():
            if key in _SUMMED:
                made[key] = made.get(key, 0) + value
            else:
                made[key] = max(made[key], value) if key in made else value
    return made


class Place:
    """The content of a learner's process: its agent and, unless it is shared, its environment."""

    def __init__(self, threads: int) -> None:
        torch.set_num_threads(threads)
        self.agent: Any = None
        self.core: Any = None
        self.recipe: Any = None

    def do(self, method: str, arguments: tuple[Any, ...]) -> tuple[str, Any]:
        """("", the result), or the kind and the message of a UserError or TrainingError."""
        try:
            return "", getattr(self, method)(*arguments)
        except UserError as error:
            return "user", str(error)
        except TrainingError as error:
            return "training", str(error)

    def hold(self, agent: Agent) -> None:
        """Set the agent."""
        self.agent = agent

    def furnish(self, recipe: Recipe, scope: Scope, name: str, settings: DriverSettings, seed: int) -> None:
        """Make the agent's own environment."""
        self.recipe, self.scope, self.name = recipe, scope, name
        self.core = Core([own_part(recipe, self.agent, scope, name)], settings, seed)

    def train(self, end: int, write_interval: int) -> tuple[int, list[dict[str, Any]]]:
        """(env steps so far, rows of metrics)."""
        rows: list[dict[str, Any]] = []
        self.core.train(end, Reports(write_interval, rows.append))
        return self.core.env_steps, rows

    def evaluate(self, timesteps: int, num_copies: int | None) -> dict[str, float]:
        """In an environment made for this."""
        part = own_part(self.recipe, self.agent, self.scope, self.name, num_copies)
        try:
            return self.core.evaluate(timesteps, [part])
        finally:
            part.copies.close()

    def state(self) -> dict[str, Any]:
        """The state of agent, environment and statistics."""
        return self.core.state_dict()

    def load(self, state: Mapping[str, Any]) -> None:
        """The inverse of `state`."""
        self.core.load_state_dict(state)

    def leave(self) -> None:
        """End the environment, which may have processes of its own."""
        if self.core is not None:
            self.core.close()

    def calls(self, queue: Sequence[tuple[str, tuple[Any, ...], dict[str, Any]]]) -> Any:
        """Call the agent's methods in order; return the last result."""
        answer = None
        for method, arguments, options in queue:
            answer = getattr(self.agent, method)(*arguments, **options)
        return answer


class _Seat:
    """The local end of one learner's process."""

    def __init__(self, name: str, threads: int) -> None:
        import ray

        self.name = name
        self._actor: Any = ray.remote(Place).options(num_cpus=threads, max_restarts=0).remote(threads)

    def call(self, method: str, *arguments: Any) -> "_Answer":
        """Start a call."""
        return _Answer(self, self._actor.do.remote(method, arguments))

    def end(self) -> None:
        """End the process."""
        import ray

        if ray.is_initialized():
            # also ready if the process is already gone
            ray.wait([self._actor.do.remote("leave", ())], timeout=_END_S)
            ray.kill(self._actor)


class _Answer(Pending):
    """A call in progress."""

    def __init__(self, seat: _Seat, reference: Any) -> None:
        self._seat, self._reference = seat, reference

    def result(self, timeout: float | None = None) -> Any:
        """The result, or the error of the call."""
        import ray
        from ray.exceptions import GetTimeoutError, RayActorError, RayTaskError

        name = self._seat.name
        try:
            fault, answer = ray.get(self._reference, timeout=timeout)
        except GetTimeoutError:
            raise UserError(
                f"driver: {name} got no process within {timeout:.0f} s; give Ray more processors, or fewer learners"
            ) from None
        except RayTaskError as error:
            raise TrainingError(f"{name}: {type(error.cause).__name__}: {error.cause}") from error
        except RayActorError as error:
            raise LearnerLost(f"{name}: its process is gone; train on from the newest checkpoint") from error
        if fault == "user":
            raise UserError(answer)
        if fault:
            raise TrainingError(f"{name}: {answer}")
        return answer


def _answers(calls: Sequence[_Answer], timeout: float | None = None) -> list[Any]:
    return [call.result(timeout) for call in calls]


_UNANSWERED = {
    "enable_training_mode",
    "begin",
    "pre_interaction",
    "record_transition",
    "post_interaction",
    "update",
    "track_data",
}
_ANSWERED = {"tracked", "state_dict", "load_state_dict"}


class _Double:
    """A remote agent. Calls without a result are queued until one with a result, and sent with it: one message per
    timestep. So learners learn at the same time."""

    def __init__(self, agent: Agent, seat: _Seat) -> None:
        self.observation_space, self.action_space = agent.observation_space, agent.action_space
        self._seat = seat
        self._queue: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []

    def __getattr__(self, name: str) -> Any:
        if name in _ANSWERED:
            return lambda *arguments: self._now(name, *arguments).result()
        if name in _UNANSWERED:
            return lambda *arguments: self._queue.append((name, arguments, {}))
        raise AttributeError(name)

    def _now(self, method: str, *arguments: Any, **options: Any) -> _Answer:
        queue, self._queue = [*self._queue, (method, arguments, options)], []
        return self._seat.call("calls", queue)

    def act(self, observations: Any, timestep: int, timesteps: int, *, explore: bool = True, states: Any = None) -> Any:
        """Pending actions."""
        return self._now("act", observations, timestep, timesteps, explore=explore, states=states)


def _ensure_ray(num_cpus: int) -> bool:
    """Join or start Ray; True if started here. Raises UserError if a joined one has too few processors."""
    import ray

    if not ray.is_initialized():
        from nip_ray.cluster.ray_session import start_local_ray

        start_local_ray(num_cpus=num_cpus, include_dashboard=False)
        return True
    there = ray.cluster_resources().get("CPU", 0)
    if there < num_cpus:
        raise UserError(
            f"driver: the learners need {num_cpus} processors and Ray has {there:.0f}; lower threads_per_learner or"
            " learners"
        )
    return False
