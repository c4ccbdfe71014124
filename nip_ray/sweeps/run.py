"""`run_sweep` and `resume_sweep`: a sweep from its file to a table, a page and a copy of the best trial.

    runs/NAME/  sweep.yaml  environment.json  sweep.json  sweep.html
                trials/<id>/ (run folders)  best/ (the best of them again)  tune/ (Tune's own state)

Decisions that matter here:
- Tune schedules, restarts and stops trials, and keeps its state in `tune/`; every figure of the end is read from the run folders;
- a sweep is resumed by `Tuner.restore`: finished trials stay, unfinished and failed ones go on from their newest checkpoints. Tune's state
  is a pickle: resume sweeps of your own only;
- one driver at a time, by a lock that goes with the process.
"""

import json
import os
import re
import shutil
import time
from collections.abc import Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TextIO

from ray import tune

from nip_ray.config.experiment import ExperimentConfig
from nip_ray.config.keys import keys_of
from nip_ray.config.load import AnyConfig
from nip_ray.errors import TrainingError, UserError
from nip_ray.runs.experiment import try_files, with_absolute_paths
from nip_ray.runs.folder import CONFIG, METRICS, RunFolder, environment, json_ready, lock, write_atomically
from nip_ray.runs.progress import say
from nip_ray.runs.ray_session import start_ray
from nip_ray.runs.resources import check_cluster, trial_bundles
from nip_ray.runs.trackers import check_trackers
from nip_ray.sweeps.page import write_sweep_page
from nip_ray.sweeps.records import Status, TrialRecord
from nip_ray.sweeps.spec import SweepSpec, config_of, draw_settings, load_sweep, sweep_to_yaml
from nip_ray.sweeps.summary import Summary, as_json, summarise
from nip_ray.sweeps.told import values_of
from nip_ray.sweeps.tuning import TUNE, param_space, run_config, trainable_of, tune_config

SPEC, SUMMARY, PAGE, BEST = "sweep.yaml", "sweep.json", "sweep.html", "best"
_PATH = re.compile(
    r"plugins\.\d+|scenario\.(data\.(train|test)|prompts)|pretraining\.cache|initial_weights\.[^.]+\.run_dir|base_run\.run_dir"
)
"""Keys whose values are paths."""
_LOOKED_AT = 64  # settings whose files, trackers and resources are looked at before anything starts
_ENVIRONMENT = {
    "TUNE_DISABLE_STRICT_METRIC_CHECKING": "1",  # held-out figures come with evaluations, not with every report
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",  # every trial has its metrics.jsonl
    "TUNE_MAX_PENDING_TRIALS_PG": "8",
    "TUNE_WARN_THRESHOLD_S": "30",
    "RAY_AIR_NEW_OUTPUT": "0",
}


@dataclass(frozen=True)
class SweepResult:
    """What a sweep came to. interrupted: it was stopped by hand, and can be resumed."""

    folder: Path
    summary: Summary
    trials: list[TrialRecord]
    interrupted: bool = False


def run_sweep(spec: SweepSpec, folder: Path | str | None = None, *, quiet: bool = False) -> SweepResult:
    """Run all trials of `spec` in the new folder `folder` (none: `storage_path/NAME`).

    Raises UserError for what cannot work, before a trial starts: a folder that cannot be written or holds something already, files that
    cannot be read, a cluster that is too small. Raises TrainingError when not one trial came to a figure.
    """
    folder = Path(folder) if folder is not None else Path(spec.settings.storage_path) / spec.name
    configs = _some_configs(spec)
    for config in configs:
        check_trackers(config.tracking)
    if isinstance(configs[0], ExperimentConfig):
        try_files(with_absolute_paths(configs[0]))
    with _claimed(folder, new=True):
        write_atomically(folder / SPEC, sweep_to_yaml(_absolute(spec)).encode())
        write_atomically(folder / "environment.json", _document("nip_ray.environment", environment()))
        _connect(configs)
        return _tuned(_absolute(spec), folder.resolve(), quiet, restored=False)


def free_folder(spec: SweepSpec) -> Path:
    """`storage_path/NAME`, or with -2, -3 ... behind it: the first that is not there."""
    first = Path(spec.settings.storage_path) / spec.name
    folder, number = first, 1
    while folder.exists():
        number += 1
        folder = first.with_name(f"{first.name}-{number}")
    return folder


