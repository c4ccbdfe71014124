"""One budget, and the limits of one key, for many workers: actors that are queried before every call.

Decisions that matter here:
- the actor of a budget keeps every open reservation and its owner. Those of a dead worker count as uncertain
  (`forfeit`); late settlements of such a worker change nothing;
- the actor of a key's limits has no fixed owner: the first user creates it (in a sweep, a trial), and when it has ended
  with its creator, the next user creates it again. The new one does not know of pauses; providers repeat them;
- a worker requests one call at a time, so however many calls wait, the actors still learn of finished ones;
- the key itself is not sent: the actor's name is made from hashes.
"""

import asyncio
import hashlib
import math
import time
from collections import Counter
from collections.abc import Callable
from itertools import count
from typing import Any

import ray
from ray.exceptions import RayActorError

from nip_ray.errors import TrainingError
from nip_ray.secrets import secret
from nip_ray.settings.providers import BudgetSettings, ProviderSettings
from nip_ray.text.costs.budget import Budget, Clock, Limiter, Reservation
from nip_ray.text.costs.prices import NOTHING, Amount, BudgetExhausted, Spending

PATIENCE_S = 900.0
"""Waiting this long for other workers' reservations means that one of them died: the budget counts as exhausted."""
_MAX_SEARCHES, _SEARCH_S = 60, 1.0
"""For a lost actor: as long as Ray may take to notice that a node is gone."""


class BudgetKeeper:
    """The actor behind `SharedBudget`; made by `budget_actor`."""

    def __init__(self, settings: BudgetSettings, spent: Spending) -> None:
        self._budget = Budget(settings, spent)
        self._numbers = count()
        self._open: dict[int, tuple[str, Reservation]] = {}
        self._deaths = Counter[str]()

    async def reserve(self, worker: str, amount: Amount) -> int | str:
        """The number of a reservation; a message if not enough is left."""
        before = self._deaths[worker]
        try:
            async with asyncio.timeout(PATIENCE_S):
                reservation = await self._budget.reserve(amount)
        except BudgetExhausted as error:
            return str(error)
        except TimeoutError:
            return "the budget is used up by unfinished calls; resume the run to have them counted from the records"
        if self._deaths[worker] > before:  # its worker died meanwhile
            reservation.release()
            return "the worker that made the call is gone"
        number = next(self._numbers)
        self._open[number] = worker, reservation
        return number

    async def settle(self, number: int, spending: Spending) -> None:
        """Book the spending of a reservation; the rest is free."""
        if number in self._open:
            self._open.pop(number)[1].settle(spending)

    async def forfeit(self, worker: str) -> None:
        """A worker is gone: count all its reservations as uncertain."""
        self._deaths[worker] += 1
        for number in [number for number, (holder, _) in self._open.items() if holder == worker]:
            self._open.pop(number)[1].lose()

    async def reserve_for_jobs(self, amount: Amount) -> str | None:
        """See `Budget.reserve_for_jobs`; returns the message of a refusal."""
        try:
            await self._budget.reserve_for_jobs(amount)
        except BudgetExhausted as error:
            return str(error)
        return None

    async def let_go(self, released: Amount, spending: Spending) -> None:
        """See `Budget.let_go`."""
        self._budget.let_go(released, spending)

    async def spending(self) -> Spending:
        """The spending that workers have reported; complete once they are idle."""
        return self._budget.spending

    async def reserved(self) -> Amount:
        """The amount that is set aside now."""
        return self._budget.reserved


def budget_actor(settings: BudgetSettings, spent: Spending | None = None) -> Any:
    """Create the actor: by the driver, once per run; workers get the handle. spent: before, by the same run."""
    keeper: Any = ray.remote(BudgetKeeper)
    return keeper.options(num_cpus=0, max_concurrency=1000).remote(settings, spent or Spending())


