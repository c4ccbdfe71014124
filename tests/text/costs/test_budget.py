"""The limit holds whatever happens at once; sums are exact; nobody waits for money that nobody will give back."""

import asyncio
import random
import threading
from typing import Any

import pytest
import ray
from hypothesis import given, settings
from hypothesis import strategies as st

from nip_ray.settings.providers import BudgetSettings
from nip_ray.text.costs.budget import Budget
from nip_ray.text.costs.prices import PUSD_PER_USD, Amount, BudgetExhausted, Spending
from nip_ray.text.costs.shared import SharedBudget, budget_actor


def tokens(limit: int) -> Budget:
    return Budget(BudgetSettings(tokens=limit))


def spent(amount: int) -> Spending:
    """So many tokens and picodollars, spent on one call."""
    return Spending.of_call("m", amount, 0, amount)


def test_reserve_settle_release_lose() -> None:
    async def main() -> None:
        budget = tokens(100)
        first = await budget.reserve(Amount(0, 60))
        assert budget.reserved == Amount(0, 60)
        first.settle(spent(10))
        first.settle(spent(10))  # a second end changes nothing
        (await budget.reserve(Amount(0, 90))).release()
        (await budget.reserve(Amount(0, 30))).lose()
        assert budget.reserved == Amount()
        assert budget.spending.amount.tokens == 10
        assert budget.spending.uncertain.tokens == 30
        with pytest.raises(
            BudgetExhausted, match=r"of 100 tokens \(budget\.tokens\) 40 are .* may take 61\. .* at least 101 "
        ):
            await budget.reserve(Amount(0, 61))

    asyncio.run(main())


def test_what_was_spent_before_counts() -> None:
    budget = Budget(BudgetSettings(usd=2.0), Spending.of_job("m", 5, 2 * PUSD_PER_USD - 7))
    asyncio.run(budget.reserve(Amount(7)))
    with pytest.raises(BudgetExhausted, match=r"of 2\.0 US dollars \(budget\.usd\) 1\.999999999993 are "):
        asyncio.run(budget.reserve(Amount(8)))


def test_who_is_blocked_by_reservations_waits_in_order() -> None:
    async def main() -> None:
        budget, order = tokens(100), []

        async def call(name: str, amount: int) -> None:
            reservation = await budget.reserve(Amount(0, amount))
            order.append(name)
            await asyncio.sleep(0.01)
            reservation.settle(spent(1))

        big = await budget.reserve(Amount(0, 90))
        tasks = [asyncio.create_task(call(name, amount)) for name, amount in (("a", 80), ("b", 5), ("c", 90))]
        await asyncio.sleep(0.02)
        assert order == []  # b would fit, and does not overtake a
        big.settle(spent(1))
        await asyncio.gather(*tasks)
        assert order == ["a", "b", "c"]

    asyncio.run(main())


def test_who_waits_in_vain_is_told() -> None:
    async def main() -> None:
        budget = tokens(100)
        first = await budget.reserve(Amount(0, 60))
        waiting = [asyncio.create_task(budget.reserve(Amount(0, amount))) for amount in (50, 40)]
        await asyncio.sleep(0.01)
        first.settle(spent(60))
        with pytest.raises(BudgetExhausted):
            await waiting[0]
        assert (await waiting[1]).amount == Amount(0, 40)

    asyncio.run(main())


def test_what_is_held_for_jobs_is_not_waited_for() -> None:
    """Who waits only for that is told at once, also when it was held while they waited; what calls hold is waited
    for."""

    async def main() -> None:
        budget = tokens(100)
        first, second = (await budget.reserve_for_jobs(Amount(0, 70))).split([Amount(0, 30), Amount(0, 40)])
        refused = pytest.raises(
            BudgetExhausted, match=r"0 are .* and 70 are reserved for .* may take 31\. .* at least 101 "
        )
        with refused:
            await asyncio.wait_for(budget.reserve_for_jobs(Amount(0, 31)), 10)
        with refused:
            await asyncio.wait_for(budget.reserve(Amount(0, 31)), 10)
        first.settle(spent(20))
        call = await budget.reserve(Amount(0, 35))
        waiting = asyncio.create_task(budget.reserve(Amount(0, 31)))
        await asyncio.sleep(0)
        call.release()
        (await asyncio.wait_for(waiting, 10)).release()
        second.lose()
        assert budget.reserved == Amount()
        assert (budget.spending.amount.tokens, budget.spending.uncertain.tokens) == (20, 40)

    asyncio.run(main())


