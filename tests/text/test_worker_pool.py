"""What is handed out comes back in order, also when workers die; no Ray is needed for that."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from ray.exceptions import ActorUnavailableError, RayActorError

from nip_ray.errors import TrainingError
from nip_ray.text import worker_pool
from nip_ray.text.worker_pool import MAX_DEATHS, WorkerPool, parts_of


class Actor:
    """Dies as often as it is told before it answers; the slower, the higher its number."""

    def __init__(self, number: int, deaths: int) -> None:
        self.number, self.deaths, self.asked, self.missing = number, deaths, 0, False

    async def double(self, part: int) -> int:
        assert not self.missing, "it is not there yet"
        self.asked += 1
        await asyncio.sleep(0.002 * self.number)
        if self.deaths:
            self.deaths, self.missing = self.deaths - 1, True
            raise RayActorError
        return 2 * part

    @property
    def __ray_ready__(self) -> Any:
        return SimpleNamespace(remote=self.ready)

    async def ready(self) -> None:
        """It is there when it was asked for the second time."""
        if self.missing:
            self.missing = False
            raise ActorUnavailableError("it is made again", None)


class Kind:
    """In the place of what `watchable` makes."""

    def options(self, **given: Any) -> "Kind":
        assert given == {"num_cpus": 1, "max_restarts": -1}
        return self

    remote = Actor


class Watch:
    def __init__(self, *given: Any) -> None:
        """Looks at nobody."""


def pool(monkeypatch: pytest.MonkeyPatch, *deaths: int) -> WorkerPool:
    monkeypatch.setattr(worker_pool, "watchable", lambda kind: Kind())
    monkeypatch.setattr(worker_pool, "ActorWatch", Watch)
    monkeypatch.setattr(worker_pool, "RESTART_S", 0.0)
    return WorkerPool(Actor, {"num_cpus": 1}, list(enumerate(deaths)), 1.0)


def call(part: int) -> Any:
    return lambda actor: actor.double(part)


def test_results_come_in_order_whoever_dies(monkeypatch: pytest.MonkeyPatch) -> None:
    made, lost, progress = pool(monkeypatch, 0, MAX_DEATHS - 1, 1), list[int](), list[int]()

    async def died(number: int) -> None:
        lost.append(number)

    found = asyncio.run(made.work([call(part) for part in range(20)], lambda over: progress.append(len(over)), died))
    assert found == [2 * part for part in range(20)]
    assert sorted(lost) == [1] * (MAX_DEATHS - 1) + [2]
    assert progress == list(range(1, 21))
    assert sum(actor.asked for actor in made.actors) == 20 + MAX_DEATHS


def test_a_part_that_kills_every_worker_ends_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    made = pool(monkeypatch, 0, MAX_DEATHS)
    with pytest.raises(TrainingError, match=rf"rollout worker 1 died {MAX_DEATHS} times at the same dialogues"):
        asyncio.run(made.work([call(part) for part in range(6)]))
    assert made.actors[0].asked == 5  # what was done before that


def test_an_error_ends_the_work_after_the_parts_in_flight(monkeypatch: pytest.MonkeyPatch) -> None:
    made = pool(monkeypatch, 0, 0)

    async def refused(actor: Actor) -> int:
        actor.asked += 1
        await asyncio.sleep(0)
        raise TrainingError("no reply")

    with pytest.raises(TrainingError, match="no reply"):
        asyncio.run(made.work([refused, *(call(part) for part in range(6))]))
    assert [actor.asked for actor in made.actors] == [1, 1]


@pytest.mark.parametrize(
    ("count", "size", "parts"),
    [(3, 1, [[0, 1], [2, 3], [4, 5, 6]]), (2, 3, [[0, 1, 2], [3, 4, 5, 6]]), (9, 4, [[0, 1, 2, 3], [4, 5, 6]])],
)
def test_parts_keep_groups_together(count: int, size: int, parts: list[list[int]]) -> None:
    assert parts_of(range(7), count, size) == parts
