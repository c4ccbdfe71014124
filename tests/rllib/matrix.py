"""Protocols under learning rules: what an experiment of any pair must do, and which pairs are tried every time."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nip_ray.config.experiment import ExperimentConfig
from nip_ray.config.rules import check
from nip_ray.evaluation.examine import Examination
from nip_ray.rllib.algorithm import ProtocolAlgorithm
from nip_ray.rllib.registry import ALGORITHMS
from nip_ray.storage.checkpoint import load_checkpoint, save_checkpoint
from tests.rllib.experiments import distance, train, weights

RULES: list[dict[str, Any]] = [
    dict(name="ppo"),
    dict(name="ppo", loss="kl_penalty", adaptive_lr=True),
    dict(name="reinforce"),
    dict(name="reinforce", baseline="critic", num_epochs=2),
    *[dict(name="stackelberg", variant=variant) for variant in ("spg", "pspg", "lola", "pola", "sos", "psos")],
    dict(name="stackelberg", variant="psos", estimator="published"),
    dict(name="solo", agent="verifier"),
]
PROOFS: list[dict[str, Any]] = [
    dict(name="nip", max_rounds=4),
    dict(name="adp"),
    dict(name="debate", max_rounds=5, sequential=True),
    dict(name="mnip", max_rounds=4),
    dict(name="merlin_arthur"),
    dict(name="solo_verifier"),
    dict(name="multi_channel_test"),
    dict(name="nip", max_rounds=4, zero_knowledge=True),
    dict(name="mnip", max_rounds=3, zero_knowledge=True),
]
"""Of graphs and of images."""
Pair = tuple[dict[str, Any], dict[str, Any]]


def rule_id(rule: Mapping[str, Any]) -> str:
    return "-".join(str(value) for key, value in rule.items() if key not in ("num_epochs", "agent"))


def diagonal(protocols: Sequence[dict[str, Any]], rules: Sequence[dict[str, Any]] = RULES) -> list[Pair]:
    """Every protocol and every rule at least once."""
    return [(protocols[i % len(protocols)], rules[i % len(rules)]) for i in range(max(len(protocols), len(rules)))]


def goes_on_exactly(config: ExperimentConfig, folder: Path) -> None:
    check(config)
    build = ALGORITHMS[config.algorithm.name]().experiment
    algorithm: ProtocolAlgorithm = build(config).build_algo()
    before = weights(algorithm)
    assert distance(before, train(algorithm, 1)) > 0
    state = algorithm.training_state()
    counters = state.pop("counters")
    save_checkpoint(folder, 1, {"training": state}, {"counters": counters}, "tiny", None)
    expected = train(algorithm, 1)
    algorithm.stop()

    restored: ProtocolAlgorithm = build(config).build_algo()
    found = load_checkpoint(folder, None, "tiny")
    restored.load_training_state({**found.tensors["training"], "counters": found.state["counters"]})
    assert distance(train(restored, 1), expected) == 0
    examination = Examination(restored.scenario, config.seed, 6)
    figures = examination.metrics(examination.rollout(restored.networks(), greedy=False), "eval")
    assert figures["eval/episode_length"] >= 1
    restored.stop()
