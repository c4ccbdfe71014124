"""What a trial is to Tune, for networks and for language models alike: its config, its run folder, its checkpoints and resources."""

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from ray import tune

from nip_ray.cluster.resources import trial_bundles
from nip_ray.config.experiment import ExperimentConfig, TextExperimentConfig
from nip_ray.config.load import AnyConfig, config_to_yaml
from nip_ray.config.plugins import know
from nip_ray.errors import UserError
from nip_ray.storage.folder import CONFIG, RunFolder, environment
from nip_ray.sweeps.spaces import from_tune, parse_space
from nip_ray.sweeps.spec import config_of

Config = TypeVar("Config", bound=AnyConfig)

POINTER = "run.json"
_LOCK_WAIT_S = 120.0  # for the lock of a trial whose node is gone: a file server gives it back after a while
_MEDIA = {ExperimentConfig: "networks", TextExperimentConfig: "language models"}

TRIAL_INDEX = "__trial_index__"
"""Under this key Tune's `Repeater` gives the index of this repetition of the setting."""
KEYS = ("experiment", "values", "spaces", "run_root", "group", "iterations_per_report", "seeds", TRIAL_INDEX)


def experiment_of(config: Mapping[str, Any], kind: type[Config]) -> Config:
    """The experiment of a `kind` that a trial's config describes. Raises UserError for unknown keys and for a config that cannot be."""
    unknown = sorted(set(config) - set(KEYS))
    if unknown or "experiment" not in config or "run_root" not in config:
        wrong = f"unknown: {', '.join(unknown)}" if unknown else "experiment and run_root are needed"
        raise UserError(f"the config of a trial takes {', '.join(KEYS)} ({wrong})")
    made = config_of(_mapping(config["experiment"]), values_of(config))
    if not isinstance(made, kind):
        right = "text_trainable.TextTrainable" if kind is ExperimentConfig else "trainable.ExperimentTrainable"
        raise UserError(f"this trainable is for {_MEDIA[kind]}; for {_MEDIA[type(made)]} take nip_ray.sweeps.{right}")
    return made


def values_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """The values that were drawn for a trial, as they stand in a config file, by dotted key."""
    found = _mapping(config.get("values", {}))
    if set(found) == {"drawn"}:  # by us, and not by Tune
        return dict(found["drawn"])
    parsed = {key: parse_space(key, space) for key, space in _mapping(config.get("spaces", {})).items()}
    made = {key: value if (space := parsed.get(key)) is None else from_tune(space, value) for key, value in found.items()}
    seeds = config.get("seeds") or []
    return {**made, "seed": seeds[config.get(TRIAL_INDEX, 0)]} if seeds else made


def opened(path: Path, experiment: AnyConfig) -> RunFolder:
    """The run folder of a trial, open for writing. Waits for the lock of an earlier start that could not give it back."""
    deadline = time.monotonic() + _LOCK_WAIT_S
    while (path / CONFIG).is_file():
        try:
            return RunFolder.open(path, write=True)
        except UserError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.5)
    folder = RunFolder.create(path, config_to_yaml(experiment))
    know(experiment.plugins, keep=True)
    folder.write_json("environment.json", environment())
    return folder


def failed(reason: object) -> dict[str, Any]:
    """The result of a trial that need not be tried again."""
    return {"done": True, "failed": " ".join(str(reason).split())}


def resources(config: Mapping[str, Any], kind: type[Config]) -> tune.PlacementGroupFactory:
    """CPUs and GPUs of a trial's main process, then of all that it starts."""
    try:
        made = experiment_of(config, kind)
        return tune.PlacementGroupFactory(trial_bundles(made), getattr(made.algorithm, "learner_placement", "pack").upper())
    except UserError:  # asked by the process that runs the sweep; `setup` says what is wrong, and this trial alone fails
        return tune.PlacementGroupFactory([{"CPU": 1.0}])


def write_pointer(folder: str, kind: str, **where: Any) -> None:
    """A checkpoint of Tune's: it names a place in a run folder. kind: its format."""
    Path(folder, POINTER).write_text(json.dumps({"format": kind, "version": 1, **where}))


def read_pointer(folder: str, kind: str) -> dict[str, Any]:
    """What `write_pointer` wrote. Raises UserError for anything else."""
    found = json.loads(Path(folder, POINTER).read_text())
    if found.get("format") != kind or found.get("version") != 1:
        raise UserError(f"{folder}: no checkpoint of the format {kind}, or one of a newer version")
    return found


def _mapping(value: Mapping[str, Any] | str) -> dict[str, Any]:
    return json.loads(value) if isinstance(value, str) else dict(value)
