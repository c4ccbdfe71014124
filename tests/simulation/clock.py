"""Time and tasks of a simulated world: a clock that moves when everybody waits, and an event loop whose order is drawn
from a seed.

Decisions that matter here:
- the loop is asyncio's interface and none of its code: one thread, no sockets. When nothing is ready, the clock jumps
  to the next timer; when there is no timer either, nobody will ever go on, and that is a deadlock;
- steps of tasks that are ready at once are run in an order that is drawn, as replies of a network come in any order;
  other callbacks keep theirs, which asyncio promises;
- what is handed to a thread runs on the loop instead, as a step of its own;
- the wall clock can jump. The monotonic one, by which asyncio waits, cannot.
"""

import asyncio
import heapq
import random
import sys
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from contextvars import Context
from itertools import count
from typing import Any, NoReturn

EPOCH = 1_800_000_000.0
MAX_STEPS = 60_000
"""Of one process: more is a loop that goes nowhere."""
MAX_S = 30 * 86400.0
"""Of one process, in virtual time."""


class Violation(BaseException):
    """Something that must never be seen was seen. No code under test catches it: it is no Exception."""


class Gone(BaseException):
    """The simulated process is dead: whatever it still tries to do is not done."""


class Clock:
    """Seconds since the world began, and what the wall clock shows besides."""

    def __init__(self) -> None:
        self.now, self.skew = 1000.0, 0.0

    def wall(self) -> float:
        """Seconds since 1970, as this machine has them."""
        return EPOCH + self.now + self.skew

    def true(self) -> float:
        """The same by a clock that is right: the provider's."""
        return EPOCH + self.now

    def sleep(self, seconds: float) -> None:
        self.now += max(seconds, 0.0)

    def install(self) -> None:
        """Have everybody in this process ask this clock, for good."""
        time.time, time.monotonic, time.perf_counter, time.sleep = (
            self.wall,
            lambda: self.now,
            lambda: self.now,
            self.sleep,
        )
        time.time_ns = lambda: int(self.wall() * 1e9)
        time.monotonic_ns = lambda: int(self.now * 1e9)


class VirtualLoop(asyncio.AbstractEventLoop):
    """See the top of this file. step: called before each step of a task; whether the process is `dead` is asked after
    each. outside: when something happens next that is none of this process's doing, and `happen` does it. violate: told
    of what must never be seen.
    """

    def __init__(
        self,
        clock: Clock,
        dice: random.Random,
        step: Callable[[asyncio.Task[Any]], None],
        dead: Callable[[], bool],
        outside: Callable[[], float | None],
        happen: Callable[[], None],
        violate: Callable[[str], None],
    ) -> None:
        self.clock, self.dice, self.step, self.dead = clock, dice, step, dead
        self.outside, self.happen, self.violate = outside, happen, violate
        self.shuffled = True
        self.tasks: list[asyncio.Task[Any]] = []
        self._ready: deque[asyncio.Handle] = deque()
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._number, self._steps, self._ends = count(), 0, clock.now + MAX_S
        self._running = self._closed = self._stopping = False

    # ------------------------------------------------------------------------------------------------------- scheduling

    def time(self) -> float:
        return self.clock.now

    def call_soon(self, callback: Callable[..., Any], *args: Any, context: Context | None = None) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    call_soon_threadsafe = call_soon

    def call_later(
        self, delay: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self.clock.now + delay, callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        heapq.heappush(self._timers, (when, next(self._number), handle))
        return handle

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        pass  # it is skipped when its time comes

    def _next(self) -> asyncio.Handle:
        """Take the next handle, moving the clock where nothing is ready."""
        while True:
            if (due := self.outside()) is not None and due <= self.clock.now:
                self.happen()
            while self._timers and (self._timers[0][0] <= self.clock.now or self._timers[0][2].cancelled()):
                self._ready.append(heapq.heappop(self._timers)[2])
            while self._ready and self._ready[0].cancelled():
                self._ready.popleft()
            if self._ready:
                break
            if due is None and not self._timers:
                self._stuck("deadlock: nothing is ready and nothing will be")
            self.clock.now = max(
                self.clock.now, min(at for at in (due, self._timers[0][0] if self._timers else None) if at is not None)
            )
            if self.clock.now > self._ends:
                self._stuck(f"no end after {MAX_S / 86400:g} days")
        if self.shuffled and len(self._ready) > 1 and _is_step(self._ready[0]):
            steps = [n for n, handle in enumerate(self._ready) if n < 8 and _is_step(handle)]
            self._ready.rotate(-(chosen := self.dice.choice(steps)))
            handle = self._ready.popleft()
            self._ready.rotate(chosen)
            return handle
        return self._ready.popleft()

    def _stuck(self, what: str) -> NoReturn:
        self.violate(what)
        raise Gone

    def run_forever(self) -> None:
        if self.dead():
            raise Gone
        self._running, self._stopping = True, False
        asyncio._set_running_loop(self)
        try:
            while not self._stopping:
                handle = self._next()
                if handle.cancelled():
                    continue
                self._steps += 1
                if self._steps > MAX_STEPS:
                    self._stuck(f"no end after {MAX_STEPS} steps")
                if _is_step(handle):
                    self.step(handle._callback.__self__)  # type: ignore[attr-defined]
                if not self.dead():
                    handle._run()
                if self.dead():
                    raise Gone
        finally:
            self._running = False
            asyncio._set_running_loop(None)

    def run_until_complete(self, future: Any) -> Any:
        made = asyncio.ensure_future(future, loop=self)
        made.add_done_callback(lambda _: self.stop())
        self.run_forever()
        return made.result()

    def stop(self) -> None:
        self._stopping = True

    def is_running(self) -> bool:
        return self._running

    def is_closed(self) -> bool:
        return self._closed

    def close(self) -> None:
        self._closed = True

    async def shutdown_asyncgens(self) -> None:
        pass

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        pass

    # ------------------------------------------------------------------------------------------------------------
    # making

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(self, coro: Any, *, name: str | None = None, context: Context | None = None) -> asyncio.Task[Any]:
        task = asyncio.Task(coro, loop=self, name=name, context=context)
        self.tasks.append(task)
        return task

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        made = self.create_future()

        def work() -> None:
            try:
                result = func(*args)
            except Exception as error:
                if not made.cancelled():
                    made.set_exception(error)
            else:
                if not made.cancelled():
                    made.set_result(result)

        self.call_soon(work)
        return made

    def get_debug(self) -> bool:
        return False

    def set_debug(self, enabled: bool) -> None:
        pass

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        pass  # what is lost when a process dies

    default_exception_handler = call_exception_handler

    def bury(self) -> None:
        """End every coroutine of a dead process, so that none of them acts in the next one's world."""
        for task in self.tasks:
            coroutine = task.get_coro()
            with suppress(BaseException):  # whatever the dead say
                coroutine.close()  # type: ignore[union-attr]
        self.tasks.clear()
        self._ready.clear()
        self._timers.clear()


class Policy(asyncio.DefaultEventLoopPolicy):
    """Every new event loop is one of the world's."""

    def __init__(self, make: Callable[[], VirtualLoop]) -> None:
        super().__init__()
        self._make = make

    def new_event_loop(self) -> Any:
        return self._make()


def _is_step(handle: asyncio.Handle) -> bool:
    """Whether a task continues, and no future tells its callbacks."""
    return isinstance(getattr(handle._callback, "__self__", None), asyncio.Task)  # type: ignore[attr-defined]


def silence() -> None:
    """What dying processes leave behind is not told of."""
    sys.unraisablehook = lambda _: None
