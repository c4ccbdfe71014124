"""`ExperimentTrainable`: a run with networks as a Tune trainable; one `step` is an iteration, or several.

    Tuner(ExperimentTrainable, param_space={
        "experiment": {"scenario": {"name": "message_game"}, ...},       # keys as in a config file
        "values": {"algorithm.lr": tune.loguniform(1e-4, 1e-2)},         # laid over it, by dotted key
        "run_root": "/shared/runs",
    })

Decisions that matter here:
- a trial is a run: it has a run folder, on storage that all nodes see, under `run_root/TRIAL_ID`, with the checkpoints, metrics and report
  of any run. A checkpoint of Tune's names trial and iteration only: so nothing is written twice, and what Tune restores has
  checksums and falls back to the newest good one;
- what would fail again is not tried again: a config that cannot work and a NaN end the trial with the reason in its last result
  (`failed`). A lost process raises, and Tune starts the trial again from its newest checkpoint;
- a trial that population-based training sends on from another's checkpoint keeps its own rows up to there; `lineage.json` says from whom.
"""

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ray import tune
from ray.tune.result import SHOULD_CHECKPOINT

from nip_ray.config.experiment import ExperimentConfig
from nip_ray.config.load import config_to_yaml
from nip_ray.config.rules import check
from nip_ray.errors import LearnerLost, TrainingError, UserError
from nip_ray.runs.checkpoint import Checkpoint, load_checkpoint
from nip_ray.runs.experiment import with_absolute_paths
from nip_ray.runs.folder import CONFIG, RunFolder, environment, write_atomically
from nip_ray.runs.resources import trial_bundles
from nip_ray.runs.session import Session
from nip_ray.sweeps.told import experiment_of, values_of

POINTER, LINEAGE = "run.json", "lineage.json"
_LOCK_WAIT_S = 120.0  # for the lock of a trial whose node is gone: a file server gives it back after a while


class ExperimentTrainable(tune.Trainable):
    """config: "experiment" and "run_root", and as one likes "values" (dotted key -> value), "spaces" (dotted key -> the search space that a
    value was drawn from, as in a sweep file), "group" (the sweep's name, for trackers), "iterations_per_report" (default 1), "seeds"
    (of which Tune's `Repeater` chooses). A mapping may be given as JSON text, in which Tune does not look for spaces of its own.
    """

    def setup(self, config: dict[str, Any]) -> None:
        """Make the run folder, or open the one of an earlier start of this trial. Nothing is built before the first `step`."""
        self.session: Session | None = None
        self._from: dict[str, Any] | None = None
        self._fault: str | None = None
        try:
            self.experiment = with_absolute_paths(_of_networks(config))
            check(self.experiment)
            self.root = Path(config["run_root"]).resolve()
            self.folder = opened(self.root / self.trial_id, self.experiment)
        except UserError as error:
            self._fault = str(error)

    def step(self) -> dict[str, Any]:
        """The next iterations. Returns the newest figures by their keys in metrics.jsonl, `iteration`, `run_dir`, `done`, and `failed` (the
        reason) for a trial that need not be tried again.
        """
        try:
            if self._fault is not None:
                raise UserError(self._fault)
            if self.session is None:
                self.session = self._begin()
            before = self.session.saved_at
            for _ in range(self.config.get("iterations_per_report", 1)):
                if not self.session.over:
                    self.session.step()
            if self.session.over:
                self.session.finish()
        except LearnerLost:
            raise
        except (UserError, TrainingError) as error:
            return {"done": True, "failed": " ".join(str(error).split())}
        saved = self.session.saved_at != before
        return {**self.session.figures, "run_dir": str(self.folder.path), "done": self.session.over, SHOULD_CHECKPOINT: saved}

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        """Save the run, and say where it stands."""
        if self.session is not None:
            self.session.save()
        found = {"trial": self.trial_id, "iteration": 0 if self.session is None else self.session.iteration}
        Path(checkpoint_dir, POINTER).write_text(json.dumps({"format": "nip_ray.trial", "version": 1, **found}))

    def load_checkpoint(self, checkpoint_dir: str) -> None:
        """Remember where to go on; see `step`. Raises UserError for what `save_checkpoint` did not write."""
        found = json.loads(Path(checkpoint_dir, POINTER).read_text())
        if found.get("format") != "nip_ray.trial" or found.get("version") != 1:
            raise UserError(f"{checkpoint_dir}: no checkpoint of a trial, or one of a newer version")
        self._from = found

    def cleanup(self) -> None:
        """Give actors, trackers and the folder back."""
        if self.session is not None:
            self.session.close()
        if self._fault is None:
            self.folder.close()

    @classmethod
    def default_resource_request(cls, config: dict[str, Any]) -> tune.PlacementGroupFactory:
        """CPUs and GPUs of the main process, then of every env runner and learner."""
        return tune.PlacementGroupFactory(trial_bundles(_of_networks(config)))

    def _begin(self) -> Session:
        """The session, standing where this trial is to go on: another trial's checkpoint, or its own newest, or the start."""
        session = Session(self.experiment, self.folder, quiet=True, group=self.config.get("group"))
        donor = self._donor()
        write_atomically(self.folder.path / CONFIG, config_to_yaml(self.experiment).encode())
        if donor is None:
            session.start(session.newest())
            return session
        session.start(donor, foreign=True)
        session.save()  # from here on the folder has no checkpoint but those of its own config
        assert self._from is not None
        _note(self.folder, {"iteration": donor.iteration, "from": self._from["trial"], "values": values_of(self.config)})
        return session

    def _donor(self) -> Checkpoint | None:
        """The checkpoint of another trial that Tune wants this one to go on from, if that is so and it can be read."""
        if self._from is None or self._from["trial"] == self.trial_id:
            return None
        return load_checkpoint(self.root / self._from["trial"] / "checkpoints", self._from["iteration"])


def _of_networks(config: Mapping[str, Any]) -> ExperimentConfig:
    made = experiment_of(config)
    if not isinstance(made, ExperimentConfig):
        raise UserError("ExperimentTrainable trains networks; for language models take nip_ray.text.trainable.TextTrainable")
    return made


def opened(path: Path, experiment: ExperimentConfig) -> RunFolder:
    """The run folder of a trial, open for writing. Waits for the lock of an earlier start that could not give it back."""
    deadline = time.monotonic() + _LOCK_WAIT_S
    while (path / CONFIG).is_file():
        try:
            return RunFolder.open(path, write=True)
        except UserError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.5)
    folder = RunFolder.create(path, config_to_yaml(experiment))
    folder.write_json("environment.json", environment())
    return folder


def _note(folder: RunFolder, step: Mapping[str, Any]) -> None:
    """Add a step to `lineage.json`."""
    steps = folder.read_json(LINEAGE)["steps"] if (folder.path / LINEAGE).is_file() else []
    folder.write_json(LINEAGE, {"steps": [*steps, dict(step)]})
