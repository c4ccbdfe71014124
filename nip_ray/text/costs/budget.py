"""How much may be spent: money is set aside before it can be spent, in one process or shared by many.

Decisions that matter here:
- what a call or job can cost at most is reserved before it is sent, and settled by what it did cost. Spent + uncertain + reserved never
  exceeds the limit, however many calls are in flight, as long as providers bill no more than the worst case;
- when only the reservations of calls stand in the way, `reserve` waits, first come first served, until they are settled. What was spent
  and what is held for jobs leaves no room by waiting: then it raises at once;
- an attempt that got no answer may have been billed: its worst case moves to `uncertain`, which counts as spent;
- many workers share one budget through an actor that hands out leases. A lease covers several calls, so that a call rarely asks; a
  worker without calls in flight gives all of its lease back, so that nobody waits for idle money. A worker that dies leaves its lease
  to `forfeit`, which books it as uncertain.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import Any, Protocol

import ray
from ray.exceptions import RayActorError

from nip_ray.errors import TrainingError
from nip_ray.settings.providers import BudgetSettings
from nip_ray.text.costs.prices import Amount, BudgetExhausted, Spending, exact_usd, pusd

MAX_LEASED_CALLS = 64
MAX_LEASED_SHARE = 8
"""Ahead of its needs a worker is lent at most 1 / this of what is left."""
RETURN_S = 0.05
PATIENCE_S = 900.0
"""After so long of waiting for other workers' reservations a budget counts as exhausted: one of them died."""

_GONE = "the actor that keeps the budget is gone; resume the run"


class Reservation:
    """Money set aside for one call or job. Exactly one of `settle`, `lose` and `release` ends it; later ones do nothing."""

    def __init__(self, amount: Amount, close: Callable[[Amount, Spending], None]) -> None:
        """close: takes what was set aside and what of it was spent."""
        self.amount = amount
        self._close: Callable[[Amount, Spending], None] | None = close

    def settle(self, spending: Spending) -> None:
        """Book what it did cost and give the rest back."""
        close, self._close = self._close, None
        if close is not None:
            close(self.amount, spending)

    def lose(self) -> None:
        """There was no answer: it may have cost all that was set aside."""
        self.settle(Spending(uncertain=self.amount))

    def release(self) -> None:
        """It cost nothing."""
        self.settle(Spending())

    def split(self, amounts: Iterable[Amount]) -> "list[Reservation]":
        """A reservation for each of these amounts, whose sum is this one's, instead of it."""
        close, self._close = self._close, None
        if close is None:
            raise ValueError("the reservation is settled")
        return [Reservation(amount, close) for amount in amounts]


class BudgetLike(Protocol):
    """What calls are paid from: a `Budget` of this process, or a `SharedBudget`. in_usd: spending is limited in dollars."""

    in_usd: bool

    async def reserve(self, amount: Amount) -> Reservation:
        """Set `amount` aside. Raises BudgetExhausted when that much is not left."""
        ...


