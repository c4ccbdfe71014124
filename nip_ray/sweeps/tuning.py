"""From a sweep's spec to Tune's parts: trials' parameters, search, scheduling, retries.

Decisions that matter here:
- trials are numbered in the order of their settings if we draw these ourselves. So a trial finds its run folder again
  even if the process that ran the sweep was killed before Tune wrote anything;
- Tune saves no scheduler. ASHA gets the results of earlier trials replayed from their rows, and members of a population
  stay in step with their intervals;
- a sweep that ends before its trials do (out of time, or after a failure with `fail_fast`) leaves them unfinished:
  Tune's own limits would mark them terminated, and never continue with them.
"""

import json
import math
import re
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ray
from ray import tune
from ray.tune.schedulers import ASHAScheduler, FIFOScheduler, PopulationBasedTraining, TrialScheduler
from ray.tune.search import BasicVariantGenerator, ConcurrencyLimiter, Repeater, SearchAlgorithm, Searcher

from nip_ray.cluster.liveness import last_sign, trial_silence
from nip_ray.config.experiment import ExperimentConfig, TextExperimentConfig
from nip_ray.progress import say
from nip_ray.settings.experiment import FaultToleranceSettings
from nip_ray.settings.sweep import AshaScheduler, OptunaSearch, PbtScheduler
from nip_ray.sweeps.compat import actor_of, number_trials
from nip_ray.sweeps.spaces import Space, clipped, to_pbt, to_tune
from nip_ray.sweeps.spec import SweepSpec, draw_settings
from nip_ray.sweeps.trainable import ExperimentTrainable
from nip_ray.sweeps.trial import values_of

TRIALS, TUNE = "trials", "tune"
PROGRESS_S = 30.0
"""Seconds between two lines of progress."""

Curve = Sequence[tuple[int, float]]


class StopSweep(Exception):
    """The sweep ends here, with its results so far."""


def trainable_of(spec: SweepSpec) -> type[tune.Trainable]:
    """The trainable of a trial: for networks, or language models."""
    if spec.kind is TextExperimentConfig:
        from nip_ray.sweeps.text_trainable import TextTrainable

        return TextTrainable
    return ExperimentTrainable


def param_space(spec: SweepSpec, folder: Path) -> dict[str, Any]:
    """The parameters of a trial. Mappings are passed as JSON text: Tune would look for spaces of its own in them. The
    folder is a Path, which Tune passes again when it continues: so a sweep's folder may be moved."""
    told: dict[str, Any] = {
        "experiment": json.dumps(spec.base),
        "spaces": json.dumps({key: space.data() for key, space in spec.spaces.items()}),
        "run_root": folder / TRIALS,
        "group": spec.name,
        "iterations_per_report": spec.settings.iterations_per_report,
    }
    if _tune_draws(spec):
        return {
            **told,
            "values": {key: to_tune(space, grid=False) for key, space in spec.spaces.items()},
            "seeds": list(spec.settings.seeds),
        }
    seeds: list[int | None] = list(spec.settings.seeds) or [None]
    settings = draw_settings(spec)  # interleaved over seeds: so all settings have results early
    points = [point if seed is None else {**point, "seed": seed} for seed in seeds for point in settings]
    return {**told, "values": tune.grid_search([json.dumps({"drawn": point}) for point in points])}


def tune_config(spec: SweepSpec, known: Mapping[str, Curve]) -> tune.TuneConfig:
    """Search and scheduler. known: the metric of each trial, at each report, before this process took over."""
    # A trial may follow another in its process, which saves some seconds of imports each; but members of a population
    # would return to folders that a process still has open, and a plugin stays imported.
    plugins = any(key.partition(".")[0] == "plugins" for key in spec.spaces)
    follow = spec.kind is ExperimentConfig and not isinstance(spec.settings.scheduler, PbtScheduler) and not plugins
    return tune.TuneConfig(
        metric=spec.settings.metric,
        mode=spec.settings.mode,
        scheduler=_scheduler(spec, known),
        search_alg=_search(spec),
        num_samples=spec.num_trials if _tune_draws(spec) else 1,
        trial_dirname_creator=_trial_id,
        trial_name_creator=_trial_id,
        reuse_actors=follow,
    )


def drawn_again(spec: SweepSpec) -> int:
    """The number of settings of a random search that repeat an earlier one; 0 where Tune draws."""
    if _tune_draws(spec):
        return 0
    drawn = [json.dumps(one, sort_keys=True, default=str) for one in draw_settings(spec)]
    return len(drawn) - len({*drawn})


