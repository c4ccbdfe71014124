"""Numbers that change with the steps of training: learning rates, exploration rates, exponents.

Decisions that matter here:
- every one is a pure function of the step: nothing is advanced, so nothing is forgotten when a run is resumed;
- the step is the gradient step of training itself, from 0, and moves with every one of them.
"""

from collections.abc import Callable

from nip_ray.errors import UserError
from nip_ray.settings.dqn import RateSchedule


def rate_at(schedule: RateSchedule, step: int) -> float:
    """The value of `schedule` at gradient step `step` (from 0).

    Raises UserError where a parameter that its kind needs is missing; the config's rules refuse such a schedule before.
    """
    return KINDS[schedule.kind](schedule, step)


def constant(schedule: RateSchedule, step: int) -> float:
    """initial, at every step."""
    return schedule.initial


def linear(schedule: RateSchedule, step: int) -> float:
    """From initial to final in equal steps, `steps` of them, and final ever after."""
    share = min(1.0, step / _given(schedule, "steps"))
    return (1 - share) * schedule.initial + share * _given(schedule, "final")


def exponential(schedule: RateSchedule, step: int) -> float:
    """initial rate^t + final (1 - rate^t): from initial to final, the distance times rate at every step."""
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
