"""The ring against a deque, the sum tree against running sums, sampling against its probabilities, and saved
buffers."""

import io
from collections import deque
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare
from torch import Tensor

from nip_ray.errors import UserError
from nip_ray.learning.replay import Field, Priorities, Replay, Ring, SumTree
from nip_ray.seeding import generator

SETTINGS = settings(max_examples=60, deadline=None, database=None)
DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
SCHEMA = {"obs": Field((2, 3)), "legal": Field((4,), torch.bool), "action": Field((), torch.int32), "reward": Field()}
NUMBER = {"number": Field((), torch.int64)}


def rows_from(first: int, count: int) -> dict[str, Tensor]:
    """Rows of SCHEMA that tell where they come from."""
    number = torch.arange(first, first + count)
    legal = number[:, None] % torch.tensor([2, 3, 5, 7]) == 0
    return {
        "obs": number[:, None, None] + torch.zeros(2, 3),
        "legal": legal,
        "action": number,
        "reward": -number.float(),
    }


def numbers(first: int, count: int) -> dict[str, Tensor]:
    return {"number": torch.arange(first, first + count)}


@pytest.mark.parametrize("device", DEVICES)
@SETTINGS
@given(capacity=st.integers(1, 12), batches=st.lists(st.integers(0, 30), max_size=8))
def test_a_ring_holds_what_a_deque_of_that_length_holds(device: str, capacity: int, batches: list[int]) -> None:
    ring, reference, first = Ring(SCHEMA, capacity, device), deque[int](maxlen=capacity), 0
    for count in batches:
        rows = rows_from(first, count)
        written = ring.add(rows)
        reference.extend(range(first, first + count))
        first += count
        assert sum(place.stop - place.start for place in written) == min(count, capacity)
        assert (ring.size, ring.added) == (len(reference), first)
        oldest_first = [number % capacity for number in range(first - ring.size, first)]
        found, expected = ring.read(torch.tensor(oldest_first, dtype=torch.int64, device=device)), list(reference)
        assert found["action"].tolist() == expected
        kept = rows_from(expected[0], len(expected)) if expected else rows_from(0, 0)
        for name, value in kept.items():
            assert torch.equal(found[name].cpu(), value.to(SCHEMA[name].dtype)), name
            assert found[name].dtype == SCHEMA[name].dtype


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"reward": None}, "fields reward are missing"),
        ({"surprise": torch.zeros(2)}, "fields surprise are missing or unknown"),
        ({"obs": torch.zeros(2, 3, 2)}, r"obs has shape \(2, 3, 2\), expected \(2, 2, 3\)"),
        ({"reward": torch.zeros(3)}, r"reward has shape \(3,\), expected \(2,\)"),
        ({"action": torch.zeros(2)}, "action is torch.float32, which is more than torch.int32 can hold"),
    ],
)
def test_rows_that_do_not_fit_are_refused_before_anything_is_written(
    change: dict[str, Tensor | None], message: str
) -> None:
    ring, rows = Ring(SCHEMA, 4), {**rows_from(0, 2), **change}
    ring.add(rows_from(5, 2))
    with pytest.raises(ValueError, match=message):
        ring.add({name: value for name, value in rows.items() if value is not None})
    assert ring.added == 2
    assert ring.read(torch.tensor([0, 1]))["action"].tolist() == [5, 6]