def resume_sweep(folder: Path | str, *, quiet: bool = False) -> SweepResult:
    """Go on with the sweep in `folder`: finished trials stay, the others go on from their newest checkpoints.

    Raises UserError when there is no sweep in `folder`, or another process is at it.
    """
    folder = Path(folder)
    if not (folder / SPEC).is_file():
        what = "no sweep here" if folder.is_dir() else "there is no such folder"
        hint = "; to go on with a single run: nip-ray resume" if (folder / CONFIG).is_file() else ", name the folder of a sweep"
        raise UserError(f"--resume {folder}: {what} ({SPEC} is missing){hint}")
    spec = load_sweep(folder / SPEC)
    with _claimed(folder, new=False):
        _connect(_some_configs(spec))
        return _tuned(spec, folder.resolve(), quiet, restored=(folder / TUNE / "tuner.pkl").is_file())


def _tuned(spec: SweepSpec, folder: Path, quiet: bool, restored: bool) -> SweepResult:
    """Let Tune work, then gather what came of it."""
    began, trainable, space = time.monotonic(), trainable_of(spec), param_space(spec, folder)
    os.environ.update({name: os.environ.get(name, value) for name, value in _ENVIRONMENT.items()})
    if restored:
        tuner = tune.Tuner.restore(str(folder / TUNE), trainable, resume_unfinished=True, resume_errored=True, param_space=space)
    else:
        watch: list[tune.Callback] = [] if quiet else [_Watch(spec)]
        tuner = tune.Tuner(trainable, param_space=space, tune_config=tune_config(spec), run_config=run_config(spec, folder, watch))
    found = tuner.fit()._experiment_analysis.trials
    trials = [_record(spec, trial) for trial in found]
    summary = summarise(spec.settings, trials)
    seconds = time.monotonic() - began
    write_atomically(folder / SUMMARY, _document("nip_ray.sweep", {**as_json(summary), "seconds": seconds}))
    write_sweep_page(folder, spec, summary, trials)
    _copy_best(folder, summary)
    late = spec.settings.time_budget_s is not None and seconds >= spec.settings.time_budget_s
    interrupted = not late and any(trial.status in ("PENDING", "RUNNING", "PAUSED") for trial in found)
    if not interrupted and trials and all(trial.status == "failed" for trial in trials):
        raise TrainingError(f"all {len(trials)} trials failed, the first with: {trials[0].error}; see {folder / PAGE}")
    return SweepResult(folder, summary, trials, interrupted)


def _record(spec: SweepSpec, trial: Any) -> TrialRecord:
    """What a trial's run folder and Tune know of it."""
    last, values = dict(trial.last_result or {}), values_of(trial.config)
    seed = values.pop("seed") if "seed" in values and "seed" not in spec.spaces else values.get("seed", spec.base.get("seed", 0))
    run_dir = Path(last["run_dir"]) if "run_dir" in last else Path(trial.config["run_root"]) / trial.trial_id
    rows = RunFolder.open(run_dir).metrics() if (run_dir / METRICS).is_file() and (run_dir / CONFIG).is_file() else []
    metrics: dict[str, Any] = {}
    for row in rows:
        metrics |= {key: value for key, value in row.items() if isinstance(value, int | float) and key != "iteration"}
    total = values.get("iterations", spec.base.get("iterations", keys_of(spec.kind)["iterations"].default))
    iterations = rows[-1]["iteration"] if rows else 0
    metric = spec.settings.metric
    return TrialRecord(
        trial_id=trial.trial_id,
        values=values,
        seed=seed,
        status=_status(trial.status, last, iterations >= total, spec.settings.scheduler.name == "asha"),
        run_dir=run_dir if rows else None,
        iterations=iterations,
        metrics=metrics,
        curve=[(row["iteration"], row[metric]) for row in rows if isinstance(row.get(metric), int | float)],
        seconds=float(last.get("time_total_s", 0.0)),
        error=_error(trial, last),
    )


def _status(tunes: str, last: Mapping[str, Any], complete: bool, stops_early: bool) -> Status:
    if tunes == "ERROR" or "failed" in last:
        return "failed"
    if complete:
        return "done"
    return "stopped" if tunes == "TERMINATED" and stops_early else "unfinished"


def _error(trial: Any, last: Mapping[str, Any]) -> str | None:
    if "failed" in last:
        return str(last["failed"])
    if trial.status != "ERROR":
        return None
    text = Path(trial.error_file).read_text(errors="replace") if trial.error_file and Path(trial.error_file).is_file() else ""
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "it broke down without a message")