def run_config(spec: SweepSpec, folder: Path, callback: tune.Callback) -> tune.RunConfig:
    """Place of Tune's own state, and its retries. All its checkpoints are kept: they point into the run folders."""
    return tune.RunConfig(
        name=TUNE,
        storage_path=str(folder),
        failure_config=tune.FailureConfig(max_failures=spec.settings.max_failures),
        checkpoint_config=tune.CheckpointConfig(num_to_keep=None, checkpoint_frequency=0, checkpoint_at_end=False),
        callbacks=[callback],
        verbose=0,
        log_to_file=True,
    )


def ended(trial: Any) -> bool:
    """True if a trial of Tune's is over: done, stopped by the scheduler, or failed for good."""
    return trial.status == "ERROR" or bool((trial.last_result or {}).get("done"))


def place(trial: Any) -> int:
    """A trial's index in the order in which settings were drawn."""
    return int(re.match(r"\d+", str(trial.experiment_tag))[0])  # type: ignore[index]  # Tune counts them there


def _reached(last: Mapping[str, Any]) -> int:
    """Number of iterations of a trial, by its last result."""
    return last.get("text_iteration", last.get("iteration", 0))


class Watch(tune.Callback):
    """Reports on stderr every trial that ends and the status of the others; ends the sweep when it is out of time, or
    when a trial failed with `fail_fast`. Ends a trial's hanging process, so that Tune restarts the trial.

    trials: Tune's trials, at the end. failed: the failure that ended the sweep under `fail_fast`.
    """

    def __init__(self, spec: SweepSpec, quiet: bool, trials: Path | None = None) -> None:
        """trials: the parent of their run folders, in which signs of life are looked for (None: nowhere)."""
        settings, faults = spec.settings, spec.base.get("fault_tolerance") or {}
        self.silence, self.folders = (
            trial_silence(faults.get("hang_timeout_s", FaultToleranceSettings().hang_timeout_s)),
            trials,
        )
        self.metric, self.mode, self.total, self.quiet = settings.metric, settings.mode, spec.num_trials, quiet
        self.fail_fast, self.budget = settings.fail_fast, settings.time_budget_s
        self.began = self.told = self.looked = time.monotonic()
        self.trials: list[Any] = []
        self.failed: Any = None

    @property
    def late(self) -> bool:
        """True if the sweep is out of time."""
        return self.budget is not None and time.monotonic() - self.began >= self.budget

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """A trial is done, stopped, or failed without a retry."""
        last = trial.last_result or {}
        if "failed" in last:
            self.failed = self.failed or trial
        value = last.get(self.metric)
        found = f"{self.metric} {value:.4g}" if isinstance(value, int | float) else f"no {self.metric}"
        self._say_ended(trials, trial, last.get("failed") or f"{found} after {_reached(last)} iterations")

    def on_trial_recover(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """A trial lost a process, and is retried."""
        if not self.quiet:
            say(f"trial {trial.trial_id} failed (attempt {trial.num_failures}) and resumes from its newest checkpoint")

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """A trial failed as often as allowed."""
        self.failed = self.failed or trial
        self._say_ended(trials, trial, f"broke down {trial.num_failures} times")

    def on_step_end(self, iteration: int, trials: list[Any], **info: Any) -> None:
        """Called between events."""
        self._end_hanging(trials)
        if self.late or (self.fail_fast and self.failed is not None):
            if threading.current_thread() is not threading.main_thread():
                raise StopSweep  # there are no signals in a thread
            signal.raise_signal(signal.SIGINT)  # ends Tune's loop like Ctrl-C, with its state written
        if not self.quiet and time.monotonic() - self.told >= PROGRESS_S:
            self.told = time.monotonic()
            running = sum(trial.status == "RUNNING" for trial in trials)
            over = sum(map(ended, trials))
            say(f"{running} running, {over} of {self.total} ended{self._best(trials)}")

    def on_experiment_end(self, trials: list[Any], **info: Any) -> None:
        """Called at any end."""
        self.trials = list(trials)

    def _end_hanging(self, trials: list[Any]) -> None:
        if self.folders is None or time.monotonic() - self.looked < 1.0:  # seconds: there are many such events
            return
        self.looked = time.monotonic()
        for trial in trials:
            actor = actor_of(trial) if trial.status == "RUNNING" else None
            if actor is None:
                self.silence.forget(trial.trial_id)
            elif self.silence.too_long(trial.trial_id, last_sign(self.folders / trial.trial_id)):
                limit = f"{self.silence.limit_s:g} s (fault_tolerance.hang_timeout_s)"
                say(f"trial {trial.trial_id} gave no sign of life for {limit} and is ended")
                self.silence.forget(trial.trial_id)
                ray.kill(actor)

    def _say_ended(self, trials: list[Any], trial: Any, what: object) -> None:
        self.told = time.monotonic()
        if not self.quiet:
            values = (
                ", ".join(f"{key} {value}" for key, value in values_of(trial.config).items())
                or f"trial {trial.trial_id}"
            )
            say(f"[{sum(map(ended, trials))}/{self.total}] {values}: {what}")

    def _best(self, trials: Sequence[Any]) -> str:
        known = [
            (x, trial) for trial in trials if math.isfinite(x := (trial.last_result or {}).get(self.metric, math.nan))
        ]
        if not known:
            return ""
        figure, best = (max if self.mode == "max" else min)(known, key=lambda pair: pair[0])
        return (
            f"; best so far {self.metric} {figure:.4g}, after {_reached(best.last_result)} iterations of trial"
            f" {best.trial_id}"
        )


def _tune_draws(spec: SweepSpec) -> bool:
    """True if settings depend on results, so that Tune draws them."""
    return isinstance(spec.settings.search, OptunaSearch) or isinstance(spec.settings.scheduler, PbtScheduler)


def _search(spec: SweepSpec) -> SearchAlgorithm | Searcher:
    settings, seed = spec.settings, spec.base.get("seed", 0)
    if not isinstance(settings.search, OptunaSearch):
        generator = BasicVariantGenerator(random_state=seed, max_concurrent=settings.max_concurrent or 0)
        number_trials(generator)
        return generator
    import optuna
    from optuna.samplers import TPESampler
    from ray.tune.search.optuna import OptunaSearch as Optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    sampler = TPESampler(n_startup_trials=settings.search.num_startup_samples, seed=seed)
    searcher: Searcher = Optuna(sampler=sampler, seed=None)
    if len(settings.seeds) > 1:  # the searcher sees the mean over seeds
        searcher = Repeater(searcher, repeat=len(settings.seeds), set_index=True)
    return searcher if settings.max_concurrent is None else ConcurrencyLimiter(searcher, settings.max_concurrent)


def _scheduler(spec: SweepSpec, known: Mapping[str, Curve]) -> TrialScheduler:
    chosen = spec.settings.scheduler
    clock = "text_iteration" if spec.kind is TextExperimentConfig else "iteration"
    if isinstance(chosen, AshaScheduler):
        results = {
            trial: [{clock: iteration, spec.settings.metric: x} for iteration, x in curve]
            for trial, curve in known.items()
        }
        return _Asha(
            results, time_attr=clock, grace_period=chosen.grace_iterations, reduction_factor=chosen.reduction_factor
        )
    if isinstance(chosen, PbtScheduler):
        return _Population(
            clock,
            chosen.interval,
            quantile_fraction=chosen.quantile,
            resample_probability=chosen.resample_probability,
            hyperparam_mutations={"values": {key: to_pbt(space) for key, space in spec.spaces.items()}},
            custom_explore_fn=bounded(spec.spaces),
            require_attrs=False,
            log_config=False,
        )
    return FIFOScheduler()


class _Asha(ASHAScheduler):
    """Tune's, with the results of earlier trials. results: each trial's reports before this process took over."""

    def __init__(self, results: Mapping[str, Sequence[dict[str, Any]]], **options: Any) -> None:
        super().__init__(max_t=10**9, brackets=1, **options)
        self.results = dict(results)

    def on_trial_add(self, tune_controller: Any, trial: Any) -> None:
        while self.results:  # not before: only now Tune has set the metric
            trial_id, reported = self.results.popitem()
            earlier: Any = SimpleNamespace(trial_id=trial_id)
            super().on_trial_add(tune_controller, earlier)
            for result in reported:
                super().on_trial_result(tune_controller, earlier, result)
            super().on_trial_remove(tune_controller, earlier)
        super().on_trial_add(tune_controller, trial)


class _Population(PopulationBasedTraining):
    """Tune's, in which a restarted member (a lost process, a resumed sweep) is compared only after its next
    interval."""

    def __init__(self, clock: str, interval: int, **options: Any) -> None:
        super().__init__(time_attr=clock, perturbation_interval=interval, **options)
        self.clock, self.interval = clock, interval
        self.due: dict[str, int] = {}  # by trial, the end of the interval in which it started

    def on_trial_add(self, tune_controller: Any, trial: Any) -> None:
        super().on_trial_add(tune_controller, trial)
        self.due[trial.trial_id] = ((trial.last_result or {}).get(self.clock, 0) // self.interval + 1) * self.interval

    def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
        if result.get(self.clock, 0) < self.due[trial.trial_id]:
            return self.CONTINUE
        return super().on_trial_result(tune_controller, trial, result)


def bounded(spaces: Mapping[str, Space]) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Clip changed values to their spaces: else they would keep growing, unseen, beyond the ends."""

    def explored(config: dict[str, Any]) -> dict[str, Any]:
        return {**config, "values": {key: clipped(spaces[key], value) for key, value in config["values"].items()}}

    return explored


def _trial_id(trial: Any) -> str:
    return str(trial.trial_id)
