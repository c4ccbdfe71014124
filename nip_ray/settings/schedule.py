"""When an agent learns, and where its weights come from."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Literal

from nip_ray.settings.options import FORBID_UNKNOWN, option

_FIELDS = {
    "constant": (),
    "contiguous": ("period", "start", "stop"),
    "alternating": ("period", "first_agent_num_rounds"),
}


@dataclass(frozen=True)
class UpdateSchedule:
    """Iterations (counted from 0) in which an agent is updated; weights and optimizer do not change in others."""

    __pydantic_config__ = FORBID_UNKNOWN

    kind: Literal["constant", "contiguous", "alternating"] = option(
        "constant", "Always; from start to stop of every period; or alternating with another agent."
    )
    period: int | None = option(None, "Iterations after which the schedule repeats (contiguous, alternating).", ge=1)
    start: int | None = option(None, "First iteration of a period in which it is updated (contiguous).", ge=0)
    stop: int | None = option(None, "First iteration of a period in which it stops (contiguous).", ge=1)
    first_agent_num_rounds: int | None = option(
        None, "Iterations of a period for the first of the two (alternating).", ge=0
    )
    first_agent: bool = option(True, "This agent is the first of the two (alternating).")

    def faults(self) -> Iterator[str]:
        """Missing, superfluous and contradictory keys."""
        kind, used = self.kind, _FIELDS[self.kind]
        defaults, complete = UpdateSchedule(), True
        for name in (field.name for field in fields(self) if field.name != "kind"):
            value = getattr(self, name)
            if name in used and value is None:
                complete = False
                yield f"{name}: missing, a schedule of kind {kind} needs {', '.join(used)}"
            elif name not in (*used, *(("first_agent",) if kind == "alternating" else ())) and value != getattr(
                defaults, name
            ):
                yield f"{name}: got {value}, but a schedule of kind {kind} has no use for it, leave it out"
        if not complete or self.period is None:
            return
        period, start, stop, count = self.period, self.start, self.stop, self.first_agent_num_rounds
        if kind == "contiguous" and start is not None and stop is not None:
            if start >= stop:
                yield f"stop: got {stop}, but start is {start}, use a larger one"
            if stop > period:
                yield f"stop: got {stop}, more than the period of {period}, use at most that"
        if kind == "alternating" and count is not None and count > period:
            yield f"first_agent_num_rounds: got {count}, more than the period of {period}, use at most that"


@dataclass(frozen=True)
class WeightSource:
    """A trained agent of another run to start from; its network settings must be the same."""

    __pydantic_config__ = FORBID_UNKNOWN

    run_dir: str = option(
        "",
        "The other run's folder, or `wandb:ENTITY/PROJECT/checkpoint-RUNID:VERSION`.",
        min_length=1,
        meaning={"path": "run"},
    )
    agent: str | None = option(None, "The agent there (none: the one of the same name).", min_length=1)
    checkpoint: int | None = option(None, "An iteration (none: the newest checkpoint).", ge=1)


def is_updated(schedule: UpdateSchedule, iteration: int) -> bool:
    """Return True if an agent with this schedule, which must be complete, learns in `iteration` (from 0)."""
    if schedule.kind == "constant":
        return True
    place = iteration % (schedule.period or 1)
    if schedule.kind == "contiguous":
        return (schedule.start or 0) <= place < (schedule.stop or 0)
    return (place < (schedule.first_agent_num_rounds or 0)) == schedule.first_agent


def updated_agents(schedules: Mapping[str, UpdateSchedule], agents: Iterable[str], iteration: int) -> tuple[str, ...]:
    """Those of `agents` that learn in `iteration`; an agent without a schedule always does."""
    return tuple(agent for agent in agents if agent not in schedules or is_updated(schedules[agent], iteration))
