"""Images under every protocol and every learning rule, at a tiny size: trains, is saved, restored and continues exactly, is examined."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from nip_ray.config.experiment import ExperimentConfig
from tests.rllib.matrix import RULES, diagonal, goes_on_exactly, rule_id
from tests.scenarios.image_classification.files import PROTOCOLS, TINY, protocol_id

SOME = diagonal(PROTOCOLS)[::2]  # graphs have them all
REST = [(protocol, rule) for protocol in PROTOCOLS for rule in RULES if (protocol, rule) not in SOME]


def tiny(protocol: Mapping[str, Any], rule: Mapping[str, Any]) -> ExperimentConfig:
    """Each protocol with a variety of its own: residual bodies, two kinds of messages, a central critic, a coarse sight."""
    agents: dict[str, Any] = {"_default": TINY}
    task: dict[str, Any] = dict(name="image_classification", data=dict(num_train=40, num_test=10), num_normalization_steps=64)
    if protocol["name"] == "debate":
        task |= dict(message_size=2, linear_symbols=3, num_block_groups=2)
    if protocol["name"] == "mnip":
        task |= dict(central_critic=True, shared_body=False)
    if protocol["name"] in ("nip", "mnip"):
        agents["verifier"] = {**TINY, "sight": "coarse", "building_block_type": "residual_basic"}
    algorithm = {"num_epochs": 1, **rule, "minibatch_size": 16}
    play = dict(num_copies=16)
    return ExperimentConfig.model_validate(
        dict(protocol=dict(protocol), scenario={**task, "agents": agents}, algorithm=algorithm, play=play, iterations=10)
    )


@pytest.mark.parametrize(("protocol", "rule"), SOME, ids=[f"{protocol_id(p)}-{rule_id(r)}" for p, r in SOME])
def test_every_protocol_and_every_rule_goes_on_exactly(protocol: dict[str, Any], rule: dict[str, Any], tmp_path: Path) -> None:
    goes_on_exactly(tiny(protocol, rule), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(("protocol", "rule"), REST, ids=[f"{protocol_id(p)}-{rule_id(r)}" for p, r in REST])
def test_every_protocol_under_every_rule_goes_on_exactly(protocol: dict[str, Any], rule: dict[str, Any], tmp_path: Path) -> None:
    goes_on_exactly(tiny(protocol, rule), tmp_path)