@pytest.mark.parametrize("device", DEVICES)
@SETTINGS
@given(capacity=st.sampled_from([1, 5, 31, 32, 33, 200, 1024, 1025, 3000]), seed=st.integers(0, 2**31))
def test_the_tree_finds_what_a_running_sum_finds(device: str, capacity: int, seed: int) -> None:
    """Whole numbers, whose sums are exact, many of them 0; set one by one, twice, and by ranges."""
    random = torch.Generator().manual_seed(seed)
    tree, weights = SumTree(capacity, device), torch.zeros(capacity, dtype=torch.float64)
    for _ in range(4):
        slots = torch.randperm(capacity, generator=random)[: max(1, capacity // 3)]
        values = torch.randint(0, 5, slots.shape, generator=random).double()
        tree.set(slots.to(device), values.to(device))
        weights[slots] = values
        start, stop = sorted(torch.randint(0, capacity + 1, (2,), generator=random).tolist())
        if stop > start:
            tree.fill(start, stop, torch.tensor(3.0, device=device))
            weights[start:stop] = 3
    tree.fill(0, 1, torch.tensor(1.0, device=device))
    weights[0] = 1
    assert torch.equal(tree.leaves[:capacity].cpu(), weights)
    assert float(tree.total()) == float(weights.sum())
    mass = torch.rand(200, generator=random, dtype=torch.float64) * weights.sum()
    mass[:50] = mass[:50].floor()  # at the borders between leaves
    assert torch.equal(tree.find(mass.to(device)).cpu(), torch.searchsorted(weights.cumsum(0), mass, right=True))


@SETTINGS
@given(st.integers(0, 2**31))
def test_a_search_never_ends_at_a_leaf_of_no_weight(seed: int) -> None:
    """Weights of very different sizes, whose sums round, and masses up to the total itself."""
    random = torch.Generator().manual_seed(seed)
    weights = 10.0 ** (torch.rand(2000, generator=random, dtype=torch.float64) * 24 - 12)
    weights[torch.rand(2000, generator=random) < 0.7] = 0
    weights[3] = 1e-12
    tree = SumTree(2000)
    tree.fill(0, 2000, weights)
    mass = torch.cat([torch.rand(500, generator=random, dtype=torch.float64), torch.tensor([0.0, 1.0])]) * tree.total()
    found = tree.find(mass)
    assert bool((found < 2000).all())
    assert bool((weights[found] > 0).all())


def prioritised(capacity: int, exponent: float = 0.7, floor: float = 0.01, device: str = "cpu") -> Replay:
    return Replay(NUMBER, capacity, device, Priorities(exponent, floor))


def test_uniform_draws_hit_every_row_alike_and_only_rows_that_are_there() -> None:
    replay = Replay(NUMBER, 100)
    replay.add(numbers(0, 40))
    found = replay.sample(40_000, generator(0, "replay", "host", 0))
    assert found.weight_N is None
    assert torch.equal(found.rows["number"], found.slot_N)
    assert chisquare(torch.bincount(found.slot_N, minlength=40).numpy()).pvalue > 1e-3
    assert int(found.slot_N.max()) < 40


@pytest.mark.parametrize("device", DEVICES)
def test_a_prioritised_batch_has_every_row_as_often_as_its_share_to_the_nearest_two(device: str) -> None:
    replay, error = (
        prioritised(500, device=device),
        torch.rand(300, generator=torch.Generator().manual_seed(1), device="cpu") ** 3,
    )
    replay.add(numbers(0, 300))
    replay.update_priorities(torch.arange(300, device=device), error.to(device))
    found = replay.sample(5000, generator(4, "replay", "agent", 7))
    share = (error.double() + 0.01) ** 0.7
    expected = 5000 * share / share.sum()
    assert float((torch.bincount(found.slot_N.cpu(), minlength=300) - expected).abs().max()) < 2
    assert torch.equal(found.rows["number"], found.slot_N)


def test_importance_weights_are_those_of_the_paper() -> None:
    """Three rows of priorities 1, 2, 5 (exponent 1): w = (3 P) ** -0.5, divided by the largest of the batch."""
    replay = prioritised(4, exponent=1.0, floor=1e-12)
    replay.add(numbers(0, 3))
    replay.update_priorities(torch.tensor([0, 1, 2]), torch.tensor([1.0, -2.0, 5.0]))
    found = replay.sample(64, generator(0, "replay", 0), importance_exponent=0.5)
    raw = (3 * torch.tensor([1.0, 2.0, 5.0]) / 8) ** -0.5
    assert set(found.slot_N.tolist()) == {0, 1, 2}
    torch.testing.assert_close(found.weight_N, (raw / raw[0])[found.slot_N])
    even = replay.sample(64, generator(0, "replay", 0), importance_exponent=0.0)
    assert even.weight_N.tolist() == [1.0] * 64


def test_new_rows_have_the_highest_priority_that_ever_was() -> None:
    replay = prioritised(6, exponent=1.0, floor=1e-12)
    replay.add(numbers(0, 2))
    assert replay.tree.leaves[:3].tolist() == [1.0, 1.0, 0.0]
    replay.update_priorities(torch.tensor([0, 1]), torch.tensor([8.0, 0.5]))
    replay.update_priorities(torch.tensor([0]), torch.tensor([0.25]))
    replay.add(numbers(2, 5))  # wraps: over row 0
    assert replay.tree.leaves[:6].tolist() == pytest.approx([8.0, 0.5, 8.0, 8.0, 8.0, 8.0])


@pytest.mark.parametrize("priorities", [None, Priorities(0.6, 1e-6)])
def test_draws_depend_on_seed_purpose_and_step_alone(priorities: Priorities | None) -> None:
    def draw(seed: int, role: str, step: int) -> list[int]:
        replay = Replay(NUMBER, 1000, priorities=priorities)
        replay.add(numbers(0, 900))
        return replay.sample(32, generator(seed, "replay", role, step)).slot_N.tolist()

    assert draw(1, "host", 5) == draw(1, "host", 5)
    assert len({tuple(draw(*key)) for key in ((1, "host", 5), (2, "host", 5), (1, "agent", 5), (1, "host", 6))}) == 4


def through_a_file(state: dict[str, Any]) -> dict[str, Any]:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def lived(priorities: Priorities | None, count: int) -> Replay:
    """A buffer of 700 rows that has seen `count`, and priorities that moved."""
    replay, random = Replay(SCHEMA, 700, priorities=priorities), torch.Generator().manual_seed(count)
    for first in range(0, count, 50):
        replay.add(rows_from(first, 50))
        found = replay.sample(40, generator(0, "replay", first))
        replay.update_priorities(found.slot_N, torch.randn(40, generator=random) * 3)
    return replay


@pytest.mark.parametrize("count", [50, 650, 2000])
@pytest.mark.parametrize("priorities", [None, Priorities(0.6, 1e-6)], ids=["uniform", "prioritised"])
def test_a_loaded_buffer_goes_on_with_the_same_samples(priorities: Priorities | None, count: int) -> None:
    old = lived(priorities, count)
    new = Replay(SCHEMA, 700, priorities=priorities)
    new.add(rows_from(10_000, 33))  # to be forgotten
    new.load_state_dict(through_a_file(old.state_dict()))
    for replay in (new, old):
        replay.add(rows_from(15_000, 20))  # with the highest priority that the old one ever had
    for step in range(20):
        mine, other = (replay.sample(64, generator(9, "replay", step), 0.5) for replay in (new, old))
        assert torch.equal(mine.slot_N, other.slot_N)
        for name in SCHEMA:
            assert torch.equal(mine.rows[name], other.rows[name])
        if mine.weight_N is not None and other.weight_N is not None:
            assert torch.equal(mine.weight_N, other.weight_N)
        for replay in (new, old):
            replay.update_priorities(mine.slot_N, mine.rows["reward"] / (step + 1))
            replay.add(rows_from(20_000 + 50 * step, 50))


def test_a_buffer_of_another_size_schema_or_kind_is_refused() -> None:
    state = lived(Priorities(0.6, 1e-6), 100).state_dict()
    with pytest.raises(UserError, match=r"buffer_size.*700 rows, got 800"):
        Replay(SCHEMA, 800, priorities=Priorities(0.6, 1e-6)).load_state_dict(state)
    with pytest.raises(UserError, match="has priorities"):
        Replay(SCHEMA, 700).load_state_dict(state)
    other = Replay({**SCHEMA, "reward": Field((2,))}, 700, priorities=Priorities(0.6, 1e-6))
    with pytest.raises(UserError, match="field reward"):
        other.load_state_dict(state)
    assert other.size == 0
