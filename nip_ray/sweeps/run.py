"""`run_sweep` and `resume_sweep`: a sweep from its file to a table, a page and a copy of the best trial.

    runs/NAME/  sweep.yaml  environment.json  sweep.json  sweep.html  tune.log
                trials/<id>/ (run folders)  best/ (the best of them again)  tune/ (Tune's own state)

Decisions that matter here:
- Tune schedules, restarts and stops trials, and keeps its state in `tune/`; all final metrics are read from the run
  folders;
- a sweep is resumed with Tune's state if there is any: finished trials stay, unfinished and broken ones continue from
  their newest checkpoints. The run folders have what Tune had not saved yet. Tune's state is a pickle: only resume your
  own sweeps;
- one driver at a time, by a lock that goes with the process;
- Tune's output goes to `tune.log`, not to the user.
"""

import json
import logging
import os
import re
import shutil
import signal
import threading
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TextIO

from ray.exceptions import OutOfMemoryError, RayError
from ray.tune import TuneError

from nip_ray.cluster.interrupts import interruptible
from nip_ray.cluster.ray_session import start_ray
from nip_ray.cluster.resources import check_cluster, trial_bundles
from nip_ray.config.experiment import ExperimentConfig, TextExperimentConfig
from nip_ray.config.load import AnyConfig
from nip_ray.config.paths import absolute_paths, with_absolute_paths
from nip_ray.config.plugins import code_in, know
from nip_ray.config.yaml_text import parse_yaml
from nip_ray.errors import TrainingError, UserError
from nip_ray.progress import say, say_stage
from nip_ray.runs.experiment import try_files
from nip_ray.runs.stopping import stopped_at
from nip_ray.storage.folder import CONFIG, LOCK, METRICS, RunFolder, environment, lock, write_document
from nip_ray.storage.stored_config import plain_config, write_config
from nip_ray.sweeps import compat
from nip_ray.sweeps.page import write_sweep_page
from nip_ray.sweeps.spec import CASES, SweepSpec, config_of, draw_settings, load_sweep, sweep_to_yaml
from nip_ray.sweeps.summary import Status, Summary, TrialRecord, as_json, summarise
from nip_ray.sweeps.trial import values_of
from nip_ray.sweeps.tuning import (
    TRIALS,
    Curve,
    StopSweep,
    Watch,
    drawn_again,
    ended,
    param_space,
    place,
    run_config,
    trainable_of,
    tune_config,
)
from nip_ray.tracking import check_trackers

SPEC, SUMMARY, PAGE, LOG, BEST = "sweep.yaml", "sweep.json", "sweep.html", "tune.log", "best"
_LOOKED_AT = 64  # settings whose files, trackers and resources are checked before anything starts
_ENVIRONMENT = {
    "TUNE_DISABLE_STRICT_METRIC_CHECKING": "1",  # held-out metrics come with evaluations, not with every report
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",  # every trial has its metrics.jsonl
    "TUNE_GLOBAL_CHECKPOINT_S": "5",  # a killed sweep loses what a searcher has learned since
    "TUNE_WARN_THRESHOLD_S": "30",
    "RAY_AIR_NEW_OUTPUT": "0",
    "MLFLOW_DISABLE_TELEMETRY": "true",  # Tune imports mlflow if it is installed, which would then send telemetry
}
_TUNES_LOGGERS = ("ray.tune", "ray.train", "ray.air")


@dataclass(frozen=True)
class SweepResult:
    """The result of a sweep. interrupted: the signal that stopped it (0: none), after which it can be resumed."""

    folder: Path
    summary: Summary
    trials: list[TrialRecord]
    interrupted: int = 0


