"""All uses of non-public names of Ray Tune, each with the version of Ray in which it was read."""

from typing import Any

from ray import tune
from ray.tune import ResumeConfig
from ray.tune.search import BasicVariantGenerator

PRIVATE = {
    "Tuner(_tuner_kwargs)": "2.60.0",
    "BasicVariantGenerator._uuid_prefix": "2.60.0",
    "Trial.temporary_state.ray_actor": "2.60.0",
}
"""Held by tests/sweeps/test_compat.py."""

_RESUME, _SKIP = ResumeConfig.ResumeType.RESUME, ResumeConfig.ResumeType.SKIP


def tuner(*arguments: Any, resumed: bool, **options: Any) -> tune.Tuner:
    """A Tuner with all these arguments. resumed: with the experiment's trials in its folder, skipping finished ones.

    `Tuner.restore` would load searcher, scheduler and callbacks from a pickle, instead of the given ones.
    """
    config = ResumeConfig(unfinished=_RESUME, errored=_RESUME, finished=_SKIP)  # pyright: ignore[reportArgumentType]  # it means the enum
    return tune.Tuner(*arguments, **options, _tuner_kwargs={"resume_config": config} if resumed else None)


def actor_of(trial: Any) -> Any:
    """The handle of a trial's process; None if it has none."""
    return trial.temporary_state.ray_actor


def number_trials(generator: BasicVariantGenerator) -> None:
    """Name trials 00000, 00001, ... without a random prefix, so that a trial finds its run folder again."""
    generator._uuid_prefix = ""
