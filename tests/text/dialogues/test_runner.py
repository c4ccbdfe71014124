"""Calls that are paid for: waited for when whoever asked is gone, and what they raise then is nobody's."""

import asyncio
import gc
from typing import Any

import pytest

from nip_ray.text.dialogues.runner import PaidCalls


@pytest.mark.parametrize("when", ["in the same moment", "before the rest", "in the rest"])
def test_an_error_that_nobody_waits_for_is_not_printed(when: str) -> None:
    """It came with, or after, the one that ended the run."""
    printed: list[dict[str, Any]] = []

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: printed.append(context))
        calls, done = PaidCalls(), asyncio.Event()

        async def call() -> None:
            await done.wait()
            raise ValueError("too late")

        waiting = asyncio.ensure_future(calls.wait(call()))
        await asyncio.sleep(0)
        if when == "in the same moment":
            done.set()
            for _ in range(2):  # the call has failed, and who waits for it has not heard of it
                await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        done.set()
        if when == "before the rest":
            await asyncio.sleep(0.01)
        await calls.rest()
        del waiting
        gc.collect()

    asyncio.run(main())
    assert printed == []
