"""The dialogues of a run by policy gradient, iteration after iteration, in time or one iteration ahead.

With `max_staleness: 1` the dialogues of an iteration are played, in a thread, while models learn from those of the
iteration before, with the weights from the start of that learning. These are recorded with every reply, and stored in
checkpoints, so that a resumed run plays the same dialogues again.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from typing import Any, Protocol

from nip_ray.learning.token_rows import Turn
from nip_ray.play.dialogue import LanguageScenario
from nip_ray.text.costs.token_bills import Use
from nip_ray.text.dialogues.runner import Task
from nip_ray.text.training.model_play import Reply, Talk
from nip_ray.text.training.policies import Policy

CHECKED = 64
"""Turns of each group whose log-probabilities are recomputed if they were played ahead."""
TasksOf = Callable[[int], tuple[LanguageScenario, Sequence[Task]]]
"""Iteration (from 0) -> its scenario and tasks."""


class Plays(Protocol):
    """A player of dialogues: `ModelPlay`, or `PlayWorkers`. apart: has its own models, with weights it last took."""

    apart: bool

    @property
    def booked(self) -> Mapping[str, Use]:
        """The tokens, by group, that the last `play` has booked so far."""
        ...

    def play(self, scenario: LanguageScenario, tasks: Sequence[Task], split: str, iteration: int) -> Talk:
        """The dialogues of these tasks."""
        ...

    def take(self, weights: Mapping[str, Any]) -> None:
        """Play with these weights, by group, from now on."""
        ...

    def logprobs(self, group: str, turns: Sequence[Turn]) -> list[list[float]]:
        """See `Policy.logprobs`; by the playing weights."""
        ...

    def close(self) -> None:
        """Release resources."""
        ...


@dataclass(frozen=True)
class Played:
    """Finished dialogues. version: number of iterations that the playing weights had learned from. differences: by
    group, of the first replies' log-probabilities from those of a learner with the same weights; only if played
    ahead."""

    scenario: LanguageScenario
    tasks: Sequence[Task]
    talk: Talk
    version: int
    differences: Mapping[str, float]


class Playing:
    """See the module. models: those that learn, by group. members: group -> its agents."""

    def __init__(
        self, plays: Plays, models: Mapping[str, Policy], members: Mapping[str, Sequence[str]], tasks_of: TasksOf
    ) -> None:
        self.plays, self._models, self._members, self._tasks_of = plays, models, members, tasks_of
        self._thread = ThreadPoolExecutor(1, "playing")
        self._ahead: Future[Played] | None = None
        self._by: tuple[int, Mapping[str, Any]] | None = None
        self._past: list[dict[str, int]] = []
        self._failed: Mapping[str, Use] = {}  # of a play that ended early

    def now(self, scenario: LanguageScenario, tasks: Sequence[Task], split: str, iteration: int) -> Talk:
        """Play with the current weights."""
        self.wait()
        self.plays.take(self._weights())
        return self.plays.play(scenario, tasks, split, iteration)

    def of(self, iteration: int) -> Played:
        """The dialogues of an iteration: those played ahead, else played now; with a checkpoint's weights, if it has
        any for them."""
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            return ahead.result()
        scenario, tasks = self._tasks_of(iteration)
        if self._by is None:
            self.plays.take(self._weights())
            return self._played(iteration, iteration, scenario, tasks)
        version, weights = self._by
        self.plays.take(weights)
        tasks = [replace(task, past=past) for task, past in zip(tasks, self._past, strict=True)]
        return self._played(iteration, version, scenario, tasks)

    def begin(self, iteration: int) -> None:
        """Start the dialogues of an iteration with the current weights, which have learned from all but the iteration
        before it."""
        self._by = iteration - 1, self._weights()
        self.plays.take(self._by[1])
        scenario, tasks = self._tasks_of(iteration)
        self._past = [dict(task.past) for task in tasks]
        self._ahead = self._thread.submit(self._played, iteration, iteration - 1, scenario, tasks)

    def wait(self) -> None:
        """Wait until no play is in progress. Errors are raised when the dialogues are requested."""
        if self._ahead is not None:
            wait([self._ahead])

    def state(self) -> dict[str, Any]:
        """For each learning group, the weights with which the next iteration's dialogues were played ahead ({} if they
        were not)."""
        return {} if self._ahead is None or self._by is None else dict(self._by[1])

    def arranged(self) -> list[dict[str, int]]:
        """For each of the next iteration's dialogues the agents with past weights ([] if not played ahead)."""
        return [] if self._ahead is None else self._past

    def set_state(self, iteration: int, weights: Mapping[str, Any], past: list[dict[str, int]]) -> None:
        """Continue before an iteration whose dialogues were played with these weights and arrangement (`arranged`)."""
        self._by, self._past = (iteration - 1, weights) if weights else None, past

    def uncounted(self) -> Mapping[str, Use]:
        """Tokens, by group, of dialogues that are played again when a run resumes from a checkpoint of now."""
        if self._ahead is None:
            return {}
        return self._failed if self._ahead.exception() is not None else self._ahead.result().talk.used

    def close(self) -> None:
        """Wait for plays in progress, and end the players."""
        self._thread.shutdown(wait=True, cancel_futures=True)
        self.plays.close()

    def _weights(self) -> dict[str, Any]:
        return {
            group: model.weights() for group, model in self._models.items() if self.plays.apart or model.samples_apart
        }

    def _played(self, iteration: int, version: int, scenario: LanguageScenario, tasks: Sequence[Task]) -> Played:
        try:
            talk = self.plays.play(scenario, tasks, "train", iteration)
            stale = self._models if version < iteration else ()
            differences = {group: self._difference(group, talk.replies) for group in stale}
        except Exception:
            self._failed = self.plays.booked
            raise
        return Played(scenario, tasks, talk, version, differences)

    def _difference(self, group: str, replies: Sequence[Reply]) -> float:
        own = [reply.turn for reply in replies if reply.agent in self._members[group]][:CHECKED]
        found = self.plays.logprobs(group, own)
        pairs = (
            pair for turn, there in zip(own, found, strict=True) for pair in zip(turn.logprobs, there, strict=True)
        )
        return max((abs(drawn - computed) for drawn, computed in pairs), default=0.0)
