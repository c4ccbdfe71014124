"""Calls of an algorithm to its env runners and learners: named callables, which pickle by reference, and their errors.

RLlib ends an env runner that raises, and its error is in a log on some node; so errors are returned as results
(`ReturnErrors`). A lost learner is usually first noticed by another one, as an error of their connection.
"""

# pyright: basic, reportAttributeAccessIssue=false
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import ray
from ray.exceptions import ActorDiedError, GetTimeoutError, RayActorError, RayError
from ray.rllib.core import COMPONENT_RL_MODULE

from nip_ray.cluster.ray_session import first_words
from nip_ray.errors import LearnerLost, TrainingError, UserError
from nip_ray.play.exploration import Exploration
from nip_ray.play.rollout import RolloutSamples
from nip_ray.rllib.env_runner import ProtocolEnvRunner
from nip_ray.rllib.past import PastPlay

PROBE_S = 1.0
"""Seconds that an iteration waits for a lost env runner to return."""
_DEATH_S = 30.0  # maximum time for Ray to notice that a process is gone


class Failure:
    """An error. trace: if its message is not sufficient. of_peers: from a learner's communication with others."""

    def __init__(self, message: str, trace: str = "", of_peers: bool = False) -> None:
        self.message, self.trace, self.of_peers = message, trace, of_peers


