"""`TextTrainable`: a run of language agents as a Tune trainable. One `step` is one stage.

    Tuner(TextTrainable, param_space={"experiment": config.model_dump(), "run_root": "/shared/runs"})

Decisions that matter here:
- the run folder lies on storage that all nodes see, under a name made from the experiment itself: a trial that Tune starts again on
  another node finds it and goes on from the stage that was begun last. A checkpoint of Tune's only names the folder: all that
  matters is in the folder already when a stage is over;
- a stage that waits for fine-tuning can take hours: it is Tune's trial that waits, holding one CPU. Set `max_failures` in Tune's
  FailureConfig to have trials started again.
"""

import json
from pathlib import Path
from typing import Any

from ray import tune

from nip_ray.config.experiment import TextExperimentConfig
from nip_ray.config.load import config_to_yaml
from nip_ray.config.rules import check
from nip_ray.errors import UserError
from nip_ray.runs.checkpoint import fingerprint
from nip_ray.runs.folder import CONFIG, RunFolder, environment
from nip_ray.sweeps.told import experiment_of
from nip_ray.text.parts import Parts, prepare
from nip_ray.text.run import finish, new_state, reopened, with_absolute_paths
from nip_ray.text.state import STATE, load_state, save_state
from nip_ray.text.trainer import TextTrainer

POINTER = "run.json"


class TextTrainable(tune.Trainable):
    """config: "experiment" (keys as in a config file, with whatever Tune chose in it), "run_root" (a folder that all nodes see), and as one
    likes what `nip_ray.sweeps.trainable.ExperimentTrainable` can be told.
    """

    def setup(self, config: dict[str, Any]) -> None:
        """Make the run folder, or open the one of an earlier start of this trial. Raises UserError as `run_text_experiment` does."""
        made = experiment_of(config)
        if not isinstance(made, TextExperimentConfig):
            raise UserError("TextTrainable trains language models; for networks take nip_ray.sweeps.trainable.ExperimentTrainable")
        experiment = with_absolute_paths(made)
        check(experiment)
        mark = fingerprint(
            experiment.model_dump(mode="json", exclude={"format_version", "iterations", "budget", "talk", "runtime", "tracking"})
        )[:12]
        path = Path(config["run_root"]).resolve() / f"{experiment.name}-{mark}"
        known = (path / CONFIG).is_file()
        self.folder = RunFolder.open(path, write=True) if known else RunFolder.create(path, config_to_yaml(experiment))
        if not (path / STATE).is_file():
            self.folder.write_json("environment.json", environment())
            save_state(self.folder, new_state(experiment))
        state = reopened(load_state(self.folder), experiment)
        self.trainer = TextTrainer(experiment, self.folder, Parts(experiment, self.folder, prepare(experiment, path), state.jobs), state)

    def step(self) -> dict[str, Any]:
        """One stage. Returns the newest figures, `stage`, `text_iteration` (iterations that are over), and `done` after the last."""
        trainer = self.trainer
        stage = trainer.state.stage
        if not trainer.state.over:
            stage = trainer.run_stage()
        if trainer.state.over:
            finish(self.folder, trainer)
        row = next(iter(self.folder.metrics()[-1:]), {})
        row.pop("iteration", None)
        return {
            **row,
            "run_dir": str(self.folder.path),
            "stage": stage,
            "text_iteration": trainer.state.iteration,
            "done": trainer.state.over,
        }

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        """Name the run folder."""
        Path(checkpoint_dir, POINTER).write_text(json.dumps({"run_dir": str(self.folder.path), "run_id": self.trainer.state.run_id}))

    def load_checkpoint(self, checkpoint_dir: str) -> None:
        """The folder is open already; that it is the same is checked. Raises UserError when it is not."""
        found = json.loads(Path(checkpoint_dir, POINTER).read_text())
        if found["run_id"] != self.trainer.state.run_id:
            raise UserError(f"the checkpoint is of the run in {found['run_dir']}, not of the one in {self.folder.path}")

    def cleanup(self) -> None:
        """Gives everything back."""
        self.trainer.close()
        self.folder.close()
