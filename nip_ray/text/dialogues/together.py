"""Waiting for many awaitables at once, and leaving none behind when one fails; calls that are paid for are waited for all the same."""

import asyncio
from collections.abc import Awaitable, Iterable
from typing import Any, TypeVar

Result = TypeVar("Result")


async def gather_or_cancel(awaitables: Iterable[Awaitable[Result]]) -> list[Result]:
    """The results in order. When one fails (or this task is cancelled) the others are cancelled and waited for, and its error is raised.

    `asyncio.gather` alone would let the others continue, and a call to a model costs money; `asyncio.TaskGroup` would wrap
    the error.
    """
    tasks = [asyncio.ensure_future(awaitable) for awaitable in awaitables]
    try:
        return await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise


class PaidCalls:
    """Calls that continue when whoever waits for them is cancelled: they cost money, so their replies shall arrive and be recorded."""

    def __init__(self) -> None:
        self._open: set[asyncio.Future[Any]] = set()

    async def wait(self, call: Awaitable[Result]) -> Result:
        """What `call` gives or raises."""
        task = asyncio.ensure_future(call)
        self._open.add(task)
        task.add_done_callback(self._open.discard)
        return await asyncio.shield(task)

    async def rest(self) -> None:
        """Wait for all that are still on their way; what they raise was told to whoever waited, or comes too late."""
        await asyncio.gather(*self._open, return_exceptions=True)
