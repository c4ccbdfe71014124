"""Every protocol under every learning rule, at a tiny size: it trains, is saved, restored and goes on exactly, and is examined."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from nip_ray.config.rules import check
from nip_ray.evaluation.examine import Examination
from nip_ray.rllib.algorithms import ALGORITHMS, ProtocolAlgorithm
from nip_ray.runs.checkpoint import load_checkpoint, save_checkpoint
from tests.rllib.experiments import distance, experiment, game_id, train, weights

PROTOCOLS: list[dict[str, Any]] = [
    dict(name="nip", max_rounds=4),
    dict(name="adp"),
    dict(name="debate", max_rounds=5, sequential=True),
    dict(name="mnip", max_rounds=4),
    dict(name="merlin_arthur"),
    dict(name="solo_verifier"),
    dict(name="multi_channel_test"),
    dict(name="message_game", max_rounds=3),
    dict(name="nip", max_rounds=4, zero_knowledge=True),
    dict(name="mnip", max_rounds=3, zero_knowledge=True),
    dict(name="matrix_game", max_rounds=3),
    dict(name="kuhn_poker"),
]
RULES: list[dict[str, Any]] = [
    dict(name="ppo"),
    dict(name="ppo", loss="kl_penalty", adaptive_lr=True),
    dict(name="reinforce"),
    dict(name="reinforce", baseline="critic", num_epochs=2),
    *[dict(name="stackelberg", variant=variant) for variant in ("spg", "pspg", "lola", "pola", "sos", "psos")],
    dict(name="stackelberg", variant="psos", estimator="published"),
    dict(name="solo"),
]
GAMES = {"matrix_game": "prisoners_dilemma", "kuhn_poker": "kuhn_poker"}


def rule_id(rule: Mapping[str, Any]) -> str:
    return "-".join(str(value) for key, value in rule.items() if key != "num_epochs")


def tiny(protocol: dict[str, Any], rule: dict[str, Any]) -> Any:
    scenario: dict[str, Any] = {}
    if protocol["name"] in GAMES:
        scenario = dict(name="matrix_game", game=GAMES[protocol["name"]])
    elif protocol["name"] in ("debate", "mnip"):  # one with every kind of message, one whose critics see more than the agents
        scenario = dict(message_size=2, linear_symbols=3) if protocol["name"] == "debate" else dict(central_critic=True, shared_body=False)
    rule = {"num_epochs": 1, **rule}
    if rule["name"] == "solo":
        rule["agent"] = "player0" if scenario.get("name") == "matrix_game" else "verifier"
    return experiment(protocol, scenario, algorithm={**rule, "minibatch_size": 16})


def cannot_learn_alone(protocol: dict[str, Any], rule: dict[str, Any]) -> bool:
    return rule["name"] == "solo" and protocol["name"] in GAMES


MATRIX = [(protocol, rule) for protocol in PROTOCOLS for rule in RULES if not cannot_learn_alone(protocol, rule)]


@pytest.mark.parametrize(("protocol", "rule"), MATRIX, ids=[f"{game_id(p)}-{rule_id(r)}" for p, r in MATRIX])
def test_trains_saves_restores_and_is_examined(protocol: dict[str, Any], rule: dict[str, Any], tmp_path: Path) -> None:
    config = tiny(protocol, rule)
    check(config)
    algorithm: ProtocolAlgorithm = ALGORITHMS[rule["name"]]().experiment(config).build_algo()
    before = weights(algorithm)
    train(algorithm, 1)
    assert distance(before, weights(algorithm)) > 0
    state = algorithm.training_state()
    counters = state.pop("counters")
    save_checkpoint(tmp_path, 1, {"training": state}, {"counters": counters}, "tiny", None)
    expected = train(algorithm, 1)
    algorithm.stop()

    restored: ProtocolAlgorithm = ALGORITHMS[rule["name"]]().experiment(config).build_algo()
    found = load_checkpoint(tmp_path, None, "tiny")
    restored.load_training_state({**found.tensors["training"], "counters": found.state["counters"]})
    assert distance(train(restored, 1), expected) == 0
    examination = Examination(restored.scenario, config.seed, 6)
    figures = examination.metrics(examination.rollout(restored.networks(), greedy=False), "eval")
    assert figures["eval/episode_length"] >= 1
    restored.stop()
