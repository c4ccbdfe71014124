"""Settings of a sweep: the deciding metric, and how settings are drawn, repeated and stopped."""

from dataclasses import dataclass
from typing import Any, Literal

from nip_ray.settings.options import FORBID_UNKNOWN, option


@dataclass(frozen=True)
class RandomSearch:
    """Every point of all grids, and independent draws from the other spaces."""

    __pydantic_config__ = FORBID_UNKNOWN

    name: Literal["random"] = option("random", "All grid points, independent draws.")


@dataclass(frozen=True)
class OptunaSearch:
    """Optuna's tree-structured Parzen estimator; grids are taken as choices."""

    __pydantic_config__ = FORBID_UNKNOWN

    name: Literal["optuna"] = option("optuna", "Draws that learn from finished trials (needs the extra `optuna`).")
    num_startup_samples: int = option(10, "Settings drawn at random before any are suggested.", ge=1)


@dataclass(frozen=True)
class FifoScheduler:
    """Every trial runs to its end."""

    __pydantic_config__ = FORBID_UNKNOWN

    name: Literal["fifo"] = option("fifo", "Every trial runs to its end.")


@dataclass(frozen=True)
class AshaScheduler:
    """Asynchronous successive halving (Li et al., 2020): at each rung only the best share of trials continues."""

    __pydantic_config__ = FORBID_UNKNOWN

    name: Literal["asha"] = option("asha", "Asynchronous successive halving: poor trials are stopped early.")
    grace_iterations: int = option(50, "The first rung: no trial is stopped before.", ge=1)
    reduction_factor: int = option(3, "One trial of so many passes a rung; rungs are so many times apart.", ge=2)


@dataclass(frozen=True)
class PbtScheduler:
    """Population-based training (Jaderberg et al., 2017): poor trials take over weights and, changed a little, settings
    of good ones.

    Grids are taken as choices.
    """

    __pydantic_config__ = FORBID_UNKNOWN

    name: Literal["pbt"] = option("pbt", "Population-based training: poor trials continue from good ones.")
    interval: int = option(50, "Iterations between two comparisons.", ge=1)
    quantile: float = option(0.25, "Share of the population that copies, and that is copied.", gt=0, le=0.5)
    resample_probability: float = option(
        0.25, "Probability that a setting is drawn again instead of changed by a factor.", ge=0, le=1
    )


@dataclass(frozen=True)
class SweepSettings:
    """The deciding metric, and how settings are drawn, repeated and stopped."""

    __pydantic_config__ = FORBID_UNKNOWN

    metric: str = option("eval/verifier/accuracy", "The metric that decides, by its key in metrics.jsonl.")
    mode: Literal["max", "min"] = option("max", "Direction in which it is better.")
    num_samples: int = option(
        1,
        "Draws from the spaces other than grids, each combined with every grid point (optuna: settings; pbt: members).",
        ge=1,
    )
    cases: dict[str, dict[str, Any]] = option(
        dict, "Settings that vary together: name -> what it changes in the config, key by key."
    )
    seeds: tuple[int, ...] = option((), "Every setting is run with each of these seeds (none: with the config's own).")
    search: RandomSearch | OptunaSearch = option(RandomSearch, "Search algorithm.")
    scheduler: FifoScheduler | AshaScheduler | PbtScheduler = option(FifoScheduler, "Scheduler of trials.")
    max_concurrent: int | None = option(None, "The most trials at once (none: what the resources allow).", ge=1)
    max_failures: int = option(3, "Times that a trial which broke down continues from its newest checkpoint.", ge=0)
    fail_fast: bool = option(False, "End the sweep when a trial has failed for good (otherwise the others continue).")
    time_budget_s: float | None = option(None, "Seconds after which no trial continues (none: no limit).", gt=0)
    iterations_per_report: int = option(1, "Iterations of a trial between two reports to Tune.", ge=1)
    storage_path: str = option(
        "runs", "Folder that all nodes see, in which the sweep's own folder is made.", min_length=1
    )