@interruptible()
def run_sweep(spec: SweepSpec, folder: Path | str | None = None, *, quiet: bool = False) -> SweepResult:
    """Run all trials of `spec` in the new folder `folder` (None: `storage_path/NAME`).

    Raises UserError, before a trial starts, for a folder that cannot be written or is not empty, files that cannot be
    read, and a cluster that is too small. Raises TrainingError when all trials failed, when one failed with
    `fail_fast`, and when Ray itself failed.
    """
    folder = Path(folder) if folder is not None else folder_of(spec)
    configs = _some_configs(spec)
    for config in configs:
        check_trackers(config.tracking)
    _try_files(configs)
    if again := drawn_again(spec):
        say(
            f"warning: sweep.num_samples: {again} of {spec.num_settings} settings repeat an earlier draw, which trains"
            " the same runs again; use a grid where values are few"
        )
    with _claimed(folder, new=True):
        _connect(configs)
        write_document(folder / "environment.json", environment())
        absolute = _absolute(spec)
        write_config(folder / SPEC, text := sweep_to_yaml(absolute))
        know(code_in(parse_yaml(text, SPEC)), keep=True)
        return _tuned(absolute, folder.resolve(), quiet, resumed=False)


def folder_of(spec: SweepSpec) -> Path:
    """`storage_path/NAME`. Raises UserError for an invalid storage path."""
    path = spec.settings.storage_path
    if re.match(r"[a-zA-Z][a-zA-Z0-9+.-]+:/", path):  # one slash: `Path` drops the second
        raise UserError(
            f"sweep.storage_path: got {path}, expected a folder that all nodes see (mount it if it is elsewhere)"
        )
    return Path(path) / spec.name


def free_folder(spec: SweepSpec) -> Path:
    """`storage_path/NAME`, or with -2, -3 ... appended: the first that does not exist. Raises UserError for an invalid
    storage path."""
    first = folder_of(spec)
    folder, number = first, 1
    while os.path.lexists(folder):
        number += 1
        folder = first.with_name(f"{first.name}-{number}")
    return folder


@interruptible()
def resume_sweep(folder: Path | str, *, quiet: bool = False) -> SweepResult:
    """Resume the sweep in `folder`: finished trials stay, the others resume from their newest checkpoints.

    Raises UserError when there is no sweep in `folder`, or another process holds it; TrainingError as `run_sweep` does.
    """
    folder = Path(folder)
    if not (folder / SPEC).is_file():
        what = "no sweep here" if folder.is_dir() else "there is no such folder"
        hint = (
            "; to continue with a single run: nip-ray resume"
            if (folder / CONFIG).is_file()
            else ", name the folder of a sweep"
        )
        raise UserError(f"--resume {folder}: {what} ({SPEC} is missing){hint}")
    spec = load_sweep(folder / SPEC, of_run=True)
    with _claimed(folder, new=False):
        if (folder / SUMMARY).is_file() and not quiet:
            try:
                statuses = dict(json.loads((folder / SUMMARY).read_text(encoding="utf-8"))["statuses"])
            except (ValueError, KeyError, TypeError):  # it is written again
                statuses = {}
            if sum(statuses.values()) == spec.num_trials and not statuses.get("unfinished"):
                say(f"{folder}: the sweep is finished, all {spec.num_trials} trials have ended")
        _connect(_some_configs(spec))
        return _tuned(spec, folder.resolve(), quiet, resumed=True)


def resume_as(spec: SweepSpec, folder: Path | str, *, quiet: bool = False) -> SweepResult:
    """Resume the sweep in `folder`, which must be that of `spec`, or start it if its folder is empty.

    Raises UserError when it is another sweep, and as `resume_sweep` does.
    """
    folder = Path(folder)
    if not (folder / SPEC).is_file():
        return run_sweep(spec, folder, quiet=quiet)
    if plain_config((folder / SPEC).read_text(encoding="utf-8"), str(folder / SPEC)) != sweep_to_yaml(_absolute(spec)):
        raise UserError(
            f"{folder}: holds a sweep that was begun with other settings ({SPEC}); name another sweep.storage_path or"
            " name"
        )
    return resume_sweep(folder, quiet=quiet)


