"""An application of aiohttp on the loopback interface, served by a thread of this process."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from aiohttp import web


@contextmanager
def serving(app: web.Application) -> Iterator[int]:
    """Its port, while it runs."""
    loop, ready, ports = asyncio.new_event_loop(), threading.Event(), []

    async def start() -> web.AppRunner:
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        ports.append(runner.addresses[0][1])
        return runner

    async def stop(runner: web.AppRunner) -> None:
        await runner.cleanup()
        left = asyncio.all_tasks() - {asyncio.current_task()}  # answers that nobody waits for any more
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)

    def run() -> None:
        asyncio.set_event_loop(loop)
        try:
            runner = loop.run_until_complete(start())
        finally:
            ready.set()
        loop.run_forever()
        loop.run_until_complete(stop(runner))
        loop.close()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    ready.wait()
    if not ports:
        raise RuntimeError("the server did not start")
    try:
        yield ports[0]
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
