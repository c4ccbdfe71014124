"""Which item is talked about when, and under which seed.

Training items are taken one after the other from a permutation of all of them, a new permutation for every pass: iteration i of n
items takes places i n to i n + n - 1 of this endless sequence, so no item is skipped or taken twice in a pass, however large n is.
Held-out items are taken in their own order, each as often as asked.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np

from nip_ray.protocols import NUM_SEEDS
from nip_ray.seeding import stable_seed


@dataclass(frozen=True)
class Task:
    """One dialogue (or tree) to be held. number: its place in the iteration. item: what about. seed: of the episode. past: agent -> the
    snapshot by which it speaks, for those who do not speak by their weights of now; all of one dialogue are of one snapshot. said:
    (round, agent) -> a reply that is known, for which nobody is asked.
    """

    number: int
    item: Any
    seed: int
    past: Mapping[str, int] = field(default_factory=dict)
    said: Mapping[tuple[int, str], str] = field(default_factory=dict)

    @property
    def snapshot(self) -> int | None:
        """That snapshot, None among the current agents."""
        return next(iter(self.past.values()), None)


def training_tasks(items: Sequence[Any], seed: int, iteration: int, count: int) -> list[Task]:
    """The tasks of an iteration (from 0). Raises ValueError without items."""
    if not items:
        raise ValueError("there are no items to talk about")
    chosen = []
    for number in range(count):
        place = iteration * count + number
        order = _permutation(len(items), seed, place // len(items))
        item = items[int(order[place % len(items)])]
        chosen.append(Task(number, item, stable_seed(seed, "episode", "train", iteration, number) % NUM_SEEDS))
    return chosen


def grouped(tasks: Sequence[Task], size: int) -> list[Task]:
    """Each task `size` times, next to each other, with seeds of their own."""
    return [
        replace(task, number=size * task.number + copy, seed=stable_seed(task.seed, "copy", copy)) for task in tasks for copy in range(size)
    ]


def test_tasks(items: Sequence[Any], seed: int, limit: int | None, repeats: int) -> list[Task]:
    """Every held-out item (at most `limit`) `repeats` times; the same tasks in every iteration, so that figures can be compared."""
    chosen = items[:limit]
    return [
        Task(repeat * len(chosen) + i, item, stable_seed(seed, "episode", "test", repeat, i) % NUM_SEEDS)
        for repeat in range(repeats)
        for i, item in enumerate(chosen)
    ]


@lru_cache(maxsize=4)
def _permutation(num: int, seed: int, epoch: int) -> np.ndarray:
    return np.random.default_rng(stable_seed(seed, "items", epoch)).permutation(num)