def _tuned(spec: SweepSpec, folder: Path, quiet: bool, resumed: bool) -> SweepResult:
    """Run Tune, then gather the results."""
    watch, rows = Watch(spec, quiet, folder / TRIALS), _rows(folder) if resumed else {}
    say_stage(f"sweep {folder}", quiet)
    with _aside(folder / LOG), _ended_by_sigterm() as stopped:
        tuner = compat.tuner(
            trainable_of(spec),
            resumed=resumed,
            param_space=param_space(spec, folder),
            tune_config=tune_config(spec, {trial: _reported(spec, found) for trial, found in rows.items()}),
            run_config=run_config(spec, folder, watch),
        )
        try:
            tuner.fit()
        except StopSweep:
            pass  # of time, or of failures: reported below
        except ValueError:
            if any(folder.glob("tune/experiment_state-*")):
                raise  # else a signal ended it before Tune had written anything, which Tune complains about
        except (TuneError, RayError) as error:
            raise TrainingError(f"Ray broke down: {_last_line(str(error))}; {_goes_on(folder)}") from error
        except RuntimeError as error:
            # Tune detects processes that end, not those that Ray kills for memory
            if not isinstance(error.__cause__, OutOfMemoryError):
                raise
            fewer = "run fewer trials at once (sweep.max_concurrent) or nothing else beside them"
            raise TrainingError(
                f"Ray ended a trial's process, since the machine ran out of memory; {fewer}; {_goes_on(folder)}"
            ) from error
    late, seconds = watch.late, time.monotonic() - watch.began
    rows, found = _rows(folder), sorted(watch.trials, key=place)
    trials = [_record(spec, folder, trial, rows.get(trial.trial_id, [])) for trial in found]
    summary = summarise(spec.settings, trials)
    write_document(folder / SUMMARY, {**as_json(summary), "seconds": seconds})
    write_sweep_page(folder, spec, summary, trials)
    _copy_best(folder, summary)
    failed = next(
        (trial for trial in trials if watch.failed is not None and trial.trial_id == watch.failed.trial_id), None
    )
    if failed is not None and spec.settings.fail_fast:
        hint = f"`nip-ray sweep --resume {folder}` continues the others"
        raise TrainingError(
            f"trial {failed.trial_id} failed ({failed.error}), which ends the sweep (sweep.fail_fast); {hint}"
        )
    if trials and all(trial.status == "failed" for trial in trials) and len(trials) == spec.num_trials:
        raise TrainingError(f"all {len(trials)} trials failed, the first with: {trials[0].error}; see {folder / PAGE}")
    incomplete = not late and not (len(found) == spec.num_trials and all(map(ended, found)))
    return SweepResult(folder, summary, trials, stopped[-1] if incomplete else 0)


def _goes_on(folder: Path) -> str:
    return f"`nip-ray sweep --resume {folder}` continues it; see {folder / LOG}"


