"""One YAML file, one run: `run_runner("tune_configs/runner_cartpole.yaml")`.

Decisions that matter here:
- a run folder as of any other trainer: config.yaml (every key), metrics.jsonl (rows whose `iteration` is the timestep), checkpoints with
  sums, environment.json; `runner_evaluation.json` has the figures of the evaluation at the end;
- a checkpoint holds weights, optimizers, replay, counters, statistics and the episodes in flight: a resumed run gives the numbers of one
  that was never stopped, wherever the environment's state can be read (see `nip_ray.drivers.snapshots`), and all drivers can go on from
  each other's.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nip_ray.config.load import plain
from nip_ray.drivers.agents import make_agent
from nip_ray.drivers.contract import Agent
from nip_ray.drivers.environments import make_environment, recipe_of
from nip_ray.drivers.manual import ManualDriver
from nip_ray.drivers.parallel import ParallelDriver
from nip_ray.drivers.scopes import resolve_scopes
from nip_ray.drivers.sequential import SequentialDriver
from nip_ray.drivers.spec import load_runner, names_of, runner_to_yaml, sizes_of
from nip_ray.drivers.step import StepDriver
from nip_ray.runs.checkpoint import fingerprint, has_checkpoint, load_checkpoint, rewind_checkpoints, save_checkpoint
from nip_ray.runs.folder import RunFolder, environment
from nip_ray.settings.drivers import RunnerSettings

Driver = SequentialDriver | ParallelDriver
DRIVERS: dict[str, Any] = {"sequential": SequentialDriver, "parallel": ParallelDriver, "step": StepDriver, "manual": ManualDriver}
"""Name -> class, called with (environment, agents, settings, scopes, names, seed)."""

EVALUATION = "runner_evaluation.json"


@dataclass(frozen=True)
class RunnerResult:
    """run_dir: the folder. settings: what was run. timesteps, env_steps: how many were made. metrics: the last row and the evaluation."""

    run_dir: Path
    settings: RunnerSettings
    timesteps: int
    env_steps: int
    metrics: dict[str, Any]


def run_runner(
    source: Path | str | Mapping[str, Any], run_dir: Path | str | None = None, overrides: Sequence[str] = (), *, quiet: bool = False
) -> RunnerResult:
    """Run what a runner file (or a mapping) says, in the new run folder `run_dir` (None: `storage_path`/NAME-seedSEED).

    quiet: no progress bar. Raises UserError for what is wrong with the file or the folder, TrainingError where training breaks down.
    """
    settings = load_runner(source, overrides)
    kept = settings.experiment
    path = Path(run_dir) if run_dir is not None else Path(kept.storage_path) / f"{kept.name}-seed{settings.seed}"
    driver = make_driver(settings, quiet=quiet)
    try:
        with RunFolder.create(path, runner_to_yaml(settings)) as folder:
            folder.write_json("environment.json", environment())
            return _run(folder, settings, driver)
    finally:
        driver.close()


def resume_runner(run_dir: Path | str, *, quiet: bool = False) -> RunnerResult:
    """Go on with the run in `run_dir` from its newest undamaged checkpoint (from the start where there is none yet).

    Raises UserError when it is no run of a runner file, or its checkpoints belong to other settings.
    """
    with RunFolder.open(run_dir, write=True) as folder:
        settings = load_runner(folder.path)
        driver = make_driver(settings, quiet=quiet)
        try:
            start = 0
            if has_checkpoint(folder.checkpoints):
                found = load_checkpoint(folder.checkpoints, fingerprint=fingerprint_of(settings))
                agents = [found.tensors[f"agent_{name}"] for name in names_of(settings)]
                driver.load_state_dict({**found.tensors["driver"], "agents": agents})
                start = found.iteration
            rewind_checkpoints(folder.checkpoints, start)
            folder.rewind_metrics(start)
            return _run(folder, settings, driver)
        finally:
            driver.close()


def make_driver(settings: RunnerSettings, *, quiet: bool = False) -> Driver:
    """The driver that settings describe, with fresh agents; whoever asks for it closes it.

    Raises UserError for an environment that cannot be made and algorithms that do not fit it.
    """
    own = make_environment(settings.environment, 1)
    spaces = own.single_observation_space, own.single_action_space
    own.close()
    scopes = resolve_scopes(settings.environment.num_copies, len(settings.learners), sizes_of(settings))
    agents: list[Agent] = []
    for place, (learner, (start, stop)) in enumerate(zip(settings.learners, scopes, strict=True)):
        agents.append(make_agent(learner, *spaces, stop - start, settings.seed, place))
    driver = settings.driver
    if quiet:
        driver = type(driver)(**{**vars(driver), "progress_bar": False})
    sizes = [stop - start for start, stop in scopes]
    made: Driver = DRIVERS[driver.name](recipe_of(settings.environment), agents, driver, sizes, names_of(settings), settings.seed)
    return made


def fingerprint_of(settings: RunnerSettings) -> str:
    """Of what checkpoints depend on: which driver, how often is written and what is evaluated may change."""
    whole = plain(settings)
    return fingerprint({**{key: whole[key] for key in ("seed", "environment", "learners")}, "timesteps": settings.driver.timesteps})


def _run(folder: RunFolder, settings: RunnerSettings, driver: Driver) -> RunnerResult:
    total, kept = settings.driver.timesteps, settings.experiment
    write = max(1, total // 100) if kept.write_interval is None else kept.write_interval
    checkpoint = max(1, total // 10) if kept.checkpoint_interval is None else kept.checkpoint_interval
    last: dict[str, Any] = {}

    def on_row(row: dict[str, Any]) -> None:
        last.clear()
        last.update(row)
        folder.append_metrics(row)

    def on_checkpoint(timestep: int) -> None:
        _save(folder, settings, driver, timestep)

    begun = driver.timestep
    driver.train(write_interval=write, on_row=on_row, checkpoint_interval=checkpoint, on_checkpoint=on_checkpoint)
    if driver.timestep > begun and (not checkpoint or total % checkpoint):
        on_checkpoint(driver.timestep)
    figures: dict[str, Any] = {}
    if settings.evaluation.timesteps:
        found = driver.evaluate(settings.evaluation.timesteps, settings.evaluation.num_copies)
        figures = {f"eval/{tag}": value for tag, value in found.items()}
        folder.write_json(EVALUATION, {"timestep": driver.timestep, **figures})
    return RunnerResult(folder.path, settings, driver.timestep, driver.env_steps, {**last, **figures})


def _save(folder: RunFolder, settings: RunnerSettings, driver: Driver, timestep: int) -> None:
    state = driver.state_dict()
    agents = state.pop("agents")
    tensors = {"driver": state, **{f"agent_{name}": agent for name, agent in zip(names_of(settings), agents, strict=True)}}
    folder.sync()
    counts = {"timestep": timestep, "env_steps": driver.env_steps}
    save_checkpoint(folder.checkpoints, timestep, tensors, counts, fingerprint_of(settings), settings.experiment.keep_checkpoints)
