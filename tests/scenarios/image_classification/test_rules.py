"""Images under every protocol and every learning rule, at a tiny size: trains, is saved, restored and continues
exactly, is examined; and through both doors: RLlib's one-copy env keeps RLlib's contract and plays what the batched
core plays. Graphs have all pairs of both."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from nip_ray.config.experiment import ExperimentConfig
from tests.rllib import test_doors
from tests.rllib.experiments import game_id
from tests.rllib.matrix import PROOFS, diagonal, goes_on_exactly, rule_id
from tests.scenarios.image_classification.files import TINY
from tests.tiers import thinned

PAIRS = diagonal(PROOFS)
# similarity cannot be paid from actions alone
SEEN_BY_ENV = [protocol for protocol in PROOFS if not protocol.get("zero_knowledge")]


def tiny(protocol: Mapping[str, Any], rule: Mapping[str, Any]) -> ExperimentConfig:
    """Each protocol with a variety of its own: residual bodies, two kinds of messages, a central critic, a coarse
    sight."""
    agents: dict[str, Any] = {"_default": TINY}
    task: dict[str, Any] = dict(
        name="image_classification", data=dict(num_train=40, num_test=10), num_normalization_steps=64
    )
    if protocol["name"] == "debate":
        task |= dict(message_size=2, linear_symbols=3, num_block_groups=2)
    if protocol["name"] == "mnip":
        task |= dict(central_critic=True, shared_body=False)
    if protocol["name"] in ("nip", "mnip"):
        agents["verifier"] = {**TINY, "sight": "coarse", "building_block_type": "residual_basic"}
    algorithm = {"num_epochs": 1, **rule, "minibatch_size": 16}
    play = dict(num_copies=16)
    return ExperimentConfig.model_validate(
        dict(
            protocol=dict(protocol), scenario={**task, "agents": agents}, algorithm=algorithm, play=play, iterations=10
        )
    )


@pytest.mark.parametrize(("protocol", "rule"), thinned(PAIRS, 2), ids=[f"{game_id(p)}-{rule_id(r)}" for p, r in PAIRS])
def test_every_protocol_and_every_rule_goes_on_exactly(
    protocol: dict[str, Any], rule: dict[str, Any], tmp_path: Path
) -> None:
    goes_on_exactly(tiny(protocol, rule), tmp_path)


@pytest.mark.parametrize("protocol", SEEN_BY_ENV, ids=game_id)
def test_the_env_plays_what_the_core_plays(protocol: dict[str, Any]) -> None:
    config = tiny(protocol, dict(name="ppo"))
    test_doors.test_both_doors_give_the_same_episodes(config)
    test_doors.test_the_env_keeps_rllibs_contract(config)
