"""One timestep at a time, for whoever wants to hold the loop: the same timesteps that the sequential driver makes."""

from contextlib import ExitStack
from typing import Any

from nip_ray.cluster.interrupts import safe_point
from nip_ray.drivers.contract import stack
from nip_ray.drivers.core import Core, evaluation_core
from nip_ray.drivers.reports import SILENT, Reports
from nip_ray.drivers.sequential import SequentialDriver
from nip_ray.progress import progress_line

_STEPS_PER_REPORT = 64
Step = tuple[Any, Any, Any, Any, Any]


class StepDriver(SequentialDriver):
    """`step` makes one timestep of training, `evaluate_step` one of evaluation.

    Counters start at 0. To go from training to evaluation or back begins new episodes.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        """As `SequentialDriver`."""
        super().__init__(*arguments, **options)
        self._mode: bool | None = None  # whether the newest timestep was one of training
        self._open = ExitStack()
        self._report: Any = None
        self._evaluation = evaluation_core(self.core)

    def train(self, until: int | None = None, reports: Reports = SILENT) -> None:
        """As `SequentialDriver.train`, step by step."""
        end = self.settings.timesteps if until is None else min(until, self.settings.timesteps)
        self.core.mark_time()
        while self.timestep < end:
            self.step()
            reports.tell(self.timestep, self.core.row)
            safe_point()

    def step(self, timestep: int | None = None, timesteps: int | None = None) -> Step:
        """One timestep of training: (observations, rewards, terminated, truncated, infos) as the environment gave them.

        timestep, timesteps: what learners are told (None: the counter, the settings' total). Environments that learners do not share
        give one list of infos, in the learners' order.
        """
        self._switch(True)
        self.core.advance(True, timestep, timesteps)
        if self._report is None:
            quiet = not self.settings.progress_bar
            self._report = self._open.enter_context(progress_line("", self.timestep, self.settings.timesteps, quiet, "timestep"))
        if self.timestep % _STEPS_PER_REPORT == 0 or self.timestep == self.settings.timesteps:
            self._report(self.timestep, {})
        return self._newest(self.core)

    def evaluate_step(self, timestep: int | None = None, timesteps: int | None = None) -> Step:
        """One timestep of evaluation in the same copies: nobody learns, and the counter of training stands still."""
        self._switch(False)
        self._evaluation.advance(self.settings.stochastic_evaluation, timestep, timesteps)
        return self._newest(self._evaluation)

    def reset(self) -> None:
        """Counters to 0, fresh episodes at the next step; what the learners have learned stays."""
        self.core.timestep = self._evaluation.timestep = 0
        self._mode = None
        self._open.close()
        self._report = None

    def close(self) -> None:
        """End the environments and the progress bar."""
        self._open.close()
        super().close()

    def evaluation_figures(self) -> dict[str, float]:
        """Figures `LEARNER/...` of the timesteps of evaluation since the last call."""
        return self._evaluation.evaluation_figures()

    def _switch(self, training: bool) -> None:
        if self._mode is training:
            return
        core = self.core
        begun = core.parts[0].copies.observations is not None
        core.enable_training(training)
        if begun and (self._mode is not None or core.timestep == 0):
            core.reset()
        if not training:
            for learner in self._evaluation.learners:
                learner.statistics.begin()
        self._mode = training

    def _newest(self, core: Core) -> Step:
        whole = [part.transition for part in core.parts]
        shown = stack([part.copies.observations for part in core.parts])
        rewards, terminated, truncated = (stack([getattr(one, name) for one in whole]) for name in ("rewards", "terminated", "truncated"))
        return shown, rewards, terminated, truncated, whole[0].infos if len(whole) == 1 else [one.infos for one in whole]
