"""One budget, and the limits of one key, for many workers: actors that hand out parts of them.

Decisions that matter here:
- workers share one budget through an actor that hands out leases. A lease covers several calls, so that a call rarely asks; a
  worker without calls in flight gives all of its lease back, so that nobody waits for idle money. A worker that dies leaves its lease
  to `forfeit`, which books it as uncertain;
- they share the limits of a key through an actor that grants calls in lots, so that a call rarely asks; a lot is good for `LOT_S`
  seconds, and what was not used goes back when the worker asks next. Without limits a lot is as good as endless, and asking every
  `LOT_S` seconds only passes pauses on;
- the key itself goes nowhere: the actor's name is made from hashes.
"""

import asyncio
import hashlib
import math
import time
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import RayActorError

from nip_ray.errors import TrainingError
from nip_ray.settings.providers import BudgetSettings
from nip_ray.text.costs.budget import Budget, Clock, Limiter, Reservation
from nip_ray.text.costs.prices import Amount, BudgetExhausted, Spending

MAX_LEASED_CALLS = 64
RETURN_S = 0.05
PATIENCE_S = 900.0
"""After so long of waiting for other workers' reservations a budget counts as exhausted: one of them died."""
LOT_S = 1.0
MAX_LOT = 64
ENDLESS = 10**9

_GONE = "the actor that keeps the budget is gone; resume the run"


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
        sending.add_done_callback(self._sent)

    def _sent(self, sending: "asyncio.Future[None]") -> None:
        self._sending.discard(sending)
        if not sending.cancelled():
            sending.exception()  # the next call fails by the same, and says so

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


@dataclass(frozen=True)
class Lot:
    """What a worker was granted: `calls` calls of together `tokens` tokens."""

    calls: int
    tokens: float


class LimitKeeper:
    """The actor behind `SharedLimiter`; made by `limiter_actor`."""

    def __init__(self, requests_per_minute: float | None, tokens_per_minute: float | None) -> None:
        self._limiter = Limiter(requests_per_minute, tokens_per_minute)

    async def grant(self, tokens: int, calls: int, unused: Lot) -> Lot:
        """One call of so many tokens, as soon as it may go out and all who asked before were served, and up to `calls` - 1 more.

        unused: what is left of the worker's last lot; its tokens are below 0 when it used more.
        """
        self._limiter.put_back(unused.calls, unused.tokens)
        await self._limiter.acquire(tokens)
        if self._limiter.endless:
            return Lot(ENDLESS, math.inf)
        granted = 1
        while granted < calls and self._limiter.try_acquire(tokens):
            granted += 1
        return Lot(granted, granted * tokens)

    async def pause(self, seconds: float) -> None:
        """See `Throttle.pause`."""
        self._limiter.pause(seconds)

    async def tighten(self, requests_per_minute: float | None, tokens_per_minute: float | None) -> None:
        """See `Limits.tighten`."""
        self._limiter.tighten(requests_per_minute, tokens_per_minute)


def limiter_name(base_url: str, api_key: str) -> str:
    """The name of a key's actor: it tells keys apart and tells nobody what they are."""
    key = hashlib.sha256(api_key.encode()).hexdigest()[:16]
    return "nip_ray-limits-" + hashlib.sha256(f"{base_url.rstrip('/')}\n{key}".encode()).hexdigest()[:24]


def limiter_actor(base_url: str, api_key: str, requests_per_minute: float | None = None, tokens_per_minute: float | None = None) -> Any:
    """The actor that keeps the limits of this key at this address; made by the driver, workers get the handle.

    A job has one for each key: asked again, it gives the same actor, which then keeps the stricter of both limits.
    """
    keeper: Any = ray.remote(LimitKeeper)
    handle = keeper.options(
        name=limiter_name(base_url, api_key), get_if_exists=True, num_cpus=0, max_concurrency=1000, max_restarts=-1, max_task_retries=-1
    ).remote(requests_per_minute, tokens_per_minute)
    ray.get(handle.tighten.remote(requests_per_minute, tokens_per_minute))
    return handle


class SharedLimiter:
    """A worker's share of a `limiter_actor`, for the tasks of one event loop."""

    def __init__(self, keeper: Any, clock: Clock = time.monotonic) -> None:
        """clock: for tests."""
        self._keeper, self._clock = keeper, clock
        self._calls, self._tokens, self._until = 0, 0.0, -math.inf
        self._since_lot = self._extra_tokens = 0
        self._paused_until = -math.inf
        self._turn = asyncio.Lock()

    async def acquire(self, tokens: int) -> None:
        """See `Throttle.acquire`. Raises TrainingError when the actor is gone for good."""
        if not self._turn.locked() and self._take(tokens):
            return
        async with self._turn:
            while not self._take(tokens):
                await self._ask(tokens)

    def correct(self, estimated: int, used: int) -> None:
        """See `Throttle.correct`; told with the next lot."""
        self._extra_tokens += used - estimated

    def pause(self, seconds: float) -> None:
        """See `Throttle.pause`."""
        self._until = -math.inf
        self._paused_until = max(self._paused_until, self._clock() + seconds)
        self._keeper.pause.remote(seconds)

    def _take(self, tokens: int) -> bool:
        if self._calls < 1 or self._tokens < tokens or self._clock() >= self._until:
            return False
        self._calls -= 1
        self._tokens -= tokens
        self._since_lot += 1
        return True

    async def _ask(self, tokens: int) -> None:
        """A lot for this call, and if possible for twice as many more as the last lot served."""
        calls, self._since_lot = min(MAX_LOT, 1 + 2 * self._since_lot), 0
        try:
            lot = await self._keeper.grant.remote(tokens, calls, self._unused())
        except RayActorError:
            raise TrainingError("the actor that keeps the rate limits is gone; resume the run") from None
        if (wait := self._paused_until - self._clock()) > 0:  # it was granted before the actor knew of the pause
            await asyncio.sleep(wait)
        self._calls, self._tokens, self._until = lot.calls, lot.tokens, self._clock() + LOT_S

    def _unused(self) -> Lot:
        """What is left of the last lot, taken out of it."""
        endless = math.isinf(self._tokens)
        unused = Lot(0 if endless else self._calls, (0.0 if endless else self._tokens) - self._extra_tokens)
        self._calls, self._tokens, self._extra_tokens = 0, 0.0, 0
        return unused
