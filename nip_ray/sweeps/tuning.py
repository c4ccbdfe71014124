"""From a sweep's spec to Tune's parts: what each trial is told, who draws settings, who is stopped, what is tried again."""

import json
from pathlib import Path
from typing import Any

from ray import tune
from ray.tune.schedulers import ASHAScheduler, FIFOScheduler, PopulationBasedTraining, TrialScheduler
from ray.tune.search import BasicVariantGenerator, ConcurrencyLimiter, Repeater, SearchAlgorithm, Searcher

from nip_ray.config.experiment import TextExperimentConfig
from nip_ray.settings.sweep import AshaScheduler, OptunaSearch, PbtScheduler
from nip_ray.sweeps.spaces import to_pbt, to_tune
from nip_ray.sweeps.spec import SweepSpec, draw_settings
from nip_ray.sweeps.trainable import ExperimentTrainable

TRIALS, TUNE = "trials", "tune"


def trainable_of(spec: SweepSpec) -> type[tune.Trainable]:
    """What plays a trial: networks, or language models."""
    if spec.kind is TextExperimentConfig:
        from nip_ray.text.trainable import TextTrainable

        return TextTrainable
    return ExperimentTrainable


def param_space(spec: SweepSpec, folder: Path) -> dict[str, Any]:
    """What a trial is told. Mappings travel as JSON text: Tune would look for spaces of its own in them."""
    told: dict[str, Any] = {
        "experiment": json.dumps(spec.base),
        "spaces": json.dumps({key: space.data() for key, space in spec.spaces.items()}),
        "run_root": str(folder / TRIALS),
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
    settings = draw_settings(spec)  # one after the other with each seed: so all settings have a figure early
    points = [point if seed is None else {**point, "seed": seed} for seed in seeds for point in settings]
    return {**told, "values": tune.grid_search([json.dumps({"drawn": point}) for point in points])}


def tune_config(spec: SweepSpec) -> tune.TuneConfig:
    """Search, scheduler and limits."""
    settings = spec.settings
    return tune.TuneConfig(
        metric=settings.metric,
        mode=settings.mode,
        scheduler=_scheduler(spec),
        search_alg=_search(spec),
        num_samples=spec.num_trials if _tune_draws(spec) else 1,
        max_concurrent_trials=settings.max_concurrent,
        time_budget_s=settings.time_budget_s,
        trial_dirname_creator=_trial_id,
        trial_name_creator=_trial_id,
    )


def run_config(spec: SweepSpec, folder: Path, callbacks: list[tune.Callback]) -> tune.RunConfig:
    """Where Tune keeps its own state, and what it tries again. All checkpoints are kept: they are pointers into the run folders."""
    failures = 0 if spec.settings.fail_fast else spec.settings.max_failures
    return tune.RunConfig(
        name=TUNE,
        storage_path=str(folder),
        failure_config=tune.FailureConfig(max_failures=failures, fail_fast=spec.settings.fail_fast),
        checkpoint_config=tune.CheckpointConfig(num_to_keep=None, checkpoint_frequency=0, checkpoint_at_end=False),
        stop=_StopWhenOneFailed() if spec.settings.fail_fast else None,
        callbacks=callbacks,
        verbose=0,
        log_to_file=True,
    )


class _StopWhenOneFailed(tune.Stopper):
    """Ends the sweep after a trial that says that it failed; one that raised ends it by `fail_fast`."""

    def __init__(self) -> None:
        self.failed = False

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        self.failed = self.failed or "failed" in result
        return False

    def stop_all(self) -> bool:
        return self.failed


def _tune_draws(spec: SweepSpec) -> bool:
    """Whether settings depend on results, so that Tune draws them."""
    return isinstance(spec.settings.search, OptunaSearch) or isinstance(spec.settings.scheduler, PbtScheduler)


def _search(spec: SweepSpec) -> SearchAlgorithm | Searcher:
    settings, seed = spec.settings, spec.base.get("seed", 0)
    if not isinstance(settings.search, OptunaSearch):
        return BasicVariantGenerator(random_state=seed)
    from optuna.samplers import TPESampler
    from ray.tune.search.optuna import OptunaSearch as Optuna

    sampler = TPESampler(n_startup_trials=settings.search.num_startup_samples, seed=seed)
    searcher: Searcher = Optuna(sampler=sampler, seed=None)
    if len(settings.seeds) > 1:  # the searcher sees the mean over seeds
        searcher = Repeater(searcher, repeat=len(settings.seeds), set_index=True)
    return searcher if settings.max_concurrent is None else ConcurrencyLimiter(searcher, settings.max_concurrent)


def _scheduler(spec: SweepSpec) -> TrialScheduler:
    chosen = spec.settings.scheduler
    clock = "text_iteration" if spec.kind is TextExperimentConfig else "iteration"
    if isinstance(chosen, AshaScheduler):
        return ASHAScheduler(
            time_attr=clock, grace_period=chosen.grace_iterations, reduction_factor=chosen.reduction_factor, max_t=10**9, brackets=1
        )
    if isinstance(chosen, PbtScheduler):
        return PopulationBasedTraining(
            time_attr=clock,
            perturbation_interval=chosen.interval,
            quantile_fraction=chosen.quantile,
            resample_probability=chosen.resample_probability,
            hyperparam_mutations={"values": {key: to_pbt(space) for key, space in spec.spaces.items()}},
            require_attrs=False,
            log_config=False,
        )
    return FIFOScheduler()


def _trial_id(trial: Any) -> str:
    return str(trial.trial_id)
