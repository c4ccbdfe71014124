"""The parts of an experiment, built once per process and shared by its env runner, its learner and its modules."""

import json
import os
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

import torch
from torch import nn

from nip_ray.config.experiment import ExperimentConfig
from nip_ray.config.keys import path_kind
from nip_ray.config.members import ADDED
from nip_ray.config.plugins import import_plugins
from nip_ray.play.scenario import Scenario
from nip_ray.protocols import PROTOCOLS
from nip_ray.scenarios.marks import Mark, marks
from nip_ray.scenarios.registry import SCENARIOS, build_agents, played_scenario

_PARTS = ("plugins", "protocol", "scenario", "algorithm")  # the parts that a scenario depends on


def scenario_of(experiment: dict[str, Any], device: str | torch.device = "cpu") -> Scenario:
    """The scenario of an experiment (a dumped `ExperimentConfig`), its table on `device`; shared by experiments that
    differ only in other parts.

    It is rebuilt when a file that it names has changed, and when its protocol or its scenario was registered again.
    """
    import_plugins(experiment.get("plugins", ()))
    text = json.dumps({part: experiment[part] for part in _PARTS if part in experiment}, sort_keys=True)
    return _scenario(text, str(device), _registered(experiment), marks(*_files(experiment.get("scenario", {}))))


def networks_of(experiment: dict[str, Any]) -> dict[str, nn.Module]:
    """New networks of all agents, equal in every process."""
    config = ExperimentConfig.model_validate(experiment)
    return build_agents(scenario_of(experiment), config.scenario, config.seed)


@lru_cache(maxsize=4)
def _scenario(text: str, device: str, registered: tuple[Any, ...], marked: tuple[Mark, ...]) -> Scenario:
    """registered, marked: see `_registered` and `_files`; only part of the key."""
    config = ExperimentConfig.model_validate_json(text)
    return played_scenario(config.protocol, config.scenario, config.algorithm).to(device)


def _registered(experiment: Mapping[str, Any]) -> tuple[Any, ...]:
    """The current registrations under the names of the experiment's protocol and scenario."""
    protocol, scenario = (experiment.get(part, {}).get("name") for part in ("protocol", "scenario"))
    return PROTOCOLS.get(protocol), SCENARIOS.get(scenario), ADDED["scenario"].get(scenario)


def _files(settings: Any, key: str = "scenario") -> Iterator[str]:
    """Every file, and every folder under a key that is a path, named in settings as plain data."""
    if isinstance(settings, Mapping):
        for name, value in settings.items():
            yield from _files(value, f"{key}.{name}")
    elif isinstance(settings, str) and (
        os.path.isfile(settings) or (path_kind(key, ExperimentConfig) is not None and os.path.isdir(settings))
    ):
        yield settings