class Budget:
    """A limit on spending, for all threads and event loops of this process."""

    def __init__(self, settings: BudgetSettings | None = None, spent: Spending | None = None) -> None:
        """settings: the limits (none: no limit, everything is counted all the same). spent: before, by the same run.

        Raises ValueError for a limit that is not positive.
        """
        settings = settings or BudgetSettings()
        if (settings.usd is not None and settings.usd <= 0) or (settings.tokens is not None and settings.tokens <= 0):
            raise ValueError(f"a budget must be positive (got {settings})")
        self._settings = settings
        self.in_usd = settings.usd is not None
        self._limit_pusd = pusd(settings.usd) if settings.usd is not None else None
        self._spent = spent.copy() if spent is not None else Spending()
        self._used = self._spent.at_most  # kept besides `_spent`, so that a reservation needs no sum over models
        self._reserved = self._held = Amount()
        self._waiting: deque[tuple[Amount, Future[Reservation]]] = deque()
        self._lock = threading.Lock()

    @property
    def spending(self) -> Spending:
        """A copy of what was spent so far."""
        with self._lock:
            return self._spent.copy()

    @property
    def reserved(self) -> Amount:
        """What is set aside now."""
        with self._lock:
            return self._reserved

    def summary(self) -> dict[str, Any]:
        """See `Spending.summary`."""
        return self.spending.summary()

    async def reserve(self, amount: Amount) -> Reservation:
        """Set `amount` aside, after those who asked before; waits while other reservations stand in the way.

        Raises BudgetExhausted when spending has left too little.
        """
        with self._lock:
            if not self._waiting and self._fits(self._reserved + amount):
                return self._take(amount)
            self._refuse_unaffordable(amount)
            future: Future[Reservation] = Future()
            self._waiting.append((amount, future))
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            if not future.cancel() and future.exception() is None:
                future.result().release()  # it came in the moment in which nobody wanted it any more
            self.settle(Amount(), Spending())  # those behind may continue
            raise

    async def reserve_for_jobs(self, amount: Amount) -> Reservation:
        """Set `amount` aside for jobs, which may take days: nobody waits for it to come back. Waits and raises as `reserve` does."""
        await self.reserve(amount)
        with self._lock:
            self._held += amount
            self._serve()
        return Reservation(amount, self.let_go)

    def let_go(self, released: Amount, spending: Spending) -> None:
        """`settle` for what was set aside by `reserve_for_jobs`."""
        with self._lock:
            self._held -= released
        self.settle(released, spending)

    def try_reserve(self, amount: Amount) -> Reservation | None:
        """Set `amount` aside if that takes nothing from those who wait and at most a small share of what is left, else None."""
        with self._lock:
            room = not self._waiting and self._fits(self._reserved + amount * MAX_LEASED_SHARE)
            return self._take(amount) if room else None

    def settle(self, released: Amount, spending: Spending) -> None:
        """Give `released` back, which was set aside, and book what of it was spent; those who wait and can be served now are."""
        with self._lock:
            self._reserved -= released
            self._spent.add(spending)
            self._used += spending.at_most
            self._serve()

    def book(self, spending: Spending) -> None:
        """Book what was spent without a reservation (found in the records of an earlier process, say)."""
        self.settle(Amount(), spending)

    def _fits(self, reserved: Amount) -> bool:
        tokens = self._settings.tokens
        enough = self._limit_pusd is None or self._used.pusd + reserved.pusd <= self._limit_pusd
        return enough and (tokens is None or self._used.tokens + reserved.tokens <= tokens)

    def _take(self, amount: Amount) -> Reservation:
        self._reserved += amount
        return Reservation(amount, self.settle)

    def _serve(self) -> None:
        """Serve the queue from its head as far as there is room; refuse whom no settling can help."""
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

    def _refuse_unaffordable(self, amount: Amount) -> None:
        if not self._fits(self._held + amount):
            raise BudgetExhausted(self._message(amount))

    def _message(self, amount: Amount) -> str:
        """used, held, asked and the least limit that would do, in the unit of the limit that is in the way."""
        parts = (self._used, self._held, amount, self._used + self._held + amount)
        limit = self._settings.tokens
        if limit is not None and parts[-1].tokens > limit:
            unit, key, numbers = "tokens", "tokens", [str(part.tokens) for part in parts]
        else:
            unit, key, numbers = "US dollars", "usd", [exact_usd(part.pusd) for part in parts]
            limit = self._settings.usd
        used, held, asked, least = numbers
        return (
            f"the budget is used up: of {limit} {unit} (budget.{key}) {used} are or may be spent and {held} are reserved for fine-tuning "
            f"jobs; what comes next may take {asked}. Resume the run with a budget.{key} of at least {least} to continue"
        )


class BudgetKeeper:
    """The actor behind `SharedBudget`; made by `budget_actor`."""

    def __init__(self, settings: BudgetSettings, spent: Spending) -> None:
        self._budget = Budget(settings, spent)
        self._lent: dict[str, Amount] = {}

    async def lease(self, worker: str, released: Amount, told: Spending, need: Amount, ahead: Amount) -> Amount | str:
        """First settles as `settle` does. Then `need`, and `ahead` more if that leaves enough to others; a message when that much is
        not left.
        """
        await self.settle(worker, released, told)
        try:
            async with asyncio.timeout(PATIENCE_S):
                await self._budget.reserve(need)
        except BudgetExhausted as error:
            return str(error)
        except TimeoutError:
            return "the budget is used up by calls that nobody finished; resume the run to have them counted from the records"
        granted = need + ahead if self._budget.try_reserve(ahead) is not None else need
        self._lent[worker] = self._lent.get(worker, Amount()) + granted
        return granted

    async def settle(self, worker: str, released: Amount, told: Spending) -> None:
        """Take back `released` of a worker's lease, of which `told` was spent."""
        self._lent[worker] = self._lent.get(worker, Amount()) - released
        self._budget.settle(released, told)

    async def forfeit(self, worker: str) -> None:
        """A worker is gone: all that it holds may be spent."""
        lost = self._lent.pop(worker, Amount())
        self._budget.settle(lost, Spending(uncertain=lost))

    async def reserve_for_jobs(self, amount: Amount) -> str | None:
        """See `Budget.reserve_for_jobs`; the message of a refusal."""
        try:
            await self._budget.reserve_for_jobs(amount)
        except BudgetExhausted as error:
            return str(error)
        return None

    async def let_go(self, released: Amount, spending: Spending) -> None:
        """See `Budget.let_go`."""
        self._budget.let_go(released, spending)

    async def spending(self) -> Spending:
        """What was spent as far as workers have told; all of it once they are idle."""
        return self._budget.spending

    async def reserved(self) -> Amount:
        """What is lent now."""
        return self._budget.reserved


