"""Update schedules against what they say in words, iteration by iteration."""

import pytest

from nip_ray.settings.schedule import UpdateSchedule, is_updated, updated_agents


def learned_in(schedule: UpdateSchedule, iterations: int = 12) -> list[int]:
    return [i for i in range(iterations) if is_updated(schedule, i)]


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        (UpdateSchedule(), list(range(12))),
        (UpdateSchedule("contiguous", period=5, start=1, stop=3), [1, 2, 6, 7, 11]),
        (UpdateSchedule("contiguous", period=5, start=0, stop=5), list(range(12))),
        (UpdateSchedule("contiguous", period=4, start=3, stop=4), [3, 7, 11]),
        (UpdateSchedule("alternating", period=5, first_agent_num_rounds=2), [0, 1, 5, 6, 10, 11]),
        (UpdateSchedule("alternating", period=5, first_agent_num_rounds=2, first_agent=False), [2, 3, 4, 7, 8, 9]),
        (UpdateSchedule("alternating", period=3, first_agent_num_rounds=0), []),
        (UpdateSchedule("alternating", period=3, first_agent_num_rounds=3), list(range(12))),
    ],
)
def test_who_learns_when(schedule: UpdateSchedule, expected: list[int]) -> None:
    assert learned_in(schedule) == expected


@pytest.mark.parametrize("count", range(5))
def test_two_that_alternate_never_learn_together_and_never_both_rest(count: int) -> None:
    first, second = (
        UpdateSchedule("alternating", period=4, first_agent_num_rounds=count, first_agent=own) for own in (True, False)
    )
    assert sorted(learned_in(first) + learned_in(second)) == list(range(12))


def test_agents_without_a_schedule_always_learn() -> None:
    schedules = {"b": UpdateSchedule("contiguous", period=2, start=1, stop=2)}
    assert updated_agents(schedules, ("c", "b", "a"), 0) == ("c", "a")
    assert updated_agents(schedules, ("c", "b", "a"), 1) == ("c", "b", "a"), "in the order given"
