"""`TextTrainable`: a run of language agents as a Tune trainable. One `step` is one stage.

    Tuner(TextTrainable, param_space={"experiment": config.model_dump(mode="json"), "run_root": "/shared/runs"})

Decisions that matter here:
- a trial is a run: its folder, `run_root/TRIAL_ID`, lies on storage that all nodes see, and has all that matters as soon as a stage is
  over. A trial that Tune starts again, wherever that is, resumes at the stage that was begun last, and finds there what was answered and
  which jobs were made. A checkpoint of Tune's names the run only;
- what would fail again is not tried again: a config that cannot work, a missing key and a spent budget end the trial with the reason in
  its last result (`failed`). What may pass (a lost process, a failed job, a provider that does not answer, a full disk) raises, and Tune
  starts the trial again;
- `text_iteration` counts the iterations whose figures are there. So a scheduler that stops a trial does it after the test, before the
  next models are paid for;
- a stage that waits for fine-tuning can take hours: it is Tune's trial that waits, holding its resources.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ray import tune
from ray.tune.result import SHOULD_CHECKPOINT

from nip_ray.cluster.liveness import give_signs
from nip_ray.cluster.resources import trial_bundles
from nip_ray.config.experiment import TextExperimentConfig
from nip_ray.config.paths import with_absolute_paths
from nip_ray.config.rules import check
from nip_ray.errors import UserError
from nip_ray.runs.experiment import reopened
from nip_ray.storage.folder import RunFolder
from nip_ray.sweeps.trial import experiment_of, failed, opened, read_pointer, resources, write_pointer
from nip_ray.text.costs.prices import BudgetExhausted
from nip_ray.text.parts import PROVIDERS, STATE, check_providers, known_abilities, load_state, prepare, save_state, store_abilities
from nip_ray.text.training.trainer import AnyTrainer, begin, finish, new_state, num_measured
from nip_ray.tracking import check_trackers

_FORMAT = "nip_ray.text_trial"


class TextTrainable(tune.Trainable):
    """config: what `nip_ray.sweeps.trainable.ExperimentTrainable` can be told. `iterations_per_report` has no meaning here: every stage
    is reported.
    """

    def setup(self, config: dict[str, Any]) -> None:
        """Make the run folder, or open the one of an earlier start of this trial. No provider is contacted before the first `step`.

        Raises UserError when the folder cannot be written.
        """
        self.trainer: AnyTrainer | None = None
        self.folder: RunFolder | None = None
        self._fault: str | None = None
        self._silence: Callable[[], None] | None = None
        self._from: str | None = None
        try:
            self.experiment = with_absolute_paths(experiment_of(config, TextExperimentConfig))
            check(self.experiment)
            check_trackers(self.experiment.tracking)
            trial_bundles(self.experiment)
        except UserError as error:
            self._fault = str(error)
            return
        self.folder = opened(Path(config["run_root"]).resolve() / self.trial_id, self.experiment)
        self._silence = give_signs(self.folder.path)

    def step(self) -> dict[str, Any]:
        """One stage. Returns the newest figures by their keys in metrics.jsonl, `iteration` among them, `stage`, `text_iteration`,
        `run_dir`, `done` after the last stage, and `failed` (the reason) for a trial that need not be tried again. Raises what
        `TextTrainer.run_stage` does.
        """
        if self._fault is not None or self.folder is None:
            return failed(self._fault)
        if self.trainer is None:
            try:
                self.trainer = self._begin(self.folder)
            except UserError as error:
                return failed(error)
        stage = self.trainer.state.stage
        try:
            if not self.trainer.state.over:
                stage = self.trainer.run_stage()
        except BudgetExhausted as error:
            return {**self._reached(self.folder, self.trainer), "stage": stage, **failed(error)}
        if self.trainer.state.over:
            finish(self.folder, self.trainer)
        over = self.trainer.state.over
        return {**self._reached(self.folder, self.trainer), "stage": stage, "done": over, SHOULD_CHECKPOINT: True}

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        """Name the run."""
        write_pointer(checkpoint_dir, _FORMAT, run=None if self.trainer is None else self.trainer.state.run_id)

    def load_checkpoint(self, checkpoint_dir: str) -> None:
        """Remember which run it is of; see `step`. Raises UserError for what `save_checkpoint` did not write."""
        self._from = read_pointer(checkpoint_dir, _FORMAT)["run"]

    def cleanup(self) -> None:
        """Give actors, trackers and the folder back."""
        try:
            if self.trainer is not None:
                self.trainer.close()
        finally:
            if self._silence is not None:
                self._silence()
            if self.folder is not None:
                self.folder.close()

    @classmethod
    def default_resource_request(cls, config: dict[str, Any]) -> tune.PlacementGroupFactory:
        """CPUs and GPUs of the main process, then of every rollout worker and of the local model's actors."""
        return resources(config, TextExperimentConfig)

    def _reached(self, folder: RunFolder, trainer: AnyTrainer) -> dict[str, Any]:
        return {**folder.figures(), "run_dir": str(folder.path), "text_iteration": num_measured(trainer.state)}

    def _begin(self, folder: RunFolder) -> AnyTrainer:
        """The trainer, standing where the run does."""
        experiment = self.experiment
        if not (folder.path / STATE).is_file():
            save_state(folder, new_state(experiment))
        state = reopened(load_state(folder), experiment)
        if self._from not in (None, state.run_id):
            raise UserError(
                f"{folder.path} is another run than the one that the checkpoint is of; language models cannot be moved that way"
            )
        known = folder.path.parent / PROVIDERS  # of all trials
        store_abilities(known, asyncio.run(check_providers(experiment, known_abilities(known))))
        return begin(experiment, folder, prepare(experiment, folder.path), state, group=self.config.get("group"), in_trial=True)
