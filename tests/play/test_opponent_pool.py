"""Which snapshots are kept and drawn, and what is known of them."""

import json
from collections import Counter
from itertools import pairwise

import pytest

from nip_ray.play.opponent_pool import Block, OpponentPool, thinned
from nip_ray.settings.opponents import OpponentSettings


def pool(*snapshots: int, **settings: object) -> OpponentPool:
    made = OpponentPool(OpponentSettings(**settings), seed=3)  # pyright: ignore[reportArgumentType]
    for snapshot in snapshots:
        made.add(snapshot)
    return made


@pytest.mark.parametrize("size", [2, 3, 8])
def test_what_is_kept_stays_spread_over_all_of_training(size: int) -> None:
    kept: list[int] = []
    for number in range(1, 200):
        kept = thinned([*kept, number], size)
        gaps = [after - before for before, after in pairwise(kept)]
        assert (kept[0], kept[-1], len(kept)) == (1, number, min(size, number))
        assert size == 2 or not gaps or max(gaps) <= max(1, 2 * (number - 1) / (size - 1)), kept


def test_a_snapshot_is_due_after_every_so_many_iterations_and_once() -> None:
    made = pool(every=5)
    assert [i for i in range(16) if made.due(i)] == [5, 10, 15]
    made.add(5)
    assert not made.due(5)


def test_who_meets_whom_is_shared_evenly_and_repeatable() -> None:
    made = pool(5, 10, latest=0.5, draws=3)
    blocks = made.blocks(("a", "b"), 32, 7, 0)
    assert blocks == made.blocks(("a", "b"), 32, 7, 0)
    assert sum(block.episodes for block in blocks) == 16
    assert Counter({agent: sum(b.episodes for b in blocks if b.agent == agent) for agent in "ab"}) == Counter(a=8, b=8)
    assert any(made.blocks(("a", "b"), 32, 7, share) != blocks for share in range(1, 6))
    assert pool(latest=0.5).blocks(("a",), 32, 7) == []
    assert made.blocks((), 32, 7) == []
    assert pool(5, latest=0.5, draws=3).blocks(("a",), 32, 7) == [Block("a", 5, 16)]  # the same snapshot is one block


def test_win_rates_are_on_the_scale_of_what_was_paid_and_fade() -> None:
    made = pool(5, 10, win_rate_decay=0.5)
    assert made.win_rate("a", 5) == 0.5
    made.saw("a", [-1.0, 3.0])
    made.record("a", 5, [3.0, 3.0, -1.0])
    assert made.win_rate("a", 5) == pytest.approx(2.5 / 4)  # two won of three, and half of an imagined one
    made.record("a", 5, [-1.0, -1.0])
    assert made.win_rate("a", 5) == pytest.approx((1 + 0.5) / (3.5 + 1))
    assert made.win_rate("a", 10) == made.win_rate("b", 5) == 0.5


@pytest.mark.parametrize(("priority", "expected"), [("hard", [1 / 26, 25 / 26]), ("even", [0.5, 0.5])])
def test_prioritised_draws_follow_the_priorities(priority: str, expected: list[float]) -> None:
    made = pool(5, 10, sampling="prioritised", priority=priority)
    made.record("a", 5, [1.0] * 2 + [0.0])  # 2.5 of 4: with the next line win rates of 5/6 and 1/6
    made.record("a", 5, [1.0] * 2)
    made._results["a"] = {5: (5.0, 4.5), 10: (5.0, 0.5)}
    assert [made.win_rate("a", number) for number in (5, 10)] == pytest.approx([5 / 6, 1 / 6])
    drawn = Counter(made.draw("a", 4000, 1))
    assert [drawn[number] / 4000 for number in (5, 10)] == pytest.approx(expected, abs=0.03)
    assert Counter(made.draw("b", 4000, 1))[5] / 4000 == pytest.approx(0.5, abs=0.03)  # nothing is known of b


def test_where_all_is_won_draws_are_uniform() -> None:
    made = pool(5, 10, sampling="prioritised")
    made._range, made._results = {"a": (0.0, 1.0)}, {"a": {5: (1e17, 1e17), 10: (1e17, 1e17)}}
    assert made.weights("a") == [1.0, 1.0]


def test_a_state_that_went_through_json_draws_the_same() -> None:
    first = pool(5, 10, 15, size=3, sampling="prioritised")
    first.record("a", 10, [0.1, 0.7, 1 / 3])
    other = pool(size=3, sampling="prioritised")
    other.load_state(json.loads(json.dumps(first.state())))
    assert other.state() == first.state()
    assert other.draw("a", 50, 2) == first.draw("a", 50, 2)
    assert first.add(20) == other.add(20) == [10]
    assert "10" not in first.state()["results"]["a"]
    with pytest.raises(ValueError, match="after"):
        first.add(20)