def _rows(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """The rows of each trial's metrics."""
    runs = [path.parent for path in sorted((folder / TRIALS).glob(f"*/{METRICS}")) if (path.parent / CONFIG).is_file()]
    return {run.name: RunFolder.open(run).metrics() for run in runs}


def _reported(spec: SweepSpec, rows: Sequence[Mapping[str, Any]]) -> Curve:
    """The sweep's metric at each report to Tune: its newest value."""
    newest, curve = None, list[tuple[int, float]]()
    every = 1 if spec.kind is TextExperimentConfig else spec.settings.iterations_per_report
    for row in rows:
        newest = row.get(spec.settings.metric, newest)
        if isinstance(newest, int | float) and row["iteration"] % every == 0:
            curve.append((row["iteration"], newest))
    return curve


def _record(spec: SweepSpec, folder: Path, trial: Any, rows: Sequence[Mapping[str, Any]]) -> TrialRecord:
    """The record of a trial, from its rows and Tune."""
    last, values = dict(trial.last_result or {}), values_of(trial.config)
    seed = (
        values.pop("seed")
        if "seed" in values and "seed" not in spec.spaces
        else values.get("seed", spec.base.get("seed", 0))
    )
    metrics: dict[str, Any] = {}
    for row in rows:
        metrics |= {key: value for key, value in row.items() if isinstance(value, int | float) and key != "iteration"}
    iterations, metric = rows[-1]["iteration"] if rows else 0, spec.settings.metric
    return TrialRecord(
        trial_id=trial.trial_id,
        values=values,
        seed=seed,
        status=_status(spec, trial, last, rows),
        run_dir=folder / TRIALS / trial.trial_id if rows else None,
        iterations=iterations,
        metrics=metrics,
        curve=[(row["iteration"], row[metric]) for row in rows if isinstance(row.get(metric), int | float)],
        seconds=float(last.get("time_total_s", 0.0)),
        error=_error(trial, last),
    )


def _complete(spec: SweepSpec, trial: Any, rows: Sequence[Mapping[str, Any]]) -> bool:
    """Return True if a trial with these rows has all its iterations, or was ended by its own `stop`."""
    try:
        config = config_of(spec, values_of(trial.config))
        ended = isinstance(config, ExperimentConfig) and stopped_at(rows, config.stop) is not None
        return bool(rows) and (ended or rows[-1]["iteration"] >= config.iterations)
    except (UserError, TrainingError):  # a plugin that is gone, or a metric of `stop` that is not logged
        return False


def _status(spec: SweepSpec, trial: Any, last: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> Status:
    if trial.status == "ERROR" or "failed" in last:
        return "failed"
    if not ended(trial):
        return "unfinished"
    return "done" if _complete(spec, trial, rows) else "stopped"


def _error(trial: Any, last: Mapping[str, Any]) -> str | None:
    if "failed" in last:
        return str(last["failed"])
    if trial.status != "ERROR":
        return None
    text = (
        Path(trial.error_file).read_text(errors="replace")
        if trial.error_file and Path(trial.error_file).is_file()
        else ""
    )
    return _last_line(text) or "it broke down without a message"


def _last_line(text: str) -> str:
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")


def _copy_best(folder: Path, summary: Summary) -> None:
    """Copy the best trial's run folder to `best/`, replacing an earlier one."""
    best = summary.best_trial
    if best is None or best.run_dir is None:
        return
    aside, final = folder / ".best.new", folder / BEST
    shutil.rmtree(aside, ignore_errors=True)
    shutil.copytree(best.run_dir, aside, ignore=shutil.ignore_patterns(".*"))
    shutil.rmtree(final, ignore_errors=True)
    aside.rename(final)


# ---------------------------------------------------------------------------------------------------------------- parts


@contextmanager
def _aside(log: Path) -> Iterator[None]:
    """Within it, Tune works by our settings and logs to a file. Restores the handler of SIGINT, which Tune does not."""
    handler = logging.FileHandler(log, delay=True)
    # lacks files that we have switched off
    handler.addFilter(lambda record: not record.name.startswith("ray.tune.analysis"))
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    loggers = [logging.getLogger(name) for name in _TUNES_LOGGERS]
    before = [(logger.level, logger.propagate) for logger in loggers]
    unset = {name: value for name, value in _ENVIRONMENT.items() if name not in os.environ}
    in_main = threading.current_thread() is threading.main_thread()
    interrupt = signal.getsignal(signal.SIGINT)
    os.environ.update(unset)
    for logger in loggers:
        logger.setLevel(logging.WARNING)
        logger.propagate = False
        logger.addHandler(handler)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Consider boosting PBT performance")
            yield
    finally:
        for logger, (level, propagate) in zip(loggers, before, strict=True):
            logger.removeHandler(handler)
            logger.setLevel(level)
            logger.propagate = propagate
        handler.close()
        for name in unset:
            os.environ.pop(name, None)
        if in_main:
            signal.signal(signal.SIGINT, interrupt)


@contextmanager
def _ended_by_sigterm() -> Iterator[list[int]]:
    """Within it, SIGTERM and SIGHUP (unless it is ignored) end Tune's loop like Ctrl-C. Yields [SIGINT], to which the
    received signal is added."""
    came = [int(signal.SIGINT)]
    if threading.current_thread() is not threading.main_thread():
        yield came
        return

    def end(signum: int, frame: Any) -> None:
        came.append(signum)
        signal.raise_signal(signal.SIGINT)

    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    for number in before:
        if before[number] is not signal.SIG_IGN:
            signal.signal(number, end)
    try:
        yield came
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


@contextmanager
def _claimed(folder: Path, new: bool) -> Iterator[None]:
    """`folder`, made if `new`, and locked; removed again if nothing was written.

    Raises UserError when it cannot be written or is not empty.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        held = sorted(entry.name for entry in folder.iterdir() if not entry.name.startswith("."))
    except OSError as error:
        raise UserError(
            f"{folder}: no sweep can be made here ({error.strerror}); choose a sweep.storage_path that can be written"
        ) from None
    if new and held:
        hint = f"`nip-ray sweep --resume {folder}` continues it, or " if SPEC in held else ""
        raise UserError(f"{folder} is not empty; {hint}choose another name or sweep.storage_path")
    file: TextIO = lock(folder)
    try:
        yield
    finally:
        if new and not (folder / SPEC).exists():
            (folder / LOCK).unlink(missing_ok=True)
            with suppress(OSError):
                folder.rmdir()
        file.close()


def _some_configs(spec: SweepSpec) -> list[AnyConfig]:
    """Configs of the sweep's settings, for checks before it starts. Raises UserError if none is valid."""
    found, faults = [], []
    for values in draw_settings(spec)[:_LOOKED_AT]:
        try:
            found.append(config_of(spec, values))
        except UserError as error:  # an unlucky draw, which fails its own trial
            faults.append(str(error))
    if not found:
        raise UserError(faults[0])
    return found


def _try_files(configs: Sequence[AnyConfig]) -> None:
    """Read all files in the settings once: data, plugins, other runs. Raises UserError for unreadable ones."""
    seen = set[str]()
    for config in configs:
        if not isinstance(config, ExperimentConfig):
            continue
        dumped = config.model_dump(mode="json")
        mark = json.dumps(
            [dumped["plugins"], dumped["scenario"].get("data"), dumped["initial_weights"]], sort_keys=True
        )
        if mark not in seen:
            seen.add(mark)
            try_files(with_absolute_paths(config))


def _connect(configs: list[AnyConfig]) -> None:
    """Connect to Ray, with room for a trial of every config."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    bundles = [trial_bundles(config) for config in configs]
    runtime = configs[0].runtime
    start_ray(runtime, max(sum(bundle.get("CPU", 0) for bundle in wanted) for wanted in bundles))
    for wanted in {json.dumps(wanted): wanted for wanted in bundles}.values():
        check_cluster(wanted, autoscaling=runtime.autoscaling)


def _absolute(spec: SweepSpec) -> SweepSpec:
    """The same with absolute paths, so that workers and a later resume find the files."""

    def whole(mapping: Mapping[str, Any]) -> dict[str, Any]:
        return {key: absolute_paths(value, spec.kind, key) for key, value in mapping.items()}

    cases = {name: whole(changes) for name, changes in spec.settings.cases.items()}
    base = whole({key: value for key, value in spec.base.items() if key != CASES}) | ({CASES: cases} if cases else {})
    spaces = {
        key: (
            replace(space, arguments=tuple(absolute_paths(value, spec.kind, key) for value in space.arguments))
            if space.listed
            else space
        )
        for key, space in spec.spaces.items()
    }
    return replace(spec, settings=replace(spec.settings, cases=cases), base=base, spaces=spaces)
