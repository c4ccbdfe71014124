"""Images under every protocol and every learning rule, at a tiny size: trains, is saved, restored and goes on exactly, is examined."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from nip_ray.config.experiment import ExperimentConfig
from nip_ray.config.rules import check
from nip_ray.evaluation.examine import Examination
from nip_ray.rllib.algorithms import ALGORITHMS, ProtocolAlgorithm
from nip_ray.runs.checkpoint import load_checkpoint, save_checkpoint
from tests.builders import one_thread
from tests.rllib.experiments import distance, train
from tests.scenarios.image_classification.files import PROTOCOLS, TINY, protocol_id

RULES: list[dict[str, Any]] = [
    dict(name="ppo"),
    dict(name="ppo", loss="kl_penalty", adaptive_lr=True),
    dict(name="reinforce"),
    dict(name="reinforce", baseline="critic", num_epochs=2),
    *[dict(name="stackelberg", variant=variant) for variant in ("spg", "pspg", "lola", "pola", "sos", "psos")],
    dict(name="stackelberg", variant="psos", estimator="published"),
    dict(name="solo", agent="verifier"),
]
SOME = [(PROTOCOLS[i % len(PROTOCOLS)], RULES[i % len(RULES)]) for i in range(max(len(PROTOCOLS), len(RULES)))]
REST = [(protocol, rule) for protocol in PROTOCOLS for rule in RULES if (protocol, rule) not in SOME]


def rule_id(rule: Mapping[str, Any]) -> str:
    return "-".join(str(value) for key, value in rule.items() if key != "num_epochs")


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


def goes_on_exactly(protocol: Mapping[str, Any], rule: Mapping[str, Any], folder: Path) -> None:
    config = tiny(protocol, rule)
    check(config)
    with one_thread():
        algorithm: ProtocolAlgorithm = ALGORITHMS[rule["name"]]().experiment(config).build_algo()
        before = train(algorithm, 0)
        after = train(algorithm, 1)
        assert distance(before, after) > 0
        state = algorithm.training_state()
        counters = state.pop("counters")
        save_checkpoint(folder, 1, {"training": state}, {"counters": counters}, "tiny", None)
        expected = train(algorithm, 1)
        algorithm.stop()

        restored: ProtocolAlgorithm = ALGORITHMS[rule["name"]]().experiment(config).build_algo()
        found = load_checkpoint(folder, None, "tiny")
        restored.load_training_state({**found.tensors["training"], "counters": found.state["counters"]})
        assert distance(train(restored, 1), expected) == 0
        examination = Examination(restored.scenario, config.seed, 6)
        figures = examination.metrics(examination.rollout(restored.networks(), greedy=False), "eval")
        assert figures["eval/episode_length"] >= 1
        restored.stop()


@pytest.mark.parametrize(("protocol", "rule"), SOME, ids=[f"{protocol_id(p)}-{rule_id(r)}" for p, r in SOME])
def test_every_protocol_and_every_rule_goes_on_exactly(protocol: dict[str, Any], rule: dict[str, Any], tmp_path: Path) -> None:
    goes_on_exactly(protocol, rule, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(("protocol", "rule"), REST, ids=[f"{protocol_id(p)}-{rule_id(r)}" for p, r in REST])
def test_every_protocol_under_every_rule_goes_on_exactly(protocol: dict[str, Any], rule: dict[str, Any], tmp_path: Path) -> None:
    goes_on_exactly(protocol, rule, tmp_path)
