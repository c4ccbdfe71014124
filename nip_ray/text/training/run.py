"""Doing all stages of a run of language agents that are left, from its folder to its report."""

from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

from nip_ray.cluster.spot import spot_notices
from nip_ray.config.experiment import TextExperimentConfig
from nip_ray.config.text_rules import groups, language_agents, learns_from_tokens
from nip_ray.evaluation.report import write_report
from nip_ray.progress import progress_line, say_stage
from nip_ray.secrets import Redactor
from nip_ray.storage.folder import RunFolder
from nip_ray.storage.identity import ExperimentResult, mark_finished, run_id
from nip_ray.text.parts import Parts, Prepared, TextState, base_state, first_state
from nip_ray.text.training.trainer import TextTrainer
from nip_ray.tracking import RunInfo, open_trackers

if TYPE_CHECKING:
    from nip_ray.text.training.policy_gradient import PolicyGradientTrainer

AnyTrainer: TypeAlias = "TextTrainer | PolicyGradientTrainer"
"""Of rules with fine-tuning jobs, or on tokens."""


def train(config: TextExperimentConfig, folder: RunFolder, prepared: Prepared, state: TextState, quiet: bool) -> ExperimentResult:
    """Do all stages that are left, then write the evaluation and the report."""
    say_stage(f"run {folder.path}", quiet)
    trainer = begin(config, folder, prepared, state)
    try:
        with progress_line(config.name, state.iteration, config.iterations, quiet) as report, spot_notices(config.runtime):
            while not trainer.state.over:
                before = trainer.state.iteration

                def show(over: int, total: int, done: int = before, stage: str = trainer.state.stage) -> None:
                    report(done, {"stage": f"{stage} {over}/{total}"})

                trainer.progress = show
                trainer.run_stage()
                if trainer.state.iteration > before:
                    report(trainer.state.iteration, next(iter(folder.metrics()[-1:]), {}))
        say_stage("evaluation", quiet)
        return finish(folder, trainer)
    finally:
        trainer.close()


def begin(
    config: TextExperimentConfig,
    folder: RunFolder,
    prepared: Prepared,
    state: TextState,
    *,
    group: str | None = None,
    in_trial: bool = False,
) -> AnyTrainer:
    """Everything that works on a run, its trackers too. group: the sweep that it belongs to. in_trial: in a trial of Tune's.

    What is written to logs from here on passes the filter of secrets. Raises UserError for missing keys and libraries.
    """
    Redactor([name for provider in config.providers.values() if (name := getattr(provider, "api_key_variable", None))]).install()
    about = RunInfo(
        folder.path,
        run_id(folder, config.name, config.seed),
        config.name,
        config.model_dump(mode="json"),
        group,
        resumed_from=num_measured(state),
    )
    if learns_from_tokens(config):
        from nip_ray.text.training.policy_gradient import PolicyGradientTrainer

        return PolicyGradientTrainer(config, folder, prepared, state, open_trackers(config.tracking, about))
    parts = Parts(config, folder, prepared, in_trial=in_trial)
    return TextTrainer(config, folder, parts, state, open_trackers(config.tracking, about))


def finish(folder: RunFolder, trainer: AnyTrainer) -> ExperimentResult:
    """Write `evaluation.json`, `cost.json` and the report of a run that is over."""
    record = trainer.final_record()
    if record is not None:
        folder.write_json("evaluation.json", record)
    trainer.write_cost()
    write_report(folder.path)
    mark_finished(folder)
    trainer.finished = True
    return ExperimentResult(folder.path, folder.figures(), trainer.config.iterations)


def num_measured(state: TextState) -> int:
    """Iterations whose figures stand: no stage that is still to be done writes them again."""
    return state.iteration + (len(state.history) > state.iteration and state.stage != "test")


def new_state(config: TextExperimentConfig) -> TextState:
    """Where a run begins: with the models of the config, or with those of its base run."""
    settings = language_agents(config)
    bases = {group: settings[agents[0]].model for group, agents in groups(config).items()}
    if config.base_run is not None:
        return base_state(config, first_state(bases))
    return replace(first_state(bases), stage="format_warmup" if config.algorithm.format_warmup else "sample")