class SharedBudget:
    """See `BudgetLike`; backed by a `budget_actor`, for the tasks of one event loop. Raises TrainingError if the actor
    is gone."""

    def __init__(self, keeper: Any, worker: str, in_usd: bool) -> None:
        """worker: its name, unique in the run. in_usd: `budget.usd` is set."""
        self.in_usd = in_usd
        self._keeper, self._worker = keeper, worker
        self._turn = asyncio.Lock()
        self._telling: set[asyncio.Future[None]] = set()

    @property
    def spending(self) -> Spending:
        """The run's cost so far."""
        return ray.get(self._keeper.spending.remote())

    async def reserve(self, amount: Amount) -> Reservation:
        """See `Budget.reserve`."""
        async with self._turn:
            asked = asyncio.ensure_future(_answer(self._keeper.reserve.remote(self._worker, amount)))
            try:
                number = await asyncio.shield(asked)
            except asyncio.CancelledError:
                asked.add_done_callback(self._give_back)
                raise
        if isinstance(number, str):
            raise BudgetExhausted(number)
        return Reservation(amount, lambda _, spending: self._settle(number, spending))

    async def reserve_for_jobs(self, amount: Amount) -> Reservation:
        """See `Budget.reserve_for_jobs`."""
        refusal = await _answer(self._keeper.reserve_for_jobs.remote(amount))
        if refusal is not None:
            raise BudgetExhausted(refusal)
        return Reservation(amount, lambda released, spending: ray.get(self._keeper.let_go.remote(released, spending)))

    def book(self, spending: Spending) -> None:
        """See `Budget.book`."""
        ray.get(self._keeper.let_go.remote(NOTHING, spending))

    async def flush(self) -> None:
        """Return when all settlements have reached the actor. Call it before the event loop ends."""
        await asyncio.gather(*self._telling)

    def _settle(self, number: int, spending: Spending) -> None:
        telling = asyncio.ensure_future(_answer(self._keeper.settle.remote(number, spending)))
        self._telling.add(telling)
        telling.add_done_callback(self._told)

    def _told(self, telling: "asyncio.Future[None]") -> None:
        self._telling.discard(telling)
        if not telling.cancelled():
            telling.exception()  # the next call fails by the same error

    def _give_back(self, asked: "asyncio.Future[int | str]") -> None:
        """Release a reservation that is no longer needed."""
        if not asked.cancelled() and asked.exception() is None and isinstance(number := asked.result(), int):
            self._settle(number, Spending())


async def _answer(asked: Any) -> Any:
    try:
        return await asked
    except RayActorError:
        raise TrainingError("the actor that keeps the budget is gone; resume the run") from None


def limiter_name(base_url: str, api_key: str) -> str:
    """The name of a key's actor: it identifies the key without revealing it."""
    key = hashlib.sha256(api_key.encode()).hexdigest()[:16]
    return "nip_ray-limits-" + hashlib.sha256(f"{base_url.rstrip('/')}\n{key}".encode()).hexdigest()[:24]


def limiter_actor(
    base_url: str, api_key: str, requests_per_minute: float | None = None, tokens_per_minute: float | None = None
) -> Any:
    """The actor, a `Limiter`, that keeps the limits of this key at this address; made by the driver, passed to workers.

    A job has one for each key: asked again, it gives the same actor, which then keeps the stricter of both limits.
    """
    keeper: Any = ray.remote(Limiter)
    handle = keeper.options(
        name=limiter_name(base_url, api_key),
        get_if_exists=True,
        num_cpus=0,
        max_concurrency=1000,
        max_restarts=-1,
        max_task_retries=-1,
    ).remote(requests_per_minute, tokens_per_minute)
    ray.get(handle.tighten.remote(requests_per_minute, tokens_per_minute))
    return handle


def limiter_of(provider: ProviderSettings) -> Any:
    """The `limiter_actor` of the provider's key. Raises UserError for a missing key."""
    address, variable = (
        str(provider.address or type(provider).__name__).rstrip("/"),
        getattr(provider, "api_key_variable", None),
    )
    return limiter_actor(
        address, "" if variable is None else secret(variable, address), *(provider.limits or (None, None))
    )


class SharedLimiter:
    """See `Throttle`; backed by a `limiter_actor`, which is created again, or found again, if it is gone."""

    def __init__(self, keeper: Any, again: Callable[[], Any], clock: Clock = time.monotonic) -> None:
        """keeper: handle of the actor. again: finds or creates it; called in a thread. clock: for tests."""
        self._keeper, self._again, self._clock = keeper, again, clock
        self._paused_until = -math.inf
        self._turn = asyncio.Lock()

    async def acquire(self, tokens: int) -> None:
        """See `Throttle.acquire`. Raises TrainingError when the actor cannot be created again."""
        async with self._turn:
            for _ in range(_MAX_SEARCHES):
                try:
                    await self._keeper.acquire.remote(tokens)
                    break
                except RayActorError:
                    try:
                        self._keeper = await asyncio.to_thread(self._again)
                    except RayActorError:  # for a moment the name still refers to the lost one
                        await asyncio.sleep(_SEARCH_S)
            else:
                raise TrainingError(
                    f"the actor that keeps the rate limits was made again {_MAX_SEARCHES} times in vain; resume the run"
                )
            if (wait := self._paused_until - self._clock()) > 0:  # granted before the actor knew of the pause
                await asyncio.sleep(wait)

    def correct(self, estimated: int, used: int) -> None:
        """See `Throttle.correct`."""
        self._keeper.correct.remote(estimated, used)

    def pause(self, seconds: float) -> None:
        """See `Throttle.pause`."""
        self._paused_until = max(self._paused_until, self._clock() + seconds)
        self._keeper.pause.remote(seconds)
