"""`WorkerPool`: Ray actors that hold dialogues; work is distributed in parts, and reassigned when a worker dies."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, TypeVar

import ray
from ray.exceptions import ActorUnavailableError, RayActorError, RayError

from nip_ray.cluster.liveness import ActorWatch, watchable
from nip_ray.cluster.ray_session import first_words
from nip_ray.errors import TrainingError
from nip_ray.serving.host import as_ours

MAX_DEATHS = 5
"""Maximum deaths of workers with the same part, after which the work fails."""
RESTART_TRIES, RESTART_S = 300, 1.0
"""Tries, and seconds before each, to reach a restarting worker."""

Part = TypeVar("Part")
Call = Callable[[Any], Awaitable[Any]]
"""A call on an actor's handle."""


class WorkerPool:
    """Ray must be running. actors: their handles."""

    def __init__(
        self, kind: type, options: Mapping[str, Any], arguments: Sequence[tuple[Any, ...]], hang_timeout_s: float
    ) -> None:
        """kind: of the actors. options: Ray's, for each. arguments: of each actor."""
        make = watchable(kind).options(**options, max_restarts=-1)
        self.actors = [make.remote(*given) for given in arguments]
        named = {f"rollout worker {number}": actor for number, actor in enumerate(self.actors)}
        self._watch = ActorWatch(named, hang_timeout_s)

    async def work(
        self,
        calls: Sequence[Call],
        over: Callable[[Mapping[int, Any]], None] | None = None,
        died: Callable[[int], Awaitable[None]] | None = None,
    ) -> list[Any]:
        """The results of these calls, in order; each runs on the first free worker.

        over: called with the results so far. died: awaited with the number of a dead worker. Raises a call's errors,
        and TrainingError if workers die repeatedly at the same call, once the calls in flight are over.
        """
        waiting, made = list(enumerate(calls)), dict[int, Any]()

        async def work(number: int) -> None:
            while waiting:
                index, call = waiting.pop(0)
                try:
                    made[index] = await self._made(number, call, died)
                except BaseException:
                    waiting.clear()
                    raise
                if over is not None:
                    over(made)

        for error in await asyncio.gather(
            *(work(number) for number in range(len(self.actors))), return_exceptions=True
        ):
            if isinstance(error, BaseException):
                raise error
        return [made[index] for index in range(len(calls))]

    def close(self) -> None:
        """End the actors."""
        self._watch.close()
        for actor in self.actors:
            ray.kill(actor)

    async def _made(self, number: int, call: Call, died: Callable[[int], Awaitable[None]] | None) -> Any:
        said = ""
        for _ in range(MAX_DEATHS):
            try:
                return await call(self.actors[number])
            except RayActorError as error:
                said = first_words(str(error))
                if died is not None:
                    await died(number)
                await self._back(number)
            except RayError as error:
                raise as_ours(error, "a rollout worker") from None
        raise TrainingError(
            f"rollout worker {number} died {MAX_DEATHS} times at the same dialogues ({said}); see Ray's logs, then"
            " resume the run"
        )

    async def _back(self, number: int) -> None:
        """Wait until a dead worker has restarted: before, it may refuse calls at once."""
        for _ in range(RESTART_TRIES):
            try:
                await self.actors[number].__ray_ready__.remote()
            except ActorUnavailableError:
                await asyncio.sleep(RESTART_S)
                continue
            except RayActorError:  # it cannot be restarted, or died again; the next call raises
                pass
            return


def parts_of(tasks: Sequence[Part], count: int, size: int = 1) -> list[list[Part]]:
    """At most `count` runs of consecutive tasks, of about equal length, that keep `size` tasks together."""
    units = -(-len(tasks) // size)
    ends = [size * (units * part // count) for part in range(count + 1)]
    return [list(tasks[begin:end]) for begin, end in pairwise(ends) if end > begin]
