"""One YAML file, one run: `run_runner("tune_configs/runner_cartpole.yaml")`.

Decisions that matter here:
- a run folder like any other trainer's: config.yaml (every key), metrics.jsonl (rows whose `iteration` is the
  timestep), checkpoints with sums, environment.json; `runner_evaluation.json` has the metrics of the final evaluation.
  For an experiment it also keeps the config with every key (experiment.yaml), and continues with that, even if the
  named file changes;
- a checkpoint holds weights, optimizers, replay, counters and statistics. A resumed run of an experiment is identical
  to an uninterrupted one; Gymnasium's environments begin new episodes on resuming. All drivers can continue from each
  other's checkpoints.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from nip_ray.cluster.interrupts import Interrupted, finishing, interruptible
from nip_ray.config.changes import changes_of, refuse_fixed, run_fingerprint
from nip_ray.config.experiment import ExperimentConfig
from nip_ray.config.load import config_to_yaml, plain
from nip_ray.config.plugins import code_in, know
from nip_ray.drivers.agents import make_agent
from nip_ray.drivers.contract import Agent, Scope, resolve_scopes
from nip_ray.drivers.core import Reports
from nip_ray.drivers.environments import Copies, make_environment, recipe_of
from nip_ray.drivers.loops import ManualDriver, SequentialDriver, StepDriver
from nip_ray.drivers.parallel import ParallelDriver
from nip_ray.drivers.spec import load_runner, names_of, runner_to_yaml, sizes_of
from nip_ray.errors import UserError, refuse_missing
from nip_ray.progress import say
from nip_ray.settings.drivers import (
    DQNAgentSettings,
    EnvironmentSettings,
    ExperimentEnvironmentSettings,
    PPOAgentSettings,
    RunnerSettings,
)
from nip_ray.storage.checkpoint import has_checkpoint, load_checkpoint, rewind_checkpoints, save_checkpoint
from nip_ray.storage.fingerprint import fingerprint
from nip_ray.storage.folder import RunFolder, environment
from nip_ray.storage.sources import is_artifact
from nip_ray.storage.stored_config import write_config

DRIVERS: dict[str, type[SequentialDriver]] = {
    "sequential": SequentialDriver,
    "parallel": ParallelDriver,
    "step": StepDriver,
    "manual": ManualDriver,
}
"""Name -> class, called with (environment, agents, settings, scopes, names, seed)."""

EVALUATION = "runner_evaluation.json"
EXPERIMENT_FILE = "experiment.yaml"


@dataclass(frozen=True)
class RunnerResult:
    """run_dir: the folder. settings: of the run. timesteps, env_steps: totals. metrics: the last row and evaluation."""

    run_dir: Path
    settings: RunnerSettings
    timesteps: int
    env_steps: int
    metrics: dict[str, Any]


@interruptible()
def run_runner(
    source: RunnerSettings | Path | str | Mapping[str, Any],
    run_dir: Path | str | None = None,
    overrides: Sequence[str] = (),
    *,
    quiet: bool = False,
) -> RunnerResult:
    """Run a runner file (or a mapping, or settings) in the new run folder `run_dir` (None: see `folder_of`).

    quiet: no progress bar. Raises UserError for faults of the file or the folder, TrainingError when training fails.
    """
    settings = source if isinstance(source, RunnerSettings) else load_runner(source, overrides)
    path, experiment = folder_of(settings, run_dir), experiment_of(settings)
    driver = make_driver(settings, quiet=quiet, experiment=experiment)
    try:
        with RunFolder.create(path, runner_to_yaml(settings)) as folder:
            know([*code_in(plain(settings)), *([] if experiment is None else experiment.plugins)], keep=True)
            folder.write_json("environment.json", environment())
            if experiment is not None:
                write_config(folder.path / EXPERIMENT_FILE, config_to_yaml(experiment))
            return _run(folder, settings, driver, experiment)
    finally:
        driver.close()


def folder_of(settings: RunnerSettings, run_dir: Path | str | None = None) -> Path:
    """The run folder: `run_dir`, or `storage_path`/NAME-seedSEED."""
    kept = settings.experiment
    return Path(run_dir) if run_dir is not None else Path(kept.storage_path) / f"{kept.name}-seed{settings.seed}"


@interruptible()
def resume_runner(run_dir: Path | str, overrides: Sequence[str] = (), *, quiet: bool = False) -> RunnerResult:
    """Resume the run in `run_dir` from its newest undamaged checkpoint (from the start if there is none yet).

    overrides: "key=value" of what may change: the driver (its timesteps unless a rate decays over them), evaluation,
    storage. Raises UserError when it is not a run of a runner file, its checkpoints belong to other settings, or more
    timesteps are already done.
    """
    refuse_fixed(RunnerSettings, overrides)
    with RunFolder.open(run_dir, write=True) as folder:
        settings = load_runner(folder.path, overrides)
        experiment = experiment_of(settings, folder.path)
        begun, before = has_checkpoint(folder.checkpoints), load_runner(folder.path)
        _check_timesteps(settings, before.driver.timesteps, folder)
        driver = make_driver(settings, quiet=quiet, experiment=experiment, fresh=not begun)
        try:
            start = 0
            if begun:
                found = load_checkpoint(folder.checkpoints, fingerprint=fingerprint_of(settings, experiment))
                agents = [found.tensors[f"agent_{name}"] for name in names_of(settings)]
                driver.load_state_dict({**found.tensors["driver"], "agents": agents})
                start = found.iteration
            elif rows := folder.metrics():
                repeated = f"{rows[-1]['iteration']} timesteps are done again"
                say(f"warning: {folder.checkpoints}: there is no checkpoint, the run begins again; {repeated}")
            if start >= settings.driver.timesteps and not quiet:
                say(f"{run_dir}: the run is finished, all {start} timesteps are done")
            rewind_checkpoints(folder.checkpoints, start)
            folder.rewind_metrics(start)
            if overrides:  # not before: a setting may be impossible
                folder.replace_config(runner_to_yaml(settings))
            every = write_interval(before)
            if every != write_interval(settings):  # rows of both intervals are right
                every = None
            if mended := folder.mend_metrics(range(every, start + 1, every) if every else ()):
                say(f"warning: {mended}")
            return _run(folder, settings, driver, experiment)
        finally:
            driver.close()


def resume_as(settings: RunnerSettings, run_dir: Path | str, *, quiet: bool = False) -> RunnerResult:
    """Resume the run in `run_dir` with the changes in `settings`.

    Raises UserError if they differ in a setting that a resumed run may not change. An experiment's file is not needed
    any more.
    """
    stored, folder = load_runner(RunFolder.open(run_dir).path), Path(run_dir)
    place = settings.environment.config if isinstance(settings.environment, ExperimentEnvironmentSettings) else None
    if (
        place is not None
        and settings.environment == stored.environment
        and (is_artifact(place) or Path(place).exists())
    ):
        kept, now = experiment_of(stored, folder), experiment_of(settings)
        if changed := list(changes_of(plain(kept), plain(now))):
            began = f"{run_dir}: was begun with another {', '.join(change.partition('=')[0] for change in changed)}"
            raise UserError(f"{began} in {place}; put that back, or name another folder")
    changes = list(changes_of(plain(stored), plain(settings)))
    refuse_fixed(RunnerSettings, changes, run_dir)
    return resume_runner(run_dir, changes, quiet=quiet)


def _check_timesteps(settings: RunnerSettings, before: int, folder: RunFolder) -> None:
    """Refuse another total if learners have schedules over the old one, and one below the finished timesteps."""
    total = settings.driver.timesteps
    if total == before:
        return
    if key := falls_over_timesteps(settings):
        raise UserError(f"driver.timesteps: got {total} in a run of {before}, over which {key} falls; start a new run")
    done = load_checkpoint(folder.checkpoints).iteration if has_checkpoint(folder.checkpoints) else 0
    if total < done:
        raise UserError(f"driver.timesteps: got {total}, but {done} are done already; ask for more")


def falls_over_timesteps(settings: RunnerSettings) -> str | None:
    """A learner's key that changes something over all timesteps of training; None if a run may be extended."""
    for place, learner in enumerate(settings.learners):
        chosen, where = learner.algorithm, f"learners.{place}.algorithm"
        if isinstance(chosen, PPOAgentSettings) and chosen.anneal_lr:
            return f"{where}.anneal_lr"
        if isinstance(chosen, DQNAgentSettings) and chosen.exploration_start != chosen.exploration_end:
            return f"{where}.exploration_fraction"
    return None