def test_who_waits_behind_a_job_for_what_it_takes_is_told() -> None:
    """The job is served first, and nothing else is on its way that could make room."""

    async def main() -> None:
        budget = tokens(100)
        call = await budget.reserve(Amount(0, 50))
        job = asyncio.create_task(budget.reserve_for_jobs(Amount(0, 70)))
        await asyncio.sleep(0)
        behind = asyncio.create_task(budget.reserve(Amount(0, 60)))
        await asyncio.sleep(0)
        call.release()
        assert (await asyncio.wait_for(job, 10)).amount == Amount(0, 70)
        with pytest.raises(BudgetExhausted, match="70 are reserved for fine-tuning jobs"):
            await asyncio.wait_for(behind, 10)

    asyncio.run(main())


def test_a_cancelled_wait_leaves_nothing_behind() -> None:
    async def main() -> None:
        budget = tokens(100)
        first = await budget.reserve(Amount(0, 60))
        head, behind = (asyncio.create_task(budget.reserve(Amount(0, amount))) for amount in (70, 30))
        await asyncio.sleep(0.01)
        head.cancel()
        assert (await asyncio.wait_for(behind, 10)).amount == Amount(0, 30)
        first.release()
        (await behind).release()
        assert budget.reserved == Amount()

        first = await budget.reserve(Amount(0, 60))
        late = asyncio.create_task(budget.reserve(Amount(0, 70)))
        await asyncio.sleep(0.01)
        first.release()  # the wait is over, and in the same moment nobody wants it
        late.cancel()
        await asyncio.gather(late, return_exceptions=True)
        assert budget.reserved == Amount()

    asyncio.run(main())


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(1, 40), st.floats(0, 1), st.sampled_from(["settle", "lose", "release", "cancel"])),
        max_size=40,
    )
)
def test_the_limit_holds_for_any_course_of_things(calls: list[tuple[int, float, str]]) -> None:
    async def main() -> None:
        budget, held = tokens(100), 0

        async def call(worst: int, share: float, end: str) -> None:
            nonlocal held
            reservation = await budget.reserve(Amount(worst, worst))
            assert budget.spending.at_most.tokens + budget.reserved.tokens <= 100
            await asyncio.sleep(0)
            if end == "settle":
                reservation.settle(spent(int(worst * share)))
                held += int(worst * share)
            elif end == "lose":
                reservation.lose()
                held += worst
            else:
                reservation.release()

        tasks = [asyncio.create_task(call(*each)) for each in calls]
        await asyncio.sleep(0)
        for task, (_, _, end) in zip(tasks, calls, strict=True):
            if end == "cancel" and not budget.reserved.tokens:
                task.cancel()
        outcomes = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 20)
        assert all(
            outcome is None or isinstance(outcome, BudgetExhausted | asyncio.CancelledError) for outcome in outcomes
        )
        assert budget.reserved == Amount()
        assert budget.spending.at_most.tokens == held <= 100

    asyncio.run(main())


def test_threads_share_one_budget() -> None:
    budget, counted = tokens(1000), []

    def work(seed: int) -> None:
        draws = random.Random(seed)

        async def calls() -> None:
            for _ in range(100):
                reservation = await budget.reserve(Amount(0, 20))
                await asyncio.sleep(0)
                used = draws.randrange(10)
                reservation.settle(spent(used))
                counted.append(used)

        try:
            asyncio.run(calls())
        except BudgetExhausted:
            return

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    assert 980 < budget.spending.amount.tokens == sum(counted) <= 1000


def test_the_summary_adds_up() -> None:
    budget = Budget()
    budget.book(Spending.of_call("a", 10, 5, 123))
    budget.book(Spending.of_call("a", 1, 1, 7))
    budget.book(Spending.of_job("b", 1000, 3 * PUSD_PER_USD))
    budget.book(Spending(uncertain=Amount(PUSD_PER_USD, 50)))
    found = budget.spending.summary()
    assert (found["jobs"], found["tokens"], found["uncertain_usd"]) == (1, 1017, 1.0)
    assert found["usd"] == pytest.approx(3 + 130e-12)
    counts = {"calls": 2, "prompt_tokens": 11, "completion_tokens": 6, "training_tokens": 0, "usd": 130e-12}
    assert found["detail"]["a"] == {**counts, "cached_prompt_tokens": 0, "reasoning_tokens": 0, "answered_by": {}}
    assert found["detail"]["b"]["training_tokens"] == 1000


