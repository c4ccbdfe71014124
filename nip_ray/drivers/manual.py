"""The loop itself, spelled out with public pieces, for one learner and its copies: what to copy when no driver fits.

It does, call by call, what the sequential driver does.
"""

from nip_ray.drivers.contract import Agent, Transition
from nip_ray.drivers.environments import Copies
from nip_ray.drivers.reports import SILENT, Reports
from nip_ray.drivers.sequential import SequentialDriver
from nip_ray.drivers.statistics import EpisodeStatistics, information
from nip_ray.errors import UserError


def train_by_hand(
    copies: Copies,
    agent: Agent,
    timesteps: int,
    *,
    start: int = 0,
    stop: int | None = None,
    seed: int = 0,
    statistics: EpisodeStatistics | None = None,
    environment_info: str = "episode",
    render_interval: int | None = None,
) -> None:
    """Train `agent` on all of `copies` from timestep `start` to `stop` (None: the end) of `timesteps`.

    Fresh copies play the episodes that a sequential driver with this seed would play. statistics: of their episodes. environment_info:
    where the numbers stand in the environment's infos that the agent tracks. render_interval: timesteps between two pictures (None: none).
    """
    agent.enable_training_mode(True)
    if copies.observations is None:
        copies.reset(seed, "episodes", 0, 0)
    for timestep in range(start, timesteps if stop is None else stop):
        agent.pre_interaction(timestep, timesteps)
        observations, states = copies.observations, copies.state()
        actions = agent.act(observations, timestep, timesteps, states=states)
        led_to, rewards, terminated, truncated, valid, infos = copies.step(actions)
        next_states = None if states is None else copies.state_led_to()
        transition = Transition(observations, actions, rewards, led_to, terminated, truncated, valid, infos, states, next_states)
        if render_interval is not None and timestep % render_interval == 0:
            copies.render()
        agent.record_transition(transition, timestep, timesteps)
        if statistics is not None:
            statistics.add(transition)
        for tag, value in information(infos, environment_info).items():
            agent.track_data(tag, value)
        agent.post_interaction(timestep, timesteps)


class ManualDriver(SequentialDriver):
    """`train_by_hand` behind the drivers' interface, learner after learner."""

    def train(self, until: int | None = None, reports: Reports = SILENT) -> None:
        """As `SequentialDriver.train`, without a progress bar. Raises UserError where learners share an environment."""
        core, settings, total = self.core, self.settings, self.settings.timesteps
        if any(len(part.learners) > 1 for part in core.parts):
            raise UserError("driver: by hand an environment has one learner; use the sequential driver for learners that share one")
        end = total if until is None else min(until, total)
        core.enable_training(True)
        core.mark_time()
        while core.timestep < end:
            at = core.timestep
            stop = reports.next_due(at, end)
            for part in core.parts:
                learner = part.learners[0]
                train_by_hand(
                    part.copies,
                    learner.agent,
                    total,
                    start=at,
                    stop=stop,
                    statistics=learner.statistics,
                    environment_info=settings.environment_info,
                    render_interval=None if settings.headless else settings.render_interval,
                )
            core.timestep = stop
            reports.tell(stop, core.row)
