"""What an algorithm asks of its env runners and learners: small named callables, so that they pickle by reference, and their errors.

An env runner that raises is ended by RLlib, and its error stands in a log on some node; so errors travel back as answers (`Told`).
"""

# pyright: basic, reportAttributeAccessIssue=false
import traceback
from collections.abc import Callable
from typing import Any

import ray
from ray.exceptions import ActorDiedError, GetTimeoutError, RayActorError
from ray.rllib.core import COMPONENT_RL_MODULE

from nip_ray.errors import TrainingError, UserError
from nip_ray.rllib.env_runner import ProtocolEnvRunner
from nip_ray.rllib.samples import RolloutSamples

PROBE_S = 1.0
"""How long an iteration waits to see whether a lost env runner is back."""


class Failure:
    """An error on its way back. ours: it is one of those whose message says it all."""

    def __init__(self, message: str, trace: str, ours: bool) -> None:
        self.message, self.trace, self.ours = message, trace, ours


class Told:
    """Calls a function and tells of its error instead of raising it: an env runner that raises is ended by RLlib, without a word."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self.function = function

    def __call__(self, actor: Any) -> Any:
        try:
            return self.function(actor)
        except (UserError, TrainingError) as error:
            return Failure(str(error), "", ours=True)
        except Exception as error:  # whatever it is, it is raised again by who asked
            return Failure(f"{type(error).__name__}: {error}", traceback.format_exc(), ours=False)


def untold(answer: Any) -> Any:
    """The answer, or its error raised here."""
    if not isinstance(answer, Failure):
        return answer
    raise TrainingError(answer.message) from (None if answer.ours else RuntimeError(answer.trace))


def is_dead(actor: Any) -> bool:
    """Whether an actor is gone for good."""
    try:
        ray.get(actor.ping.remote(), timeout=PROBE_S)
    except ActorDiedError:
        return True
    except (RayActorError, GetTimeoutError):
        return False
    return False


def is_lost(actor: Any) -> bool:
    """Whether the process of an actor that is not restarted is gone. One that is busy, or waits for another, is not."""
    try:
        ray.get(actor.apply.remote(alive), timeout=0.2)
    except RayActorError:
        return True
    except GetTimeoutError:
        return False
    return False


def alive(actor: Any) -> bool:
    """What a learner that lives answers."""
    return True


def last_line(text: str) -> str:
    """The last line with anything in it: of a traceback, the error."""
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "no message")


class PlayShares:
    """To an env runner: play these workers' shares of an iteration."""

    def __init__(self, workers: tuple[int, ...], iteration: int) -> None:
        self.workers, self.iteration = workers, iteration

    def __call__(self, runner: ProtocolEnvRunner) -> tuple[list[RolloutSamples], Any]:
        samples = [sample for worker in self.workers for sample in runner.sample(iteration=self.iteration, worker=worker)]
        return samples, runner.get_metrics()


class TakeWeights:
    """To an env runner: play with these weights from now on."""

    def __init__(self, weights: list[ray.ObjectRef], number: int) -> None:
        self.weights, self.number = weights, number  # a list keeps Ray from resolving the reference in transit

    def __call__(self, runner: ProtocolEnvRunner) -> None:
        runner.set_state({COMPONENT_RL_MODULE: ray.get(self.weights[0]), "weights_seq_no": self.number})


class Update:
    """To a learner: learn from these samples."""

    def __init__(self, samples: ray.ObjectRef, arguments: dict[str, Any]) -> None:
        self.samples, self.arguments = [samples], arguments

    def __call__(self, learner: Any) -> Any:
        return learner.update(episodes=ray.get(self.samples[0]), **self.arguments)
