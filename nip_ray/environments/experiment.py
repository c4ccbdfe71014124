"""The experiment of an environment, from a user's config."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nip_ray.config.experiment import ExperimentConfig, TextExperimentConfig
from nip_ray.config.load import config_of
from nip_ray.config.rules import check
from nip_ray.errors import UserError

AnyConfig = ExperimentConfig | TextExperimentConfig


def experiment_of(config: AnyConfig | Mapping[str, Any] | Path | str) -> ExperimentConfig:
    """An experiment whose agents have networks: as such, its keys, a YAML file or a run folder. Its rule is ignored.

    Raises UserError for faults of protocol and scenario, for language models, and under zero knowledge.
    """
    made = playable(config_of(config, checked=False))
    try:
        check(made, training=False)
    except UserError as error:
        if faults := [fault for fault in error.args if fault.startswith(("protocol", "scenario", "plugins"))]:
            raise UserError(*faults) from None
    return made


def playable(config: AnyConfig) -> ExperimentConfig:
    """The experiment itself. Raises UserError if an environment cannot play it."""
    if not isinstance(config, ExperimentConfig):
        raise UserError(
            f"algorithm.name: {config.algorithm.name} is for language models; environments play agents with networks"
        )
    if config.protocol.zero_knowledge:
        raise UserError(
            "protocol.zero_knowledge: pay depends on the agents' probabilities, which no environment sees; expected"
            " false"
        )
    return config
