"""How fast calls may go: requests and tokens per minute, kept by token buckets, in one process or shared by many.

Decisions that matter here:
- a bucket holds what comes in `BURST_S` seconds (at least one request), so that in no minute more than the limit and one such burst
  goes out; providers cut their minutes into slices of about that length. A call that needs more tokens than the bucket can hold waits
  for it to be full and leaves a debt;
- first come, first served: whoever waits is not overtaken by a smaller call;
- a 429 is an order to all callers of a key: `pause` holds everyone back for as long as the provider asked;
- workers share the limits of a key through an actor that grants calls in lots, so that a call rarely asks; a lot is good for `LOT_S`
  seconds, and what was not used goes back when the worker asks next. Without limits a lot is as good as endless, and asking every
  `LOT_S` seconds only passes pauses on;
- the key itself goes nowhere: the actor's name is made from hashes.
"""

import asyncio
import hashlib
import math
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Protocol

import ray
from ray.exceptions import RayActorError

from nip_ray.errors import TrainingError

BURST_S = 1.0
LOT_S = 1.0
MAX_LOT = 64
ENDLESS = 10**9

Clock = Callable[[], float]
Sleep = Callable[[float], Awaitable[None]]


class Throttle(Protocol):
    """What a chat client asks before every attempt: a `Limiter`, or a `SharedLimiter`."""

    async def acquire(self, tokens: int) -> None:
        """Wait until a call of about `tokens` tokens may go out."""
        ...

    def correct(self, estimated: int, used: int) -> None:
        """A call for which `estimated` tokens were acquired used `used`."""
        ...

    def pause(self, seconds: float) -> None:
        """Let nobody call for so long."""
        ...


class Bucket:
    """One token bucket; pure, times are given. level: what may go out now; negative after a call that was larger than the bucket."""

    def __init__(self, per_minute: float | None, least: float, now: float) -> None:
        """per_minute: how fast it fills (None: it is endless). least: what it can hold at least."""
        self.rate = math.inf if per_minute is None else per_minute / 60
        self.capacity = max(least, self.rate * BURST_S)
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
        """Take `amount`; a negative one is put back."""
        if not math.isinf(self.rate):
            self.level = min(self.capacity, self.level - amount)


class Limits:
    """Both limits of one key and the pauses that its provider asked for; pure, times are given."""

    def __init__(self, requests_per_minute: float | None, tokens_per_minute: float | None, now: float) -> None:
        """None: no such limit."""
        self._requests = Bucket(requests_per_minute, 1.0, now)
        self._tokens = Bucket(tokens_per_minute, 1.0, now)
        self._paused_until = -math.inf

    def take(self, tokens: int, now: float) -> float:
        """Take one call of so many tokens and return 0; or, where it may not go out yet, the seconds after which to ask again."""
        wait = max(self._paused_until - now, self._requests.wait(1.0, now), self._tokens.wait(tokens, now))
        if wait > 0:
            return wait
        self._requests.take(1.0)
        self._tokens.take(tokens)
        return 0.0

    def put_back(self, calls: int, tokens: float) -> None:
        """So many calls and tokens that were taken were not used (tokens below 0: more were used than taken)."""
        self._requests.take(-calls)
        self._tokens.take(-tokens)

    def pause(self, until: float) -> None:
        """No call before `until`; a pause never ends earlier for a later, shorter one."""
        self._paused_until = max(self._paused_until, until)

    def tighten(self, requests_per_minute: float | None, tokens_per_minute: float | None, now: float) -> None:
        """Keep these limits too."""
        for name, limit in (("_requests", requests_per_minute), ("_tokens", tokens_per_minute)):
            if limit is not None and limit / 60 < getattr(self, name).rate:
                setattr(self, name, Bucket(limit, 1.0, now))

    @property
    def endless(self) -> bool:
        """Whether nothing is limited."""
        return math.isinf(self._requests.rate) and math.isinf(self._tokens.rate)


class Limiter:
    """The limits of one key within one event loop."""

    def __init__(
        self,
        requests_per_minute: float | None = None,
        tokens_per_minute: float | None = None,
        clock: Clock = time.monotonic,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        """None: no such limit (pauses are kept all the same). clock, sleep: for tests."""
        self._limits = Limits(requests_per_minute, tokens_per_minute, clock())
        self._clock, self._sleep = clock, sleep
        self._turn = asyncio.Lock()  # its waiters are served in order

    @property
    def endless(self) -> bool:
        """See `Limits.endless`."""
        return self._limits.endless

    def try_acquire(self, tokens: int) -> bool:
        """Whether the call may go out at once and nobody waits; it then counts as gone."""
        return not self._turn.locked() and self._limits.take(tokens, self._clock()) <= 0

    async def acquire(self, tokens: int) -> None:
        """See `Throttle.acquire`."""
        if self.try_acquire(tokens):
            return
        async with self._turn:
            while (wait := self._limits.take(tokens, self._clock())) > 0:
                await self._sleep(wait)

    def correct(self, estimated: int, used: int) -> None:
        """See `Throttle.correct`."""
        self._limits.put_back(0, estimated - used)

    def put_back(self, calls: int, tokens: float) -> None:
        """See `Limits.put_back`."""
        self._limits.put_back(calls, tokens)

    def pause(self, seconds: float) -> None:
        """See `Throttle.pause`."""
        self._limits.pause(self._clock() + seconds)

    def tighten(self, requests_per_minute: float | None, tokens_per_minute: float | None) -> None:
        """See `Limits.tighten`."""
        self._limits.tighten(requests_per_minute, tokens_per_minute, self._clock())


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
