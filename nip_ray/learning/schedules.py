"""Update schedules: which agents learn in an iteration."""

from collections.abc import Iterable, Mapping

from nip_ray.settings.schedule import UpdateSchedule


def is_updated(schedule: UpdateSchedule, iteration: int) -> bool:
    """Whether an agent with this schedule learns in `iteration` (from 0); the schedule must be complete, as the config's rules ask."""
    if schedule.kind == "constant":
        return True
    place = iteration % (schedule.period or 1)
    if schedule.kind == "contiguous":
        return (schedule.start or 0) <= place < (schedule.stop or 0)
    return (place < (schedule.first_agent_num_rounds or 0)) == schedule.first_agent


def updated_agents(schedules: Mapping[str, UpdateSchedule], agents: Iterable[str], iteration: int) -> tuple[str, ...]:
    """Those of `agents` that learn in `iteration`; an agent without a schedule always does."""
    return tuple(agent for agent in agents if agent not in schedules or is_updated(schedules[agent], iteration))