def budget_actor(settings: BudgetSettings, spent: Spending | None = None) -> Any:
    """Made by the driver, once per run; workers get the handle. spent: before, by the same run."""
    keeper: Any = ray.remote(BudgetKeeper)
    return keeper.options(num_cpus=0, max_concurrency=1000).remote(settings, spent or Spending())


class SharedBudget:
    """A worker's share of a `budget_actor`, for the tasks of one event loop."""

    def __init__(self, keeper: Any, worker: str, in_usd: bool) -> None:
        """worker: its name, unique in the run. in_usd: `budget.usd` is set."""
        self.in_usd = in_usd
        self._keeper, self._worker = keeper, worker
        self._free, self._told = Amount(), Spending()
        self._in_flight = self._since_lease = 0
        self._turn = asyncio.Lock()
        self._return_due: asyncio.TimerHandle | None = None
        self._sending: set[asyncio.Future[None]] = set()

    async def reserve(self, amount: Amount) -> Reservation:
        """See `BudgetLike`. Raises TrainingError when the actor is gone."""
        if not self._turn.locked() and self._free.covers(amount):
            return self._take(amount)
        async with self._turn:
            if not self._free.covers(amount):
                await self._lease(amount)
            return self._take(amount)

    async def flush(self) -> None:
        """Tell the actor of everything that was settled, and give back what is free. To be called before the event loop ends."""
        self._send_report()
        await asyncio.gather(*self._sending)  # the actor may take them in another order than they were sent

    def _take(self, amount: Amount) -> Reservation:
        self._free -= amount
        self._in_flight += 1
        self._since_lease += 1
        return Reservation(amount, self._close)

    async def _lease(self, amount: Amount) -> None:
        """Enough for one call of this size, and if possible for twice as many more as the last lease served.

        What is free goes back first: were it kept, two workers could wait for each other's leavings.
        """
        calls, self._since_lease = min(MAX_LEASED_CALLS, 2 * self._since_lease), 0
        asked = asyncio.ensure_future(self._ask(amount, amount * calls))
        try:
            refusal = await asyncio.shield(asked)
        except asyncio.CancelledError:
            asked.add_done_callback(lambda done: done.exception() or self._return_idle())  # what comes now is for nobody
            raise
        if refusal is not None:
            raise BudgetExhausted(refusal)

    async def _ask(self, need: Amount, ahead: Amount) -> str | None:
        """Add to what is free; the message of a refusal."""
        try:
            granted = await self._keeper.lease.remote(self._worker, *self._report(), need, ahead)
        except RayActorError:
            raise TrainingError(_GONE) from None
        if isinstance(granted, str):
            return granted
        self._free += granted
        return None

    def _close(self, amount: Amount, spending: Spending) -> None:
        self._free += amount - spending.at_most
        self._told.add(spending)
        self._in_flight -= 1
        self._return_idle()

    def _return_idle(self) -> None:
        """In a moment, give back what is free if it is of no use: nothing is in flight, or it does not do for the next call."""
        if self._return_due is None and self._is_idle():
            self._return_due = asyncio.get_running_loop().call_later(RETURN_S, self._return_now)

    def _return_now(self) -> None:
        self._return_due = None
        if self._is_idle():
            self._send_report()

    def _send_report(self) -> None:
        sending = asyncio.ensure_future(self._settle(*self._report()))
        self._sending.add(sending)
        sending.add_done_callback(self._sending.discard)

    async def _settle(self, released: Amount, told: Spending) -> None:
        try:
            await self._keeper.settle.remote(self._worker, released, told)
        except RayActorError:
            raise TrainingError(_GONE) from None

    def _is_idle(self) -> bool:
        return self._in_flight == 0 or self._turn.locked()

    def _report(self) -> tuple[Amount, Spending]:
        """What leaves this worker: all that is spent and all that is free; and what of it was spent."""
        released, told = self._told.at_most + self._free, self._told
        self._free, self._told = Amount(), Spending()
        return released, told