def experiment_of(settings: RunnerSettings, run_dir: Path | None = None) -> ExperimentConfig | None:
    """The experiment whose scenario is played; None for Gymnasium. run_dir: of a run that already stores it."""
    if not isinstance(settings.environment, ExperimentEnvironmentSettings):
        return None
    from nip_ray.drivers.experiments import read_experiment

    return read_experiment(settings.environment, None if run_dir is None else run_dir / EXPERIMENT_FILE)


def make_driver(
    settings: RunnerSettings, *, quiet: bool = False, experiment: ExperimentConfig | None = None, fresh: bool = True
) -> SequentialDriver:
    """The driver of settings, with new agents; the caller closes it.

    experiment: to play (None: by the settings). fresh: load initial weights from elsewhere, if configured. Raises
    UserError for an environment that cannot be made and algorithms that do not fit it.
    """
    if settings.driver.name == "parallel" or isinstance(settings.environment, ExperimentEnvironmentSettings):
        refuse_missing("ray", "ray")
    scopes = resolve_scopes(settings.environment.num_copies, len(settings.learners), sizes_of(settings))
    if isinstance(settings.environment, ExperimentEnvironmentSettings):
        from nip_ray.drivers.experiments import experiment_agents, experiment_recipe, read_experiment

        experiment = experiment or read_experiment(settings.environment)
        recipe = experiment_recipe(settings.environment, experiment)
        agents = experiment_agents(settings, experiment, scopes, fresh)
    else:
        recipe, agents = recipe_of(settings.environment), _gymnasium_agents(settings, settings.environment, scopes)
    driver = replace(settings.driver, progress_bar=False) if quiet else settings.driver
    sizes = [stop - start for start, stop in scopes]
    return DRIVERS[driver.name](recipe, agents, driver, sizes, names_of(settings), settings.seed)


