"""The config of a trial and the experiment that it describes, for networks and for language models alike."""

import json
from collections.abc import Mapping
from typing import Any

from nip_ray.config.load import AnyConfig
from nip_ray.errors import UserError
from nip_ray.sweeps.spaces import from_tune, parse_space
from nip_ray.sweeps.spec import config_of

TRIAL_INDEX = "__trial_index__"
"""Under this key Tune's `Repeater` gives the index of this repetition of the setting."""
KEYS = ("experiment", "values", "spaces", "run_root", "group", "iterations_per_report", "seeds", TRIAL_INDEX)


def experiment_of(config: Mapping[str, Any]) -> AnyConfig:
    """The experiment that a trial's config describes. Raises UserError for unknown keys and for a config that cannot be."""
    unknown = sorted(set(config) - set(KEYS))
    if unknown or "experiment" not in config or "run_root" not in config:
        wrong = f"unknown: {', '.join(unknown)}" if unknown else "experiment and run_root are needed"
        raise UserError(f"the config of a trial takes {', '.join(KEYS)} ({wrong})")
    return config_of(_mapping(config["experiment"]), values_of(config))


def values_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """The values that were drawn for a trial, as they stand in a config file, by dotted key."""
    found = _mapping(config.get("values", {}))
    if set(found) == {"drawn"}:  # by us, and not by Tune
        return dict(found["drawn"])
    parsed = {key: parse_space(key, space) for key, space in _mapping(config.get("spaces", {})).items()}
    made = {key: value if (space := parsed.get(key)) is None else from_tune(space, value) for key, value in found.items()}
    seeds = config.get("seeds") or []
    return {**made, "seed": seeds[config.get(TRIAL_INDEX, 0)]} if seeds else made


def _mapping(value: Mapping[str, Any] | str) -> dict[str, Any]:
    return json.loads(value) if isinstance(value, str) else dict(value)