@ray.remote
class Worker:
    """Spends as a rollout worker does: many calls at once, each of which costs less than was set aside for it."""

    def __init__(self, keeper: Any, name: str) -> None:
        self._keeper, self._name = keeper, name

    async def spend(self, calls: int, in_flight: int, worst: int) -> tuple[int, int]:
        """(tokens spent, calls refused)"""
        budget, used, refused = SharedBudget(self._keeper, self._name, in_usd=False), 0, 0
        numbers = iter(range(calls))

        async def caller() -> None:
            nonlocal used, refused
            for number in numbers:
                try:
                    reservation = await budget.reserve(Amount(0, worst))
                except BudgetExhausted:
                    refused += 1
                    continue
                await asyncio.sleep(0.001)
                reservation.settle(spent(number % worst))
                used += number % worst

        await asyncio.gather(*(caller() for _ in range(in_flight)))
        await budget.flush()
        return used, refused


def test_workers_share_one_budget_to_the_last_token(ray_session: None) -> None:
    keeper = budget_actor(BudgetSettings(tokens=3000))
    workers = [Worker.options(num_cpus=0.1).remote(keeper, f"w{number}") for number in range(3)]  # type: ignore[attr-defined]
    outcomes = ray.get([worker.spend.remote(300, 16, 20) for worker in workers], timeout=120)
    used = sum(outcome[0] for outcome in outcomes)
    assert ray.get(keeper.spending.remote()).amount.tokens == used
    assert ray.get(keeper.reserved.remote()) == Amount()
    assert 3000 - 20 < used <= 3000
    assert sum(refused for _, refused in outcomes) > 0
    for actor in (*workers, keeper):
        ray.kill(actor)


def test_what_a_lost_worker_held_is_uncertain(ray_session: None) -> None:
    """Whatever reaches the actor late, of what was settled or of who waits, the limit holds."""
    keeper = budget_actor(BudgetSettings(tokens=1000))

    async def main() -> None:
        one, two = SharedBudget(keeper, "one", in_usd=False), SharedBudget(keeper, "two", in_usd=False)
        for _ in range(4):
            (await one.reserve(Amount(0, 10))).settle(spent(5))
        (await asyncio.wait_for(two.reserve(Amount(0, 980)), 30)).release()
        await asyncio.gather(one.flush(), two.flush())
        lost, other = await one.reserve(Amount(0, 300)), await two.reserve(Amount(0, 500))
        waiting = asyncio.create_task(one.reserve(Amount(0, 200)))
        await asyncio.sleep(0.2)
        await keeper.forfeit.remote("one")  # the worker dies
        lost.settle(spent(7))
        other.release()
        with pytest.raises(BudgetExhausted, match="gone"):
            await asyncio.wait_for(waiting, 30)
        await asyncio.gather(one.flush(), two.flush())
        assert (two.spending.amount.tokens, two.spending.uncertain.tokens) == (20, 300)
        assert await keeper.reserved.remote() == Amount()
        with pytest.raises(BudgetExhausted):
            await two.reserve(Amount(0, 681))
        (await one.reserve(Amount(0, 680))).release()  # the worker that comes after it
        await one.flush()

    asyncio.run(main())
    ray.kill(keeper)


def test_jobs_are_paid_from_the_shared_budget(ray_session: None) -> None:
    keeper = budget_actor(BudgetSettings(tokens=100), spent(10))

    async def main() -> None:
        budget = SharedBudget(keeper, "", in_usd=False)
        first, second = (await budget.reserve_for_jobs(Amount(0, 70))).split([Amount(0, 30), Amount(0, 40)])
        with pytest.raises(BudgetExhausted, match="70 are reserved for fine-tuning jobs"):
            await budget.reserve_for_jobs(Amount(0, 21))
        first.settle(spent(20))
        second.lose()
        budget.book(spent(1))
        assert (budget.spending.amount.tokens, budget.spending.uncertain.tokens) == (31, 40)
        assert await keeper.reserved.remote() == Amount()

    asyncio.run(main())
    ray.kill(keeper)


def test_a_cancelled_reservation_goes_back(ray_session: None) -> None:
    keeper = budget_actor(BudgetSettings(tokens=100))

    async def main() -> None:
        one, two = SharedBudget(keeper, "one", in_usd=False), SharedBudget(keeper, "two", in_usd=False)
        held = await one.reserve(Amount(0, 100))
        waiting = asyncio.create_task(two.reserve(Amount(0, 60)))
        await asyncio.sleep(0.2)
        waiting.cancel()
        held.release()
        await asyncio.gather(waiting, return_exceptions=True)
        (await asyncio.wait_for(one.reserve(Amount(0, 100)), 30)).release()
        await one.flush()
        async with asyncio.timeout(30):
            while await keeper.reserved.remote() != Amount():
                await asyncio.sleep(0.05)

    asyncio.run(main())
    ray.kill(keeper)