def _gymnasium_agents(
    settings: RunnerSettings, environment: EnvironmentSettings, scopes: Sequence[Scope]
) -> list[Agent]:
    """New learners for the environment's spaces; from a copy of it, rendered if pictures are configured."""
    own = Copies(make_environment(environment, 1))
    try:
        spaces = own.env.single_observation_space, own.env.single_action_space
        if not settings.driver.headless:
            own.reset(settings.seed, "picture")
            own.render()
    finally:
        own.close()
    return [
        make_agent(learner, *spaces, stop - start, settings.seed, place)
        for place, (learner, (start, stop)) in enumerate(zip(settings.learners, scopes, strict=True))
    ]


def fingerprint_of(settings: RunnerSettings, experiment: ExperimentConfig | None = None) -> str:
    """A fingerprint of what checkpoints depend on: not the driver, the intervals and the evaluation, nor the number of
    timesteps unless something decays over them."""
    whole = plain(settings)
    kept: dict[str, Any] = {key: whole[key] for key in ("seed", "environment", "learners")}
    if falls_over_timesteps(settings):
        kept["timesteps"] = settings.driver.timesteps
    if experiment is not None:  # in place of the file's name and changes
        kept["environment"] = {"num_copies": settings.environment.num_copies, "shared": settings.environment.shared}
        kept["experiment"] = run_fingerprint(experiment)
    return fingerprint(kept)


def _run(
    folder: RunFolder, settings: RunnerSettings, driver: SequentialDriver, experiment: ExperimentConfig | None
) -> RunnerResult:
    total, kept = settings.driver.timesteps, settings.experiment
    write = write_interval(settings)
    checkpoint = max(1, total // 10) if kept.checkpoint_interval is None else kept.checkpoint_interval
    last: dict[str, Any] = {}

    def on_row(row: dict[str, Any]) -> None:
        last.clear()
        last.update(row)
        folder.append_metrics(row)

    def on_checkpoint(timestep: int) -> None:
        state = driver.state_dict()
        agents = zip(names_of(settings), state.pop("agents"), strict=True)
        tensors = {"driver": state, **{f"agent_{name}": agent for name, agent in agents}}
        folder.sync()
        counts, mark = {"timestep": timestep, "env_steps": driver.env_steps}, fingerprint_of(settings, experiment)
        save_checkpoint(folder.checkpoints, timestep, tensors, counts, mark, kept.keep_checkpoints)

    begun = driver.timestep
    try:
        with finishing():
            driver.train(reports=Reports(write, on_row, checkpoint, on_checkpoint))
    except Interrupted as interrupt:
        if interrupt.safe and driver.timestep > begun:
            on_checkpoint(driver.timestep)
        raise
    if driver.timestep > begun and (not checkpoint or total % checkpoint):
        on_checkpoint(driver.timestep)
    figures: dict[str, Any] = {}
    if settings.evaluation.timesteps:
        found = driver.evaluate(settings.evaluation.timesteps, settings.evaluation.num_copies)
        figures = {f"eval/{tag}": value for tag, value in found.items()}
        folder.write_json(EVALUATION, {"timestep": driver.timestep, **figures})
    return RunnerResult(folder.path, settings, driver.timestep, driver.env_steps, {**last, **figures})


def write_interval(settings: RunnerSettings) -> int:
    """Timesteps between two rows of metrics; 0: none."""
    given = settings.experiment.write_interval
    return max(1, settings.driver.timesteps // 100) if given is None else given
