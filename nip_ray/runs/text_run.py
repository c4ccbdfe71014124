"""`run_text_experiment` and `resume_text_experiment`: a run of language agents, from a config or from wherever it was stopped."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from nip_ray.cluster.interrupts import interruptible
from nip_ray.config.changes import resumed_config
from nip_ray.config.experiment import TextExperimentConfig
from nip_ray.config.load import config_to_yaml, load_config
from nip_ray.config.paths import with_absolute_paths
from nip_ray.config.rules import check, warnings_of
from nip_ray.config.text_rules import fine_tuning_rule, learns_from_tokens
from nip_ray.errors import UserError
from nip_ray.progress import say
from nip_ray.runs.ended import ended_run
from nip_ray.storage.folder import CONFIG, RunFolder, environment
from nip_ray.storage.identity import ExperimentResult
from nip_ray.storage.stored_config import write_config
from nip_ray.text.parts import (
    PROVIDERS,
    STATE,
    TextState,
    check_providers,
    known_abilities,
    load_state,
    prepare,
    save_state,
    store_abilities,
)
from nip_ray.text.training.trainer import new_state, train
from nip_ray.tracking import check_trackers


@interruptible()
def run_text_experiment(config: TextExperimentConfig, run_dir: Path | str | None = None, *, quiet: bool = False) -> ExperimentResult:
    """Train as `config` says, in the new run folder `run_dir` (none: ``runs/NAME-seedSEED``).

    Raises UserError for what cannot work, before a call is made; TrainingError when training breaks down or the budget is spent, with
    everything saved that was paid for.
    """
    check(config)
    check_trackers(config.tracking)
    config = with_absolute_paths(config)
    path = Path(run_dir) if run_dir is not None else Path("runs") / f"{config.name}-seed{config.seed}"
    state = new_state(config)
    abilities = asyncio.run(check_providers(config))
    prepared = prepare(config)
    with RunFolder.create(path, config_to_yaml(config)) as folder:
        folder.write_json("environment.json", environment())
        for text in warnings_of(config):
            say(f"warning: {text}")
        store_abilities(folder.path / PROVIDERS, abilities)
        save_state(folder, state)
        return train(config, folder, prepared, state, quiet)


@interruptible()
def resume_text_experiment(
    run_dir: Path | str, *, iterations: int | None = None, settings: Sequence[str] = (), quiet: bool = False
) -> ExperimentResult:
    """Resume the run in `run_dir` from the stage that was begun last.

    iterations: a new total. settings: "key=value" of what may change (`nip_ray.config.changes`), for example ``budget.usd=50``.
    Raises UserError as `run_text_experiment` does, and for a setting that may not change.
    """
    with RunFolder.open(run_dir, write=True) as folder:
        stored = load_config(folder.path / CONFIG, checked=False)
        if not isinstance(stored, TextExperimentConfig):
            raise UserError(f"{folder.path}: not a run of language models")
        config = resumed_config(stored, settings, iterations)
        if ended := ended_run(folder, config, quiet):
            return ended
        check_trackers(config.tracking)
        if not (folder.path / STATE).is_file():  # killed before the first stage began
            save_state(folder, new_state(config))
        state = reopened(load_state(folder), config)
        known = folder.path / PROVIDERS
        store_abilities(known, asyncio.run(check_providers(config, known_abilities(known))))
        prepared = prepare(config, folder.path)
        write_config(folder.path / CONFIG, config_to_yaml(config))
        if mended := folder.mend_metrics(range(1, state.iteration + 1)):
            say(f"warning: {mended}")
        return train(config, folder, prepared, state, quiet)


def reopened(state: TextState, config: TextExperimentConfig) -> TextState:
    """`state` under a config whose number of iterations may have changed: a run that was over continues where it would not have ended.

    Raises UserError when more iterations are done already.
    """
    if state.iteration > config.iterations:
        raise UserError(f"iterations: {state.iteration} are done already; ask for more than that")
    if not state.over or state.iteration == config.iterations:
        return state
    rerun = config.base_run is not None and config.base_run.kind == "rerun_tests"
    if rerun or learns_from_tokens(config) or fine_tuning_rule(config).fine_tune_after_last:
        return replace(state, over=False)
    return replace(state, over=False, iteration=state.iteration - 1, stage="create_jobs")
