"""`ExperimentTrainable`: a run with networks as a Tune trainable; one `step` is an iteration, or several.

    Tuner(ExperimentTrainable, param_space={
        "experiment": {"scenario": {"name": "message_game"}, ...},       # keys as in a config file
        "values": {"algorithm.lr": tune.loguniform(1e-4, 1e-2)},         # laid over it, by dotted key
        "run_root": "/shared/runs",
    })

Decisions that matter here:
- a trial is a run: it has a run folder, on storage that all nodes see, under `run_root/TRIAL_ID`, with the checkpoints, metrics and report
  of any run. A checkpoint of Tune's names trial and iteration only: so nothing is written twice, and what Tune restores has
  checksums and falls back to the newest good one. A trial whose folder is there already continues, whatever Tune knows of it;
- what would fail again is not tried again: a config that cannot work and a NaN end the trial with the reason in its last result
  (`failed`). What the surroundings did (a lost process, a full disk) raises, and Tune starts the trial again from its newest checkpoint;
- Tune counts its own reports from the checkpoint that it knows of, and the run continues from its own newest one. So the run says
  how far it is: `training_iteration` is the number of reports that its iterations make, also after a restore;
- a trial that population-based training sends on from another's checkpoint keeps its own rows up to there, and takes the other's for
  iterations that it had not reached itself. `lineage.json` says from whom it continues since when, and with which values.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ray import tune
from ray.tune.result import SHOULD_CHECKPOINT, TRAINING_ITERATION

from nip_ray.cluster.liveness import give_signs
from nip_ray.config.changes import run_fingerprint
from nip_ray.config.experiment import ExperimentConfig
from nip_ray.config.load import config_to_yaml
from nip_ray.config.paths import with_absolute_paths
from nip_ray.config.rules import check
from nip_ray.errors import LearnerLost, TrainingError, UserError
from nip_ray.runs.session import Session
from nip_ray.storage.checkpoint import Checkpoint, has_checkpoint, load_checkpoint
from nip_ray.storage.folder import CONFIG, RunFolder
from nip_ray.storage.stored_config import write_config
from nip_ray.sweeps.trial import experiment_of, failed, opened, read_pointer, resources, values_of, write_pointer

LINEAGE, _FORMAT = "lineage.json", "nip_ray.trial"


class ExperimentTrainable(tune.Trainable):
    """config: "experiment" and "run_root", and as one likes "values" (dotted key -> value), "spaces" (dotted key -> the search space that a
    value was drawn from, as in a sweep file), "group" (the sweep's name, for trackers), "iterations_per_report" (default 1), "seeds"
    (of which Tune's `Repeater` chooses). A mapping may be given as JSON text, in which Tune does not look for spaces of its own.
    """

    def setup(self, config: dict[str, Any]) -> None:
        """Make the run folder, or open the one of an earlier start of this trial. Nothing is built before the first `step`.

        Raises UserError when the folder cannot be written.
        """
        self.session: Session | None = None
        self.folder: RunFolder | None = None
        self._from: dict[str, Any] | None = None
        self._fault: str | None = None
        self._silence: Callable[[], None] | None = None
        self._broken: Exception | None = None
        try:
            self.experiment = with_absolute_paths(experiment_of(config, ExperimentConfig))
            check(self.experiment)
        except UserError as error:
            self._fault = str(error)
            return
        self.root = Path(config["run_root"]).resolve()
        self.folder = opened(self.root / self.trial_id, self.experiment)
        self._silence = give_signs(self.folder.path)

    def step(self) -> dict[str, Any]:
        """The next iterations. Returns the newest figures by their keys in metrics.jsonl, `iteration`, `training_iteration`, `run_dir`,
        `done`, and `failed` (the reason) for a trial that need not be tried again. Raises LearnerLost, and UserError when nothing
        can be written.
        """
        if self._broken is not None:
            raise self._broken
        if self._fault is not None or self.folder is None:
            return failed(self._fault)
        if self.session is None:
            try:
                self.session = self._begin(self.folder)
            except LearnerLost:
                raise
            except (UserError, TrainingError) as error:
                return failed(error)
        before, size = self.session.saved_at, self.config.get("iterations_per_report", 1)
        try:
            for _ in range(size):
                if not self.session.over:
                    self.session.step()
            if self.session.over:
                self.session.finish()
        except LearnerLost:
            raise
        except TrainingError as error:
            return {**self.session.figures, **failed(error)}
        saved = self.session.saved_at != before
        where = {"run_dir": str(self.folder.path), TRAINING_ITERATION: -(-self.session.iteration // size)}
        return {**self.session.figures, **where, "done": self.session.over, SHOULD_CHECKPOINT: saved}

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        """Save the run, and say where it stands."""
        if self.session is not None:
            self.session.save()
        write_pointer(checkpoint_dir, _FORMAT, trial=self.trial_id, iteration=0 if self.session is None else self.session.iteration)

    def load_checkpoint(self, checkpoint_dir: str) -> None:
        """Remember where to continue; see `step`. Raises UserError for what `save_checkpoint` did not write."""
        self._from = read_pointer(checkpoint_dir, _FORMAT)

    def cleanup(self) -> None:
        """Give actors, trackers and the folder back. A trial that is stopped between two reports is saved first."""
        try:
            if self.session is not None:
                try:
                    self.session.save_interrupted()
                finally:
                    self.session.close()
        finally:
            if self._silence is not None:
                self._silence()
            if self.folder is not None:
                self.folder.close()

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Take on the next trial, whose config this is, in this process. What goes wrong in that is raised by the first `step`: Tune tries
        again what failed in a step, and nothing that failed here.
        """
        try:
            self.cleanup()
            self.setup(new_config)
        except Exception as error:
            self.session = self.folder = None
            self._broken = error
        return True

    @classmethod
    def default_resource_request(cls, config: dict[str, Any]) -> tune.PlacementGroupFactory:
        """CPUs and GPUs of the main process, then of every env runner and learner."""
        return resources(config, ExperimentConfig)

    def _begin(self, folder: RunFolder) -> Session:
        """The session, standing where this trial is to continue: another trial's checkpoint, or its own newest, or the start."""
        session = Session(self.experiment, folder, quiet=True, group=self.config.get("group"))
        try:
            source, checkpoint = self._other_source(folder)
            if checkpoint is None:
                session.start(session.newest())
            else:
                _take_rows(folder, self.root / source, checkpoint.iteration)
                session.start(checkpoint, foreign=True)
                session.save()  # from here on the folder has no checkpoint but those of its own config
                write_config(folder.path / CONFIG, config_to_yaml(self.experiment))
                _note(folder, {"iteration": checkpoint.iteration, "from": source, "values": values_of(self.config)})
        except BaseException:
            session.close()
            raise
        return session

    def _other_source(self, folder: RunFolder) -> tuple[str, Checkpoint | None]:
        """(trial, its checkpoint) to continue from where that is not simply this run's own newest, else ("", None)."""
        if self._from is not None and self._from["trial"] != self.trial_id and not self._taken_over(folder, self._from):
            checkpoints = self.root / self._from["trial"] / "checkpoints"
            try:
                return self._from["trial"], load_checkpoint(checkpoints, self._from["iteration"])
            except UserError:  # the other one has continued, and keeps its newest ones only
                return self._from["trial"], load_checkpoint(checkpoints)
        if has_checkpoint(folder.checkpoints):
            own = load_checkpoint(folder.checkpoints)
            if own.fingerprint != run_fingerprint(self.experiment):  # Tune forgot a change of settings when its process was killed
                return self.trial_id, own
        return "", None

    def _taken_over(self, folder: RunFolder, wanted: Mapping[str, Any]) -> bool:
        """Whether an earlier start of this trial continued from there already, with the same values."""
        last = steps[-1] if (steps := _lineage(folder)) else {"from": None}
        return last["from"] == wanted["trial"] and last["iteration"] >= wanted["iteration"] and last["values"] == values_of(self.config)


def _take_rows(folder: RunFolder, source: Path, iteration: int) -> None:
    """Append the rows of the run at `source` from where those of `folder` end, up to `iteration`."""
    own = folder.metrics()
    known = own[-1]["iteration"] if own else 0
    for row in RunFolder.open(source).metrics() if known < iteration else []:
        if known < row["iteration"] <= iteration:
            folder.append_metrics(row)


def _lineage(folder: RunFolder) -> list[dict[str, Any]]:
    return folder.read_json(LINEAGE)["steps"] if (folder.path / LINEAGE).is_file() else []


def _note(folder: RunFolder, step: Mapping[str, Any]) -> None:
    """Add a step to `lineage.json`."""
    folder.write_json(LINEAGE, {"steps": [*_lineage(folder), dict(step)]})
