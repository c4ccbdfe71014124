"""A limit on spending, and limits on the rate of calls, for one process; `nip_ray.text.costs.shared` has both for many.

Decisions that matter here:
- the maximum cost of a call or job is reserved before it is sent, and settled at its actual cost.
  Spent + uncertain + reserved never exceeds the limit, however many calls are in flight, as long as providers bill no
  more than the worst case;
- if only reservations of calls are in the way, `reserve` waits, first come first served, until they are settled. If
  money spent or held for jobs is in the way, it raises at once;
- an attempt without an answer may have been billed: its worst case moves to `uncertain`, which counts as spent.
"""

import asyncio
import math
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import Future
from typing import Protocol

from nip_ray.settings.providers import BudgetSettings
from nip_ray.text.costs.prices import Amount, BudgetExhausted, Spending, exact_usd, pusd, sum_of


class Reservation:
    """Money set aside for one call or job, until the first `settle`, `lose` or `release`; later ones do nothing."""

    def __init__(self, amount: Amount, close: Callable[[Amount, Spending], None]) -> None:
        """close: takes the amount set aside and the spending."""
        self.amount = amount
        self._close: Callable[[Amount, Spending], None] | None = close

    def settle(self, spending: Spending) -> None:
        """Book the actual cost and give the rest back."""
        close, self._close = self._close, None
        if close is not None:
            close(self.amount, spending)

    def lose(self) -> None:
        """There was no answer: book the whole amount as uncertain."""
        self.settle(Spending(uncertain=self.amount))

    def release(self) -> None:
        """There was no cost: give all of it back."""
        self.settle(Spending())

    def split(self, amounts: Iterable[Amount]) -> "list[Reservation]":
        """Replace this reservation by one for each of these amounts, which sum to it."""
        close, self._close = self._close, None
        if close is None:
            raise ValueError("the reservation is settled")
        return [Reservation(amount, close) for amount in amounts]


class BudgetLike(Protocol):
    """The payer of calls and jobs: a `Budget` of this process, or a `SharedBudget`. in_usd: limited in dollars."""

    in_usd: bool

    @property
    def spending(self) -> Spending:
        """See `Budget.spending`."""
        ...

    async def reserve(self, amount: Amount) -> Reservation:
        """Set `amount` aside. Raises BudgetExhausted when that much is not left."""
        ...

    async def reserve_for_jobs(self, amount: Amount) -> Reservation:
        """See `Budget.reserve_for_jobs`."""
        ...

    def book(self, spending: Spending) -> None:
        """See `Budget.book`."""
        ...


class Budget:
    """A limit on spending, for all threads and event loops of this process."""

    def __init__(self, settings: BudgetSettings | None = None, spent: Spending | None = None) -> None:
        """settings: the limits (None: no limit, but everything is counted). spent: before, by the same run.

        Raises ValueError for a limit that is not positive.
        """
        settings = settings or BudgetSettings()
        if (settings.usd is not None and settings.usd <= 0) or (settings.tokens is not None and settings.tokens <= 0):
            raise ValueError(f"a budget must be positive (got {settings})")
        self._settings = settings
        self.in_usd = settings.usd is not None
        self._limit_pusd = pusd(settings.usd) if settings.usd is not None else None
        self._spent = sum_of([] if spent is None else [spent])
        self._used = self._spent.at_most  # cached, so that a reservation needs no sum over models
        self._reserved = self._held = Amount()
        self._waiting: deque[tuple[Amount, Future[Reservation]]] = deque()
        self._lock = threading.Lock()

    @property
    def spending(self) -> Spending:
        """A copy of the spending so far."""
        with self._lock:
            return sum_of([self._spent])

    @property
    def reserved(self) -> Amount:
        """The amount that is set aside now."""
        with self._lock:
            return self._reserved

    async def reserve(self, amount: Amount) -> Reservation:
        """Set `amount` aside, in order of requests; wait while other reservations are in the way.

        Raises BudgetExhausted when spending has left too little.
        """
        with self._lock:
            if not self._waiting and self._fits(self._reserved + amount):
                return self._take(amount)
            if not self._fits(self._held + amount):
                raise BudgetExhausted(self._message(amount))
            future: Future[Reservation] = Future()
            self._waiting.append((amount, future))
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            if not future.cancel() and future.exception() is None:
                future.result().release()  # granted just when this was cancelled
            self.settle(Amount(), Spending())  # serve the rest of the queue
            raise

    async def reserve_for_jobs(self, amount: Amount) -> Reservation:
        """Set `amount` aside for jobs, which may take days: no caller waits for its return. Waits and raises as
        `reserve` does."""
        await self.reserve(amount)
        with self._lock:
            self._held += amount
            self._serve()
        return Reservation(amount, self.let_go)

    def let_go(self, released: Amount, spending: Spending) -> None:
        """`settle` for an amount from `reserve_for_jobs`."""
        with self._lock:
            self._held -= released
        self.settle(released, spending)

    def settle(self, released: Amount, spending: Spending) -> None:
        """Return the reserved amount `released`, book `spending`, and serve callers that can now be served."""
        with self._lock:
            self._reserved -= released
            self._spent.add(spending)
            self._used += spending.at_most
            self._serve()

    def book(self, spending: Spending) -> None:
        """Book spending without a reservation (such as from the records of an earlier process)."""
        self.settle(Amount(), spending)

    def _fits(self, reserved: Amount) -> bool:
        tokens = self._settings.tokens
        enough = self._limit_pusd is None or self._used.pusd + reserved.pusd <= self._limit_pusd
        return enough and (tokens is None or self._used.tokens + reserved.tokens <= tokens)

    def _take(self, amount: Amount) -> Reservation:
        self._reserved += amount
        return Reservation(amount, self.settle)

    def _serve(self) -> None:
        """Serve the queue from its head as far as there is room; refuse requests that no settling can help."""
        while self._waiting:
            amount, future = self._waiting[0]
            if future.cancelled():
                self._waiting.popleft()
            elif self._fits(self._reserved + amount):
                self._waiting.popleft()
                if future.set_running_or_notify_cancel():
                    future.set_result(self._take(amount))
            elif not self._fits(self._held + amount):
                self._waiting.popleft()
                if future.set_running_or_notify_cancel():
                    future.set_exception(BudgetExhausted(self._message(amount)))
            else:
                return

    def _message(self, amount: Amount) -> str:
        """The used, held and requested amounts and the smallest sufficient limit, in the unit of the binding limit."""
        parts = (self._used, self._held, amount, self._used + self._held + amount)
        limit = self._settings.tokens
        if limit is not None and parts[-1].tokens > limit:
            unit, key, numbers = "tokens", "tokens", [str(part.tokens) for part in parts]
        else:
            unit, key, numbers = "US dollars", "usd", [exact_usd(part.pusd) for part in parts]
            limit = self._settings.usd
        used, held, asked, least = numbers
        return (
            f"the budget is used up: of {limit} {unit} (budget.{key}) {used} are or may be spent and {held} are"
            f" reserved for fine-tuning jobs; what comes next may take {asked}. Resume the run with a budget.{key} of"
            f" at least {least} to continue"
        )


