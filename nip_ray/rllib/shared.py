"""What a process needs of an experiment, built once and shared by its env runner, its learner and its modules."""

import json
from functools import lru_cache
from typing import Any

import torch
from torch import nn

from nip_ray.config.experiment import ExperimentConfig
from nip_ray.config.plugins import import_plugins
from nip_ray.play.scenario import Scenario
from nip_ray.scenarios.registry import build_agents, played_scenario

_PARTS = ("plugins", "protocol", "scenario", "algorithm")  # what a scenario is made of


def scenario_of(experiment: dict[str, Any], device: str | torch.device = "cpu") -> Scenario:
    """The scenario of an experiment (a dumped `ExperimentConfig`), its table on `device`; one for all that differ in other parts alone."""
    return _scenario(json.dumps({part: experiment[part] for part in _PARTS if part in experiment}, sort_keys=True), str(device))


def networks_of(experiment: dict[str, Any]) -> dict[str, nn.Module]:
    """Fresh networks of all agents, equal in every process."""
    config = ExperimentConfig.model_validate(experiment)
    return build_agents(scenario_of(experiment), config.scenario, config.seed)


@lru_cache(maxsize=4)
def _scenario(text: str, device: str) -> Scenario:
    config = ExperimentConfig.model_validate_json(text)
    import_plugins(config.plugins)
    return played_scenario(config.protocol, config.scenario, config.algorithm).to(device)
