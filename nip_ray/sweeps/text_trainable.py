"""`TextTrainable`: a run of language agents as a Tune trainable. One `step` is one stage.

    Tuner(TextTrainable, param_space={"experiment": config.model_dump(mode="json"), "run_root": "/shared/runs"})

Decisions that matter here:
- a run folder is complete as soon as a stage is over. A trial that Tune restarts, anywhere, resumes at the stage that
  was started last, with the earlier replies and jobs;
- a missing key and a spent budget end the trial. A failed job and a provider that does not answer raise: Tune retries;
- `text_iteration` counts the iterations with metrics. So a scheduler stops a trial after the test, before the next
  models are paid for;
- a stage that waits for fine-tuning can take hours, during which Tune's trial holds its resources.
"""

from typing import Any

from ray.tune.result import SHOULD_CHECKPOINT

from nip_ray.config.experiment import TextExperimentConfig
from nip_ray.errors import UserError
from nip_ray.runs.experiment import continued
from nip_ray.storage.folder import RunFolder
from nip_ray.sweeps.trial import RunTrainable
from nip_ray.text.costs.prices import BudgetExhausted
from nip_ray.text.parts import PROVIDERS
from nip_ray.text.training.trainer import AnyTrainer, begin, finish, num_measured


class TextTrainable(RunTrainable[AnyTrainer, TextExperimentConfig]):
    """config: see `nip_ray.sweeps.trial.RunTrainable`. `iterations_per_report` is ignored: every stage is reported, as
    `stage`, with `text_iteration`."""

    kind, ending, format = TextExperimentConfig, BudgetExhausted, "nip_ray.text_trial"

    def begin(self, folder: RunFolder) -> AnyTrainer:
        # abilities are known to all trials
        prepared, state = continued(self.experiment, folder, folder.path.parent / PROVIDERS)
        if self.source is not None and self.source["run"] not in (None, state.run_id):
            raise UserError(
                f"{folder.path} is another run than the one that the checkpoint is of; language models cannot be moved"
                " that way"
            )
        return begin(self.experiment, folder, prepared, state, group=self.config.get("group"), in_trial=True)

    def advance(self, work: AnyTrainer) -> dict[str, Any]:
        stage = work.state.stage if work.state.over else work.run_stage()
        if work.state.over:
            finish(work.folder, work)
        return {"done": work.state.over, "stage": stage, SHOULD_CHECKPOINT: True}

    def reached(self, work: AnyTrainer) -> dict[str, Any]:
        where = {"run_dir": str(work.folder.path), "stage": work.state.stage}
        return {**work.folder.figures(), **where, "text_iteration": num_measured(work.state)}

    def place(self) -> dict[str, Any]:
        return {"run": None if self.work is None else self.work.state.run_id}
