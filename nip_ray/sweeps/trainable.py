"""`ExperimentTrainable`: a run with networks as a Tune trainable; one `step` is an iteration, or several.

    Tuner(ExperimentTrainable, param_space={
        "experiment": {"scenario": {"name": "message_game"}, ...},       # keys as in a config file
        "values": {"algorithm.lr": tune.loguniform(1e-4, 1e-2)},         # changes to it, by dotted key
        "run_root": "/shared/runs",
    })

Decisions that matter here:
- Tune counts its own reports from the checkpoint that it knows, and the run continues from its own newest one. So the
  run reports its progress: `training_iteration` is the number of reports of its iterations, also after a restore;
- a trial that population-based training continues from another's checkpoint keeps its own rows up to there, and copies
  the other's for iterations that it had not reached itself. `lineage.json` records the source, the iteration and the
  values.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ray.tune.result import SHOULD_CHECKPOINT, TRAINING_ITERATION

from nip_ray.config.changes import run_fingerprint
from nip_ray.config.experiment import ExperimentConfig
from nip_ray.config.load import config_to_yaml
from nip_ray.errors import TrainingError, UserError
from nip_ray.runs.session import Session
from nip_ray.storage.checkpoint import Checkpoint, has_checkpoint, load_checkpoint, rewind_checkpoints
from nip_ray.storage.folder import RunFolder
from nip_ray.sweeps.trial import RunTrainable, values_of

LINEAGE = "lineage.json"


class ExperimentTrainable(RunTrainable[Session, ExperimentConfig]):
    """config: see `nip_ray.sweeps.trial.RunTrainable`. A step also returns `training_iteration`."""

    kind, ending, format = ExperimentConfig, TrainingError, "nip_ray.trial"

    def advance(self, work: Session) -> dict[str, Any]:
        before, size = work.saved_at, self.config.get("iterations_per_report", 1)
        for _ in range(size - work.iteration % size):  # up to a multiple, also after a restart
            if not work.over:
                work.step()
        if work.over:
            work.finish()
        return {
            "done": work.over,
            TRAINING_ITERATION: -(-work.iteration // size),
            SHOULD_CHECKPOINT: work.saved_at != before,
        }

    def reached(self, work: Session) -> dict[str, Any]:
        return work.figures

    def place(self) -> dict[str, Any]:
        if self.work is not None:
            self.work.save()
        return {"trial": self.trial_id, "iteration": 0 if self.work is None else self.work.iteration}

    def save_interrupted(self, work: Session) -> None:
        work.save_interrupted()

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Switch to the next trial, with this config, in this process. Errors are raised by the first `step`: Tune
        retries failures in a step, but none here."""
        try:
            self.cleanup()
            self.setup(new_config)
        except Exception as error:
            self.work = self.folder = None
            self._broken = error
        return True

    def begin(self, folder: RunFolder) -> Session:
        """The session: from another trial's checkpoint, or its own newest, or the start."""
        session = Session(self.experiment, folder, quiet=True, group=self.config.get("group"))
        try:
            source, checkpoint = self._other_source(folder)
            if checkpoint is None:
                session.start(session.newest())
            else:
                _take_rows(folder, self.root / source, checkpoint.iteration)
                session.start(checkpoint, foreign=True)
                session.save()
                # from here on the folder only has checkpoints of its own config
                rewind_checkpoints(folder.checkpoints, checkpoint.iteration, alone=True)
                folder.replace_config(config_to_yaml(self.experiment))
                step = {"iteration": checkpoint.iteration, "from": source, "values": values_of(self.config)}
                folder.write_json(LINEAGE, {"steps": [*_lineage(folder), step]})
        except BaseException:
            session.close()
            raise
        return session

    def _other_source(self, folder: RunFolder) -> tuple[str, Checkpoint | None]:
        """(trial, its checkpoint) to continue from if it is not simply this run's own newest, else ("", None)."""
        if (
            self.source is not None
            and self.source["trial"] != self.trial_id
            and not self._taken_over(folder, self.source)
        ):
            checkpoints = self.root / self.source["trial"] / "checkpoints"
            try:
                return self.source["trial"], load_checkpoint(checkpoints, self.source["iteration"])
            except UserError:  # the other one has continued, and keeps only its newest
                return self.source["trial"], load_checkpoint(checkpoints)
        if has_checkpoint(folder.checkpoints):
            own = load_checkpoint(folder.checkpoints)
            # Tune forgets a change of settings when its process is killed
            if own.fingerprint != run_fingerprint(self.experiment):
                return self.trial_id, own
        return "", None

    def _taken_over(self, folder: RunFolder, wanted: Mapping[str, Any]) -> bool:
        """True if an earlier start of this trial already continued from there, with the same values."""
        last = steps[-1] if (steps := _lineage(folder)) else {"from": None}
        return (
            last["from"] == wanted["trial"]
            and last["iteration"] >= wanted["iteration"]
            and last["values"] == values_of(self.config)
        )


def _take_rows(folder: RunFolder, source: Path, iteration: int) -> None:
    """Append the rows of the run at `source` from where those of `folder` end, up to `iteration`."""
    own = folder.metrics()
    known = own[-1]["iteration"] if own else 0
    for row in RunFolder.open(source).metrics() if known < iteration else []:
        if known < row["iteration"] <= iteration:
            folder.append_metrics(row)


def _lineage(folder: RunFolder) -> list[dict[str, Any]]:
    return folder.read_json(LINEAGE)["steps"] if (folder.path / LINEAGE).is_file() else []
