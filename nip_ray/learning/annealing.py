"""Schedules over the steps of training: learning rates, exploration rates, exponents.

Decisions that matter here:
- each is a pure function of the step, so a resumed run needs no state;
- the step is the gradient step of training, from 0.
"""

from collections.abc import Callable

from nip_ray.errors import UserError
from nip_ray.settings.dqn import RateSchedule


def rate_at(schedule: RateSchedule, step: int) -> float:
    """The value of `schedule` at gradient step `step` (from 0).

    Raises UserError if a parameter of its kind is missing; the config's rules refuse such a schedule before.
    """
    return KINDS[schedule.kind](schedule, step)


def constant(schedule: RateSchedule, step: int) -> float:
    """initial, at every step."""
    return schedule.initial


def linear(schedule: RateSchedule, step: int) -> float:
    """From initial to final in `steps` equal steps, then final."""
    share = min(1.0, step / _given(schedule, "steps"))
    return (1 - share) * schedule.initial + share * _given(schedule, "final")


def exponential(schedule: RateSchedule, step: int) -> float:
    """initial rate^t + final (1 - rate^t): the distance to final shrinks by `rate` at every step."""
    left = _given(schedule, "rate") ** step
    return schedule.initial * left + _given(schedule, "final") * (1 - left)


def inverse(schedule: RateSchedule, step: int) -> float:
    """rate / (t + rate / initial): initial at first, half of it after rate / initial steps, then falling like 1 / t."""
    rate = _given(schedule, "rate")
    return rate / (step + rate / schedule.initial)


KINDS: dict[str, Callable[[RateSchedule, int], float]] = {
    "constant": constant,
    "linear": linear,
    "exponential": exponential,
    "inverse": inverse,
}


def _given(schedule: RateSchedule, name: str) -> float:
    value = getattr(schedule, name)
    if value is None:
        raise UserError(f"{name}: missing, a schedule of kind {schedule.kind} needs it")
    return value
