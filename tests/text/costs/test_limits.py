"""Rate limits on a clock of our own; fairness; pauses; the shared ones on real actors."""

import asyncio
import heapq
import time
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import ray
from hypothesis import given, settings
from hypothesis import strategies as st

from nip_ray.text.costs.budget import Limiter
from nip_ray.text.costs.shared import SharedLimiter, limiter_actor, limiter_name
from tests.text.chat_server import API_KEY


class Time:
    """A clock that stands still but for its sleepers: the earliest wakes when all others wait."""

    def __init__(self) -> None:
        self.now, self._sleepers, self._order = 0.0, [], 0

    def clock(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self._order += 1
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self.now + seconds, self._order, woken))
        await woken

    async def run(self, main: Coroutine[Any, Any, Any]) -> Any:
        task = asyncio.ensure_future(main)
        while not task.done():
            for _ in range(20):
                await asyncio.sleep(0)
            if self._sleepers and not task.done():
                self.now, _, woken = heapq.heappop(self._sleepers)
                if not woken.done():
                    woken.set_result(None)
        return await task


def departures(limiter_of: Callable[[Time], Limiter], calls: list[tuple[float, int]]) -> list[tuple[int, float]]:
    """(call, when it went out), in the order in which they went. calls: (arrival, tokens)."""
    time_, gone = Time(), []

    async def call(number: int, arrival: float, tokens: int, limiter: Limiter) -> None:
        if arrival:
            await time_.sleep(arrival)
        await limiter.acquire(tokens)
        gone.append((number, time_.now))

    async def main() -> None:
        limiter = limiter_of(time_)
        await asyncio.gather(*(call(number, *each, limiter) for number, each in enumerate(calls)))

    asyncio.run(time_.run(main()))
    return gone


def limiter(requests: float | None = None, tokens: float | None = None) -> Callable[[Time], Limiter]:
    return lambda time_: Limiter(requests, tokens, time_.clock, time_.sleep)


def test_requests_go_at_their_rate_and_in_order() -> None:
    gone = departures(limiter(requests=30), [(0.0, 5)] * 61)
    assert [number for number, _ in gone] == list(range(61))
    assert [when for _, when in gone] == pytest.approx([2.0 * number for number in range(61)])


def test_tokens_go_at_their_rate_and_large_calls_leave_a_debt() -> None:
    gone = departures(limiter(tokens=6000), [(0.0, 1000), (0.0, 50), (0.0, 50)])
    # 100 a second: back from -900 to 50, then to 50 again
    assert [when for _, when in gone] == pytest.approx([0.0, 9.5, 10.0])


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.tuples(st.floats(0, 90), st.integers(1, 400)), min_size=1, max_size=80),
    st.floats(20, 300),
    st.floats(500, 5000),
)
def test_no_minute_has_more_than_the_limit_and_one_burst(
    calls: list[tuple[float, int]], requests: float, tokens: float
) -> None:
    gone = departures(limiter(requests, tokens), calls)
    assert len(gone) == len(calls)
    largest = max(amount for _, amount in calls)
    for _, start in gone:
        window = [number for number, when in gone if start <= when < start + 60]
        assert len(window) <= requests + max(1.0, requests / 60) + 1e-6
        assert sum(calls[number][1] for number in window) <= tokens + tokens / 60 + largest + 1e-3


def test_a_pause_holds_for_all_and_the_longest_counts() -> None:
    time_ = Time()
    made = Limiter(None, None, time_.clock, time_.sleep)
    made.pause(5.0)
    made.pause(3.0)
    asyncio.run(time_.run(made.acquire(1)))
    assert time_.now == 5.0


def test_corrections_count() -> None:
    time_ = Time()
    made = Limiter(None, 60, time_.clock, time_.sleep)  # one token a second, and room for one
    asyncio.run(time_.run(made.acquire(1)))
    made.correct(1, 5)
    asyncio.run(time_.run(made.acquire(1)))
    assert time_.now == pytest.approx(5.0)
    made.correct(100, 1)  # what comes back is no more than the bucket holds
    asyncio.run(time_.run(made.acquire(1)))
    asyncio.run(time_.run(made.acquire(1)))
    assert time_.now == pytest.approx(6.0)


def test_names_tell_keys_apart_and_tell_nothing() -> None:
    names = {limiter_name(url, key) for url in ("https://a/v1", "https://b/v1") for key in (API_KEY, "sk-other")}
    assert len(names) == 4
    assert limiter_name("https://a/v1/", API_KEY) in names
    assert not any(API_KEY[index : index + 8] in name for name in names for index in range(len(API_KEY) - 8))


@ray.remote
class Caller:
    """Sends calls as a rollout worker does."""

    def __init__(self, keeper: Any) -> None:
        self._limiter = SharedLimiter(keeper, lambda: keeper)

    async def send(self, calls: int) -> list[float]:
        """When each went out."""
        gone = []

        async def call() -> None:
            await self._limiter.acquire(10)
            gone.append(time.time())

        await asyncio.gather(*(call() for _ in range(calls)))
        return gone

    async def pause(self, seconds: float) -> None:
        """A provider asked this worker to wait."""
        self._limiter.pause(seconds)


def test_workers_share_one_limit_fairly(ray_session: None) -> None:
    keeper = limiter_actor("http://one", API_KEY, requests_per_minute=600)
    assert limiter_actor("http://one/", API_KEY, requests_per_minute=6000) == keeper
    callers = [Caller.options(num_cpus=0.1).remote(keeper) for _ in range(2)]  # type: ignore[attr-defined]
    ray.get([caller.send.remote(0) for caller in callers])
    gone = ray.get([caller.send.remote(20) for caller in callers], timeout=120)
    both = sorted(when for times in gone for when in times)
    assert both[-1] - both[0] >= (40 - 1 - 20) / 10  # ten a second after a burst of ten, and the bucket was full before
    assert max(times[9] for times in gone) < max(times[-1] for times in gone)
    halves = [sum(when <= both[len(both) // 2] for when in times) for times in gone]
    assert min(halves) >= 4  # nobody was starved
    for actor in (*callers, keeper):
        ray.kill(actor)


@pytest.mark.slow
def test_a_pause_reaches_other_workers(ray_session: None) -> None:
    keeper = limiter_actor("http://two", API_KEY)
    callers = [Caller.options(num_cpus=0.1).remote(keeper) for _ in range(2)]  # type: ignore[attr-defined]
    ray.get([caller.send.remote(3) for caller in callers])
    start = time.time()
    ray.get(callers[0].pause.remote(4.0))
    ray.get(keeper.pause.remote(0.0))
    time.sleep(1.1)  # what the other was granted before runs out
    gone = ray.get([caller.send.remote(2) for caller in callers], timeout=120)
    assert min(when for times in gone for when in times) - start >= 3.9
    for actor in (*callers, keeper):
        ray.kill(actor)
