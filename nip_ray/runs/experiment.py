"""`run_experiment`: from a config to a trained verifier in a run folder; `resume_experiment`: from where it stopped.

Decisions that matter here:
- a row of metrics is written before the checkpoint that relies on it; on resume rows after the checkpoint are dropped
  and made again;
- nothing random has a state to save: every draw is seeded by (seed, purpose, iteration), so checkpoints hold weights,
  optimizers and counters only, and a resumed run is identical to an uninterrupted one (CPU, same machine kind);
- the final evaluation and the report are made from the last checkpoint's weights, so that they can be repeated at any
  time;
- code for language agents is imported only for configs of language agents.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nip_ray.cluster.interrupts import interruptible
from nip_ray.cluster.process import prepare_process
from nip_ray.config.changes import changes_of, refuse_fixed, resumed_config
from nip_ray.config.experiment import ExperimentConfig, TextExperimentConfig
from nip_ray.config.load import config_of, config_to_yaml, load_config, plain
from nip_ray.config.paths import with_absolute_paths
from nip_ray.config.plugins import know
from nip_ray.config.rules import check, warnings_of
from nip_ray.config.text_rules import fine_tuning_rule, learns_from_tokens
from nip_ray.errors import UserError, refuse_missing
from nip_ray.evaluation.solo_run import solo_run_score
from nip_ray.progress import say, say_stage
from nip_ray.runs.session import Session, to_the_end
from nip_ray.runs.stopping import stopped_at
from nip_ray.storage.checkpoint import Checkpoint
from nip_ray.storage.folder import CONFIG, EXPORTED, RunFolder, environment
from nip_ray.storage.identity import ExperimentResult, is_finished
from nip_ray.tracking import check_trackers

if TYPE_CHECKING:
    from nip_ray.text.parts import Prepared, TextState


@interruptible()
def run_experiment(
    config: ExperimentConfig | TextExperimentConfig | Mapping[str, Any] | Path | str,
    run_dir: Path | str | None = None,
    *,
    quiet: bool = False,
) -> ExperimentResult:
    """Train as in `config`, in the new run folder `run_dir` (None: ``runs/NAME-seedSEED``).

    config: a config, its keys as in YAML, a YAML file, or the folder of a run whose config is reused.

    Raises UserError for an unusable config or folder, before Ray starts or a call is made; TrainingError when training
    fails, or the budget of language agents is spent, with all paid results saved.
    """
    config = config_of(config)
    check(config)
    _refuse_without_ray(config)
    check_trackers(config.tracking)
    config = with_absolute_paths(config)
    path = Path(run_dir) if run_dir is not None else Path("runs") / f"{config.name}-seed{config.seed}"
    if isinstance(config, TextExperimentConfig):
        return _run_text(config, path, quiet)
    try_files(config, path)
    with RunFolder.create(path, config_to_yaml(config)) as folder:
        know(config.plugins, keep=True)
        folder.write_json("environment.json", environment())
        say_stage(f"run {folder.path}", quiet)
        session = Session(config, folder, quiet=quiet)
        for text in warnings_of(config):
            session.warn(text)
        return _played(session, None)


@interruptible()
def resume_experiment(
    run_dir: Path | str, *, iterations: int | None = None, settings: Sequence[str] = (), quiet: bool = False
) -> ExperimentResult:
    """Resume the run in `run_dir` from its newest undamaged checkpoint (from the start if there is none yet), a run of
    language agents from the stage that was started last.

    iterations: a new total. settings: "key=value" of what may change (`nip_ray.config.changes`), for example
    ``learners.num_learners=2``. Raises UserError when `run_dir` is not a run, its checkpoints belong to another config,
    or the new total is below the finished iterations or changes an annealed learning rate.
    """
    with RunFolder.open(run_dir) as folder:
        if (folder.path / EXPORTED).is_file():
            raise UserError(
                f"{run_dir}: is an export, which has nothing to learn on from; start a new run, with initial_weights or"
                " base_run"
            )
        stored = load_config(folder.path / CONFIG, checked=False)
        is_finished(folder)  # a damaged name of the run raises before anything changes
    # forbidden changes are refused also while another process holds the run
    _refuse_without_ray(resumed_config(stored, settings, iterations))
    with RunFolder.open(run_dir, write=True) as folder:
        # again: the previous owner of the folder may have changed it
        stored = load_config(folder.path / CONFIG, checked=False)
        config = resumed_config(stored, settings, iterations)
        if isinstance(config, TextExperimentConfig):
            return _resume_text(config, folder, quiet)
        check_trackers(config.tracking)
        session = Session(config, folder, quiet=quiet)
        checkpoint = session.newest()  # raises before anything changes
        rows = folder.metrics()
        stopped = stopped_at(rows, config.stop)
        if stopped is not None and iterations is not None:
            session.warn(f"stop ended this run after {stopped} iterations; to add more, give --set stop=null as well")
        total = stopped or config.iterations
        whole = [row["iteration"] for row in rows] == list(range(1, total + 1))
        reached = total if checkpoint is None else checkpoint.iteration
        if whole and reached == total and (ended := _ended(folder, config, quiet, total)):
            return ended
        if checkpoint is None and rows:
            repeated = f"{rows[-1]['iteration']} iterations are done again"
            session.warn(f"{folder.checkpoints}: there is no checkpoint, the run begins again; {repeated}")
        know(config.plugins, keep=True)
        say_stage(f"run {folder.path}, from iteration {0 if checkpoint is None else checkpoint.iteration}", quiet)
        return _played(session, checkpoint)


def resume_as(
    config: ExperimentConfig | TextExperimentConfig, run_dir: Path | str, *, quiet: bool = False
) -> ExperimentResult:
    """Resume the run in `run_dir` with the changes in `config`; a finished run stays as it is.

    Raises UserError if `config` differs in a setting that a resumed run may not change.
    """
    folder = RunFolder.open(run_dir)
    know(config.plugins)
    stored = load_config(folder.path / CONFIG, checked=False)
    wanted = with_absolute_paths(config)
    if type(config) is not type(stored):
        raise UserError(f"{run_dir}: holds a run of another kind; name another folder")
    changes = list(changes_of(plain(stored), plain(wanted)))
    refuse_fixed(type(config), changes, run_dir)
    return resume_experiment(run_dir, settings=changes, quiet=quiet)


def _played(session: Session, checkpoint: Checkpoint | None) -> ExperimentResult:
    """Start the session, from a checkpoint if there is one, and run it to its end."""
    try:
        session.start(checkpoint)
        session.folder.replace_config(config_to_yaml(session.config))  # not before: a setting may be impossible
        return ExperimentResult(session.folder.path, to_the_end(session), session.iteration)
    finally:
        session.close()


def _ended(
    folder: RunFolder, config: ExperimentConfig | TextExperimentConfig, quiet: bool, total: int
) -> ExperimentResult | None:
    """Print and return the result of a run of `total` iterations, finished under its config; None for any other."""
    if not is_finished(folder) or config_to_yaml(config) != folder.config_yaml():
        return None
    if not quiet:
        how = f"all {total} iterations are done; --iterations adds more"
        if total < config.iterations:
            how = f"`stop` ended it after iteration {total} of {config.iterations}; --set stop=null continues"
        say(f"{folder.path}: the run is finished, {how}")
    return ExperimentResult(folder.path, folder.figures(), total)


def _refuse_without_ray(config: ExperimentConfig | TextExperimentConfig) -> None:
    """Raise UserError where the run needs Ray and it is not installed."""
    if isinstance(config, TextExperimentConfig):
        from nip_ray.text.parts import works_on_ray

        if not works_on_ray(config):
            return
    refuse_missing("ray", "ray")


def try_files(config: ExperimentConfig, run_dir: Path | None = None) -> None:
    """Read the user's files (data, plugins, other runs) before a run folder is made for them. Kept for the run.

    run_dir: its future folder, beside which fetched artifacts are kept (None: not kept). Raises UserError for
    unreadable or inconsistent input.
    """
    solo_run_score(config)
    data = getattr(config.scenario, "data", None)
    if config.plugins or getattr(data, "train", None) or getattr(data, "test", None):
        from nip_ray.rllib.shared import scenario_of

        prepare_process(config.runtime.num_threads)
        scenario_of(config.model_dump(mode="json"))
    if config.initial_weights:
        from nip_ray.runs.initial_weights import initial_weights

        initial_weights(config, run_dir)


# Runs of language agents.


def _run_text(config: TextExperimentConfig, path: Path, quiet: bool) -> ExperimentResult:
    from nip_ray.text.parts import PROVIDERS, check_providers, prepare, save_state, store_abilities
    from nip_ray.text.training.trainer import new_state, train

    state = new_state(config)
    abilities = asyncio.run(check_providers(config))
    prepared = prepare(config)
    with RunFolder.create(path, config_to_yaml(config)) as folder:
        know(config.plugins, keep=True)
        folder.write_json("environment.json", environment())
        for text in warnings_of(config):
            say(f"warning: {text}")
        store_abilities(folder.path / PROVIDERS, abilities)
        save_state(folder, state)
        return train(config, folder, prepared, state, quiet)


def _resume_text(config: TextExperimentConfig, folder: RunFolder, quiet: bool) -> ExperimentResult:
    from nip_ray.text.parts import PROVIDERS
    from nip_ray.text.training.trainer import train

    if ended := _ended(folder, config, quiet, config.iterations):
        return ended
    check_trackers(config.tracking)
    prepared, state = continued(config, folder, folder.path / PROVIDERS)
    know(config.plugins, keep=True)
    if mended := folder.mend_metrics(range(1, state.iteration + 1)):
        say(f"warning: {mended}")
    return train(config, folder, prepared, state, quiet)


def continued(config: TextExperimentConfig, folder: RunFolder, known: Path) -> "tuple[Prepared, TextState]":
    """The input and state of a run of language agents: its state in `folder`, or the beginning in a new one.

    known: the file of the providers' known abilities.
    """
    from nip_ray.text.parts import (
        STATE,
        check_providers,
        known_abilities,
        load_state,
        prepare,
        save_state,
        store_abilities,
    )
    from nip_ray.text.training.trainer import new_state

    if not (folder.path / STATE).is_file():  # killed before the first stage
        save_state(folder, new_state(config))
    state = reopened(load_state(folder), config)
    store_abilities(known, asyncio.run(check_providers(config, known_abilities(known))))
    return prepare(config, folder.path), state


def reopened(state: "TextState", config: TextExperimentConfig) -> "TextState":
    """`state` under a config whose number of iterations may have changed: a finished run continues if now longer.

    Raises UserError when more iterations are already done.
    """
    if state.iteration > config.iterations:
        raise UserError(f"iterations: {state.iteration} are done already; ask for more than that")
    if not state.over or state.iteration == config.iterations:
        return state
    rerun = config.base_run is not None and config.base_run.kind == "rerun_tests"
    if rerun or learns_from_tokens(config) or fine_tuning_rule(config).fine_tune_after_last:
        return replace(state, over=False)
    return replace(state, over=False, iteration=state.iteration - 1, stage="create_jobs")