def _copy_best(folder: Path, summary: Summary) -> None:
    """The best trial's run folder under `best/`: what it was before is replaced in one step."""
    best = summary.best_trial
    if best is None or best.run_dir is None:
        return
    aside, final, old = folder / ".best.new", folder / BEST, folder / ".best.old"
    for path in (aside, old):
        shutil.rmtree(path, ignore_errors=True)
    shutil.copytree(best.run_dir, aside, ignore=shutil.ignore_patterns(".*"))
    if final.exists():
        final.rename(old)
    aside.rename(final)
    shutil.rmtree(old, ignore_errors=True)


class _Watch(tune.Callback):
    """One line on stderr for every trial that ends."""

    def __init__(self, spec: SweepSpec) -> None:
        self.metric, self.total, self.ended = spec.settings.metric, spec.num_trials, 0

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """Tell of it."""
        last = trial.last_result or {}
        found = last.get("failed") or f"{self.metric} {last.get(self.metric, float('nan')):.4g} after {last.get('iteration', 0)} iterations"
        self._tell(trial, str(found))

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """Tell of it; it may be tried again."""
        say(f"trial {trial.trial_id}: lost ({trial.num_failures} so far)")

    def _tell(self, trial: Any, what: str) -> None:
        self.ended += 1
        values = ", ".join(f"{key} {value}" for key, value in values_of(trial.config).items())
        say(f"[{self.ended}/{self.total}] {values}: {what}")


# ------------------------------------------------------------------------------------------------------------- parts


@contextmanager
def _claimed(folder: Path, new: bool) -> Any:
    """`folder`, made where it is `new`, and locked. Raises UserError when it cannot be written or holds something already."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        held = sorted(entry.name for entry in folder.iterdir() if not entry.name.startswith("."))
    except OSError as error:
        raise UserError(
            f"{folder}: no sweep can be made here ({error.strerror}); choose a sweep.storage_path that can be written"
        ) from None
    if new and held:
        hint = f"`nip-ray sweep --resume {folder}` goes on with it, or " if SPEC in held else ""
        raise UserError(f"{folder} is not empty; {hint}choose another name or sweep.storage_path")
    file: TextIO = lock(folder)
    try:
        yield
    finally:
        file.close()


def _some_configs(spec: SweepSpec) -> list[AnyConfig]:
    """Configs of the sweep's settings, of which it is asked whether they can work at all. Raises UserError when none can be."""
    found, faults = [], []
    for values in draw_settings(spec)[:_LOOKED_AT]:
        try:
            found.append(config_of(spec, values))
        except UserError as error:  # an unlucky draw, which fails its own trial
            faults.append(str(error))
    if not found:
        raise UserError(faults[0])
    return found


def _connect(configs: list[AnyConfig]) -> None:
    """Ray, with room for a trial of every config."""
    bundles = [trial_bundles(config) for config in configs]
    runtime = configs[0].runtime
    start_ray(runtime, max(sum(bundle.get("CPU", 0) for bundle in wanted) for wanted in bundles))
    for wanted in {json.dumps(wanted): wanted for wanted in bundles}.values():
        check_cluster(wanted, autoscaling=runtime.autoscaling)


def _absolute(spec: SweepSpec) -> SweepSpec:
    """The same with files by absolute path, so that workers and a later resume find them."""

    def absolute(key: str, value: Any) -> Any:
        if isinstance(value, str) and _PATH.fullmatch(key) and (not key.startswith("plugins") or value.endswith(".py")):
            return value if ":" in value else os.path.abspath(value)  # "wandb:..." is no path
        if isinstance(value, Mapping):
            return {name: absolute(f"{key}.{name}", item) for name, item in value.items()}
        return [absolute(f"{key}.{i}", item) for i, item in enumerate(value)] if isinstance(value, list | tuple) else value

    base = {key: absolute(key, value) for key, value in spec.base.items()}
    spaces = {
        key: replace(space, arguments=tuple(absolute(key, value) for value in space.arguments)) if space.listed else space
        for key, space in spec.spaces.items()
    }
    return replace(spec, base=base, spaces=spaces)


def _document(name: str, content: Mapping[str, Any]) -> bytes:
    return (json.dumps({"format": name, "version": 1, **json_ready(content)}, indent=2, allow_nan=False) + "\n").encode()
