"""All learners in this process, one after the other within each timestep."""

import atexit
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from nip_ray.drivers.contract import Agent
from nip_ray.drivers.core import Core, Environment, Part, as_recipe, learners_and_scopes, make_parts, own_part
from nip_ray.drivers.reports import SILENT, Reports
from nip_ray.progress import progress_line
from nip_ray.settings.drivers import DriverSettings


class SequentialDriver:
    """Trains and evaluates learners in this process.

    environment: settings, a recipe (each learner then has an environment of its own, unless it is shared), or a vector environment.
    agents: one or several. scopes: numbers of copies (None: equal shares, the remainder to the last). names: begin their figures' keys.
    Raises UserError where they do not fit.
    """

    def __init__(
        self,
        environment: Environment,
        agents: Agent | Sequence[Agent],
        settings: DriverSettings,
        scopes: Sequence[int] | None = None,
        names: Sequence[str] | None = None,
        seed: int = 0,
    ) -> None:
        self.agents, self.scopes, self.names = learners_and_scopes(environment, agents, scopes, names)
        self.settings, self._recipe = settings, as_recipe(environment)
        self.core = Core(make_parts(environment, self.agents, self.scopes, self.names), settings, seed)
        if settings.close_environment_at_exit:
            atexit.register(self.close)

    @property
    def timestep(self) -> int:
        """How many timesteps were made."""
        return self.core.timestep

    @property
    def env_steps(self) -> int:
        """How many transitions there were, of all learners."""
        return self.core.env_steps

    def train(self, until: int | None = None, reports: Reports = SILENT) -> None:
        """Train up to timestep `until` (None: the settings' total), from where it stands.

        Raises TrainingError where training breaks down.
        """
        total = self.settings.timesteps
        with progress_line("", self.timestep, total, not self.settings.progress_bar, "timestep") as report:

            def told(row: dict[str, Any]) -> None:
                report(row["iteration"], row)
                reports.on_row(row)

            end = total if until is None else min(until, total)
            self.core.train(end, replace(reports, on_row=told))

    def evaluate(self, timesteps: int, num_copies: int | None = None) -> dict[str, float]:
        """Figures `LEARNER/...` over so many timesteps from fresh episodes; nothing is learned, and actions are greedy unless the
        settings say otherwise.

        With an environment that can be made again, in copies of its own (`num_copies` each, None: as many as in training), in one
        environment of all these where it is shared and cannot be split; else in those of training, which continues with fresh episodes
        afterwards.
        """
        parts = self._evaluation_parts(num_copies)
        try:
            return self.core.evaluate(timesteps, parts)
        finally:
            for part in parts or []:
                part.copies.close()

    def _evaluation_parts(self, num_copies: int | None) -> list[Part] | None:
        recipe = self._recipe
        if recipe is None:
            return None
        named = list(zip(self.agents, self.scopes, self.names, strict=True))
        if recipe.shared and not recipe.divisible:
            scopes = self.scopes if num_copies is None else tuple((i * num_copies, (i + 1) * num_copies) for i in range(len(named)))
            return make_parts(replace(recipe, num_copies=scopes[-1][1]), self.agents, scopes, self.names)
        return [own_part(recipe, agent, scope, name, num_copies) for agent, scope, name in named]

    def state_dict(self) -> dict[str, Any]:
        """Everything that training depends on, in values that `nip_ray.storage.checkpoint` holds."""
        return self.core.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The inverse of `state_dict`. Raises UserError for a state of other learners."""
        self.core.load_state_dict(state)

    def close(self) -> None:
        """End the environments."""
        atexit.unregister(self.close)
        self.core.close()

    def __str__(self) -> str:
        return described(self)


def described(driver: Any) -> str:
    """What a driver drives, one learner a line."""
    copies = driver.scopes[-1][1]
    lines = [f"{type(driver).__name__}: {copies} copies, {len(driver.agents)} learners"]
    for name, agent, (start, stop) in zip(driver.names, driver.agents, driver.scopes, strict=True):
        lines.append(f"  {name}: {type(agent).__name__}, copies {start} to {stop - 1}")
    return "\n".join(lines)