# ---------------------------------------------- Rate limits of calls: requests and tokens per minute, by token buckets.
# How fast calls may go: requests and tokens per minute, kept by token buckets.
# - a bucket holds `BURST_S` seconds' worth (at least one request), so that no minute exceeds the limit by more than one
#   such burst; providers divide their minutes into slices of about that length. A call that needs more tokens than the
#   bucket holds waits for it to be full and leaves a debt;
# - first come, first served: a smaller call does not overtake;
# - a 429 applies to all callers of a key: `pause` holds everyone back for as long as the provider requested.

BURST_S = 1.0

Clock = Callable[[], float]
Sleep = Callable[[float], Awaitable[None]]


class Throttle(Protocol):
    """The gate before every attempt of a chat client: a `Limiter` or a `SharedLimiter`."""

    async def acquire(self, tokens: int) -> None:
        """Wait until a call of about `tokens` tokens may go out."""
        ...

    def correct(self, estimated: int, used: int) -> None:
        """Correct the bucket: a call for which `estimated` tokens were acquired used `used`."""
        ...

    def pause(self, seconds: float) -> None:
        """Block all calls for `seconds`."""
        ...


class Bucket:
    """One token bucket, without a clock. level: what may go out now; negative after a call larger than the bucket."""

    def __init__(self, per_minute: float | None, now: float) -> None:
        """per_minute: its fill rate (None: unlimited)."""
        self.rate = math.inf if per_minute is None else per_minute / 60
        self.capacity = max(1.0, self.rate * BURST_S)
        self.level, self._seen = self.capacity, now

    def wait(self, amount: float, now: float) -> float:
        """Seconds until `amount` may be taken, 0 for at once."""
        if math.isinf(self.rate):
            return 0.0
        self.level = min(self.capacity, self.level + self.rate * max(0.0, now - self._seen))
        self._seen = max(self._seen, now)
        missing = min(amount, self.capacity) - self.level
        return missing / self.rate if missing > 1e-9 * self.capacity else 0.0

    def take(self, amount: float) -> None:
        """Take `amount`; a negative amount is returned."""
        if not math.isinf(self.rate):
            self.level = min(self.capacity, self.level - amount)


class Limiter:
    """The limits of one key within one event loop, and the pauses that its provider requested."""

    def __init__(
        self,
        requests_per_minute: float | None = None,
        tokens_per_minute: float | None = None,
        clock: Clock = time.monotonic,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        """None: no such limit (pauses still apply). clock, sleep: for tests."""
        self._clock, self._sleep = clock, sleep
        self._requests, self._tokens = Bucket(requests_per_minute, clock()), Bucket(tokens_per_minute, clock())
        self._paused_until = -math.inf
        self._turn = asyncio.Lock()  # its waiters are served in order

    async def acquire(self, tokens: int) -> None:
        """See `Throttle.acquire`."""
        async with self._turn:
            while (wait := self._wait(tokens, self._clock())) > 0:
                await self._sleep(wait)
            self._requests.take(1.0)
            self._tokens.take(tokens)

    def correct(self, estimated: int, used: int) -> None:
        """See `Throttle.correct`."""
        self._tokens.take(used - estimated)

    def pause(self, seconds: float) -> None:
        """See `Throttle.pause`; a later, shorter pause never ends an earlier one."""
        self._paused_until = max(self._paused_until, self._clock() + seconds)

    def tighten(self, requests_per_minute: float | None, tokens_per_minute: float | None) -> None:
        """Apply these limits too."""
        if requests_per_minute is not None and requests_per_minute / 60 < self._requests.rate:
            self._requests = Bucket(requests_per_minute, self._clock())
        if tokens_per_minute is not None and tokens_per_minute / 60 < self._tokens.rate:
            self._tokens = Bucket(tokens_per_minute, self._clock())

    def _wait(self, tokens: int, now: float) -> float:
        """Seconds until a call of `tokens` tokens may go out."""
        return max(self._paused_until - now, self._requests.wait(1.0, now), self._tokens.wait(tokens, now))
