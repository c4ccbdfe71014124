"""Schedules of rates against their definitions, and what a schedule may not be."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nip_ray.errors import UserError
from nip_ray.learning.annealing import rate_at
from nip_ray.settings.dqn import ExplorationRate, RateSchedule

SETTINGS = settings(max_examples=60, deadline=None, database=None)


def test_linear_goes_in_equal_steps_and_stays() -> None:
    schedule = RateSchedule(kind="linear", initial=1.0, final=0.5, steps=4)
    assert [rate_at(schedule, step) for step in range(7)] == [1.0, 0.875, 0.75, 0.625, 0.5, 0.5, 0.5]


@SETTINGS
@given(st.floats(1e-6, 1), st.floats(0, 1), st.sampled_from([0.5, 0.9, 0.996, 1.0]), st.integers(0, 3000))
def test_exponential_multiplies_the_distance_to_final_by_rate_at_every_step(
    initial: float, final: float, rate: float, step: int
) -> None:
    schedule = RateSchedule(kind="exponential", initial=initial, final=final, rate=rate)
    assert rate_at(schedule, 0) == pytest.approx(initial)
    here, there = rate_at(schedule, step), rate_at(schedule, step + 1)
    assert there - final == pytest.approx(rate * (here - final), abs=1e-12)


@SETTINGS
@given(st.floats(1e-4, 10), st.floats(1e-3, 100), st.integers(0, 10**6))
def test_inverse_is_initial_over_one_plus_steps_times_initial_over_rate(initial: float, rate: float, step: int) -> None:
    schedule = RateSchedule(kind="inverse", initial=initial, rate=rate)
    assert rate_at(schedule, step) == pytest.approx(initial / (1 + step * initial / rate))


@pytest.mark.parametrize(("kind", "missing"), [("linear", "steps"), ("exponential", "rate"), ("inverse", "rate")])
def test_a_missing_parameter_is_named(kind: str, missing: str) -> None:
    schedule = RateSchedule(kind=kind, initial=1.0, final=0.1)  # type: ignore[arg-type]
    with pytest.raises(UserError, match=f"^{missing}: missing.*{kind}"):
        rate_at(schedule, 3)
    assert any(fault.startswith(f"{missing}: missing") for fault in schedule.faults())


@pytest.mark.parametrize(
    ("schedule", "fault"),
    [
        (RateSchedule(steps=5), "steps: got 5"),
        (RateSchedule(kind="inverse", initial=0.0, rate=1.0), "initial: got 0"),
        (RateSchedule(kind="exponential", final=0.1, rate=1.5), "rate: got 1.5"),
        (ExplorationRate(kind="exponential", final=0.1, rate=0.9, steps=7), "steps: got 7"),
    ],
)
def test_what_a_schedule_may_not_be(schedule: RateSchedule, fault: str) -> None:
    found = list(schedule.faults())
    assert len(found) == 1
    assert found[0].startswith(fault)