class ReturnErrors:
    """Calls a function and returns its error: RLlib ends an env runner that raises, without a message."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self.function = function

    def __call__(self, actor: Any) -> Any:
        try:
            return self.function(actor)
        except (UserError, TrainingError) as error:
            return Failure(str(error))
        except Exception as error:  # any error is raised again by the caller
            innermost = traceback.extract_tb(error.__traceback__)[-1].filename.replace("\\", "/")
            of_peers = "torch/distributed/" in innermost  # as when another learner is lost
            return Failure(" ".join(f"{type(error).__name__}: {error}".split()), traceback.format_exc(), of_peers)


def unwrap(answer: Any) -> Any:
    """The result, or its error raised here."""
    if not isinstance(answer, Failure):
        return answer
    raise TrainingError(answer.message) from (RuntimeError(answer.trace) if answer.trace else None)


def reason_of_death(actor: Any) -> str:
    """Why an actor is gone for good; "" if it is not."""
    try:
        ray.get(actor.ping.remote(), timeout=PROBE_S)
    except ActorDiedError as error:
        return said(error) if error.actor_init_failed else first_words(str(error))
    except (RayActorError, GetTimeoutError):
        return ""
    return ""


def said(error: RayError) -> str:
    """An error from another process on one line: the original one, if known."""
    cause = getattr(error, "cause", None)
    if isinstance(cause, Exception):
        return " ".join(f"{type(cause).__name__}: {cause}".split())
    return next((line.strip() for line in reversed(str(error).splitlines()) if line.strip()), "no message")


def ask_learners(
    learners: Sequence[Any], functions: Sequence[Callable[[Any], Any]], only: Sequence[int], limit_s: float
) -> list[Any]:
    """The results of `functions`, each on the learner numbered at its place in `only`.

    Raises LearnerLost when a learner is gone or has not answered within `limit_s` seconds, TrainingError when one
    raised, as soon as any of them is known: the others may wait for it forever. They are ended then.
    """
    calls = [learners[i].apply.remote(ReturnErrors(function)) for i, function in zip(only, functions, strict=True)]
    waiting, found, deadline = list(calls), {}, time.monotonic() + limit_s
    try:
        while waiting:
            done, waiting = ray.wait(waiting, num_returns=1, timeout=max(0.0, deadline - time.monotonic()))
            if not done:
                silent = ", ".join(str(number) for number, call in zip(only, calls, strict=True) if call in waiting)
                told = f"{limit_s:.0f} s (fault_tolerance.hang_timeout_s)"
                raise LearnerLost(f"learner {silent} of {len(learners)} gave no answer in {told}")
            found[done[0]] = _learners_answer(done[0], learners)
    except TrainingError:
        for learner in learners:
            ray.kill(learner)
        raise
    return [found[call] for call in calls]


def _learners_answer(call: ray.ObjectRef, learners: Sequence[Any]) -> Any:
    try:
        answer = ray.get(call)
    except RayActorError as error:
        raise LearnerLost(f"a learner of {len(learners)} is lost ({first_words(str(error))})") from error
    except RayError as error:  # Ray's own: the function's errors are results
        _refuse_lost(learners)
        raise TrainingError(f"a learner failed: {said(error)}") from error
    if isinstance(answer, Failure) and answer.of_peers:
        _refuse_lost(learners)
    return unwrap(answer)


def _refuse_lost(learners: Sequence[Any]) -> None:
    """Raise LearnerLost if a learner is found to be gone within the time that Ray needs to notice."""
    deadline = time.monotonic() + _DEATH_S
    while time.monotonic() < deadline:
        if lost := [i for i, learner in enumerate(learners) if _is_lost(learner)]:
            raise LearnerLost(f"learner {', '.join(map(str, lost))} of {len(learners)} is lost")
        time.sleep(0.2)


def _is_lost(actor: Any) -> bool:
    """True if the process of an actor that is not restarted is gone. One that is busy, or waits for another, is not."""
    try:
        ray.get(actor.apply.remote(_alive), timeout=0.2)
    except RayActorError:
        return True
    except GetTimeoutError:
        return False
    return False


def _alive(actor: Any) -> bool:
    """The reply of a living learner."""
    return True


class PlayShares:
    """For an env runner: play these workers' shares of an iteration. past: worker -> its past opponents. by: the
    weights to use (None: the present ones)."""

    def __init__(
        self,
        workers: tuple[int, ...],
        iteration: int,
        past: Mapping[int, PastPlay | None],
        by: "TakeWeights | None" = None,
    ) -> None:
        self.workers, self.iteration, self.by = workers, iteration, by
        self.past = {worker: own for worker in workers if (own := past.get(worker)) is not None}

    def __call__(self, runner: ProtocolEnvRunner) -> tuple[list[RolloutSamples], Any]:
        if self.by is not None:
            self.by(runner)
        past = {worker: own.here() for worker, own in self.past.items()}
        played = [
            runner.sample(iteration=self.iteration, worker=worker, past=past.get(worker)) for worker in self.workers
        ]
        return [sample for samples in played for sample in samples], runner.get_metrics()


class TakeWeights:
    """For an env runner: play with these weights from now on."""

    def __init__(self, weights: list[ray.ObjectRef], number: int) -> None:
        self.weights, self.number = weights, number  # a list keeps Ray from resolving the reference in transit

    def __call__(self, runner: ProtocolEnvRunner) -> None:
        runner.set_state({COMPONENT_RL_MODULE: ray.get(self.weights[0]), "weights_seq_no": self.number})


class RollOut:
    """For an env runner: play these workers' shares of a roll-out. opponents: role -> (its player,)."""

    def __init__(
        self, plan: Exploration, workers: tuple[int, ...], opponents: Mapping[str, tuple[ray.ObjectRef, ...]]
    ) -> None:
        self.plan, self.workers, self.opponents = plan, workers, dict(opponents)

    def __call__(self, runner: ProtocolEnvRunner) -> tuple[list[RolloutSamples], Any]:
        opponents = {role: ray.get(place[0]).to(runner.device) for role, place in self.opponents.items()}
        return [runner.roll_out(self.plan, worker, opponents) for worker in self.workers], runner.get_metrics()


class Update:
    """For a learner: learn from a rollout, passed to its `update` under this name."""

    def __init__(self, name: str, played: ray.ObjectRef, arguments: dict[str, Any]) -> None:
        self.name, self.played, self.arguments = name, [played], arguments

    def __call__(self, learner: Any) -> Any:
        return learner.update(**{self.name: ray.get(self.played[0])}, **self.arguments)
