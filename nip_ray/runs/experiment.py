"""`run_experiment`: from a config to a trained verifier in a run folder, and `resume_experiment`: from wherever it was stopped.

Decisions that matter here:
- a row of metrics is written before the checkpoint that relies on it; on resume rows after the checkpoint are dropped and made again;
- nothing random has a state to save: every draw is seeded by (seed, purpose, iteration), so checkpoints hold weights, optimizers
  and counters only, and a resumed run gives the numbers of one that was never stopped (CPU, same machine kind);
- the final evaluation and the report are made from the last checkpoint's weights, so that they can be made again at any time.
"""

from collections.abc import Sequence
from pathlib import Path

from nip_ray.cluster.interrupts import interruptible
from nip_ray.cluster.process import prepare_process
from nip_ray.config.experiment import ExperimentConfig, TextExperimentConfig
from nip_ray.config.paths import with_absolute_paths
from nip_ray.errors import UserError
from nip_ray.evaluation.solo_run import solo_run_score
from nip_ray.progress import say_stage
from nip_ray.runs.ended import ended_run
from nip_ray.runs.session import Session, to_the_end
from nip_ray.storage.folder import CONFIG, EXPORTED, RunFolder, environment
from nip_ray.storage.identity import ExperimentResult, is_finished
from nip_ray.storage.stored_config import write_config
from nip_ray.tracking import check_trackers


@interruptible()
def run_experiment(
    config: ExperimentConfig | TextExperimentConfig, run_dir: Path | str | None = None, *, quiet: bool = False
) -> ExperimentResult:
    """Train as `config` says, in the new run folder `run_dir` (none: ``runs/NAME-seedSEED``).

    Raises UserError for a config or a folder that cannot work, before Ray starts; TrainingError when training breaks down.
    """
    if isinstance(config, TextExperimentConfig):
        from nip_ray.runs.text_run import run_text_experiment

        return run_text_experiment(config, run_dir, quiet=quiet)
    from nip_ray.config.load import config_to_yaml
    from nip_ray.config.rules import check, warnings_of

    check(config)
    check_trackers(config.tracking)
    config = with_absolute_paths(config)
    path = Path(run_dir) if run_dir is not None else Path("runs") / f"{config.name}-seed{config.seed}"
    try_files(config, path)
    with RunFolder.create(path, config_to_yaml(config)) as folder:
        folder.write_json("environment.json", environment())
        say_stage(f"run {folder.path}", quiet)
        session = Session(config, folder, quiet=quiet)
        for text in warnings_of(config):
            session.warn(text)
        try:
            session.start()
            return ExperimentResult(folder.path, to_the_end(session), config.iterations)
        finally:
            session.close()


@interruptible()
def resume_experiment(
    run_dir: Path | str, *, iterations: int | None = None, settings: Sequence[str] = (), quiet: bool = False
) -> ExperimentResult:
    """Resume the run in `run_dir` from its newest undamaged checkpoint (from the start if there is none yet).

    iterations: a new total. settings: "key=value" of what may change (`nip_ray.config.changes`), for example ``learners.num_learners=2``.
    Raises UserError when `run_dir` is no run, its checkpoints belong to another config, or the new total
    is below what is done or changes an annealed learning rate.
    """
    from nip_ray.config.changes import resumed_config
    from nip_ray.config.load import config_to_yaml, load_config

    with RunFolder.open(run_dir) as folder:
        if (folder.path / EXPORTED).is_file():
            raise UserError(
                f"{run_dir}: is an export, which has nothing to learn on from; start a new run, with initial_weights or base_run"
            )
        stored = load_config(folder.path / CONFIG, checked=False)
        is_finished(folder)  # a damaged name of the run is told of before anything is changed
    if isinstance(stored, TextExperimentConfig):
        from nip_ray.runs.text_run import resume_text_experiment

        return resume_text_experiment(run_dir, iterations=iterations, settings=settings, quiet=quiet)
    config = resumed_config(stored, settings, iterations)
    if config.iterations != stored.iterations and getattr(config.algorithm, "anneal_lr", False):
        raise UserError("iterations: the learning rate of this run is annealed over its own number of iterations; start a new run")
    check_trackers(config.tracking)
    with RunFolder.open(run_dir, write=True) as folder:
        session = Session(config, folder, quiet=quiet)
        checkpoint = session.newest()  # refuses before anything is changed
        rows = folder.metrics()
        whole = [row["iteration"] for row in rows] == list(range(1, config.iterations + 1))
        reached = config.iterations if checkpoint is None else checkpoint.iteration
        if whole and reached == config.iterations and (ended := ended_run(folder, config, quiet)):
            return ended
        if checkpoint is None and rows:
            repeated = f"{rows[-1]['iteration']} iterations are done again"
            session.warn(f"{folder.checkpoints}: there is no checkpoint, the run begins again; {repeated}")
        write_config(folder.path / CONFIG, config_to_yaml(config))
        try:
            session.start(checkpoint)
            say_stage(f"run {folder.path}, from iteration {session.iteration}", quiet)
            return ExperimentResult(folder.path, to_the_end(session), config.iterations)
        finally:
            session.close()


def resume_as(config: ExperimentConfig | TextExperimentConfig, run_dir: Path | str, *, quiet: bool = False) -> ExperimentResult:
    """Resume the run in `run_dir`, which `config` is that of, with what `config` says otherwise; a run that is finished stays as it is.

    Raises UserError where `config` differs in what a resumed run may not change.
    """
    from nip_ray.config.changes import changes_of, refuse_fixed
    from nip_ray.config.load import load_config, plain

    folder = RunFolder.open(run_dir)
    stored = load_config(folder.path / CONFIG, checked=False)
    wanted = with_absolute_paths(config)
    if type(config) is not type(stored):
        raise UserError(f"{run_dir}: holds a run of another kind; name another folder")
    changes = list(changes_of(plain(stored), plain(wanted)))
    refuse_fixed(type(config), changes, run_dir)
    return resume_experiment(run_dir, settings=changes, quiet=quiet)


def try_files(config: ExperimentConfig, run_dir: Path | None = None) -> None:
    """Read what the user wrote (data, plugins, other runs) before a run folder is made for it. What is built is kept for the run.

    run_dir: the folder that it will have, beside which artifacts are kept that had to be fetched (none: they are not kept).
    Raises UserError for what cannot be read or does not fit.
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
