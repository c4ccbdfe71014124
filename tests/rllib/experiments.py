"""Small experiments and what several tests of the RLlib room do with them."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from nip_ray.config.experiment import ExperimentConfig
from nip_ray.rllib.algorithm import ProtocolAlgorithm
from nip_ray.rllib.registry import ALGORITHMS

Weights = dict[str, dict[str, Tensor]]

TINY: dict[str, Any] = dict(num_gnn_layers=1, use_dual_gnn=False, num_heads=2, num_transformer_layers=1)
TINY |= dict.fromkeys(
    ("d_gnn", "d_gin_mlp", "d_transformer", "d_transformer_mlp", "d_representation", "d_node_selector"), 4
)
TINY |= dict.fromkeys(("d_decider", "d_linear_message_selector", "d_value"), 4)

_TURNS = [
    (True, False, True),
    (False, False, True),
    (True, True, True),
    (True, True, False),
    (False, True, True),
    (False, True, False),
]
ORDERS = [dict(verifier_first=v, sequential=s, prover0_first=p) for v, s, p in _TURNS]
GAMES: list[dict[str, Any]] = [
    dict(name="nip"),
    dict(name="nip", verifier_first=False, max_rounds=5, min_rounds=3),
    dict(name="adp"),
    *[dict(name=name, **order) for name in ("debate", "mnip") for order in ORDERS],
    dict(name="merlin_arthur"),
    dict(
        name="consultancy",
        max_rounds=5,
        payoff={"verifier": {"false_accept": -5.0, "turns": {"prover1": -0.25, "verifier": 0.5}}},
    ),
    dict(name="open_consultancy", max_rounds=4),
    dict(name="open_debate", max_rounds=6),
    dict(name="critique"),
    dict(
        name="judge_panel",
        judges=2,
        max_rounds=4,
        payoff={"judge1": {"false_accept": -5.0, "turns": {"prover": -0.25}}},
    ),
    dict(name="solo_verifier"),
    dict(name="multi_channel_test"),
    dict(name="message_game", max_rounds=4),
    dict(name="matrix_game", max_rounds=5),
    dict(name="kuhn_poker"),
]
"""Every protocol, nip, debate and mnip in all their orders."""


PAST: dict[str, Any] = dict(every=1, latest=0.5, sampling="prioritised")
"""Opponents from the past, from the second iteration on."""


def game_id(protocol: Mapping[str, Any]) -> str:
    """A short name of an entry of `GAMES`."""
    return "-".join(
        [protocol["name"], *(f"{key}={int(value)}" for key, value in protocol.items() if key not in ("name", "payoff"))]
    )


def experiment(
    protocol: Mapping[str, Any], scenario: Mapping[str, Any] | None = None, **changes: Any
) -> ExperimentConfig:
    """An experiment of seconds: 16 copies, minibatches of 32 frames. changes: other groups of the config, merged into
    the defaults."""
    if protocol["name"] == "message_game":
        task: dict[str, Any] = dict(name="message_game", num_symbols=5, agents={"_default": dict(hidden=8)})
    elif protocol["name"] in ("matrix_game", "kuhn_poker"):
        task = dict(name="matrix_game", game="kuhn_poker" if protocol["name"] == "kuhn_poker" else "prisoners_dilemma")
    else:
        data = dict(num_train=40, num_test=10, graph_sizes=[7], non_iso_prop_score_1=0.5, non_iso_prop_score_2=0.5)
        task = dict(name="graph_isomorphism", data=data, agents={"_default": TINY}, num_normalization_steps=64)
    groups: dict[str, Any] = dict(
        play=dict(num_copies=16), algorithm=dict(name="ppo", minibatch_size=32, num_epochs=2), iterations=10
    )
    for name, value in changes.items():
        groups[name] = {**groups.get(name, {}), **value} if isinstance(value, Mapping) else value
    return ExperimentConfig.model_validate(
        dict(protocol=dict(protocol), scenario={**task, **(scenario or {})}, **groups)
    )


def message_game(**changes: Any) -> ExperimentConfig:
    return experiment(dict(name="message_game", max_rounds=4), **changes)


def hironaka(rule: str = "ppo", **agents: Any) -> ExperimentConfig:
    """Hironaka's game, of which some episodes end and others are cut off."""
    return ExperimentConfig.model_validate(
        {
            "protocol": {"name": "hironaka"},
            "scenario": {
                **dict(name="hironaka", max_points=6, max_rounds=5, num_train=200, num_test=20, rho_games=10),
                "agents": {"_default": dict(point_width=8, width=16, depth=1), **agents},
            },
            "algorithm": {"name": rule, "minibatch_size": 64, **({"num_epochs": 2} if rule == "ppo" else {})},
            "play": {"num_copies": 24},
        }
    )


def built(config: ExperimentConfig, **training: Any) -> ProtocolAlgorithm:
    """The algorithm of a config, with some settings of its learning rule changed."""
    return ALGORITHMS[config.algorithm.name]().experiment(config).training(**training).build_algo()


def train(algorithm: ProtocolAlgorithm, iterations: int) -> Weights:
    """Train so many iterations; returns a copy of all weights."""
    for _ in range(iterations):
        algorithm.train()
    return weights(algorithm)


def trained(config: ExperimentConfig, iterations: int, **training: Any) -> Weights:
    """The weights after so many iterations of an algorithm that is stopped then."""
    algorithm = built(config, **training)
    try:
        return train(algorithm, iterations)
    finally:
        algorithm.stop()


def weights(algorithm: ProtocolAlgorithm) -> Weights:
    return {agent: copied(network.state_dict()) for agent, network in algorithm.networks().items()}


def copied(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in state.items()}


def distance(first: Mapping[str, Mapping[str, Tensor]], second: Mapping[str, Mapping[str, Tensor]]) -> float:
    """The largest absolute difference of two sets of weights."""
    assert first.keys() == second.keys()
    largest = 0.0
    for agent, state in first.items():
        assert state.keys() == second[agent].keys()
        for name, value in state.items():
            difference = (value.double() - second[agent][name].double()).abs()
            assert torch.isfinite(difference).all(), f"{agent}.{name}"
            largest = max(largest, float(difference.max()) if difference.numel() else 0.0)
    return largest


def runner_weights(algorithm: ProtocolAlgorithm) -> list[Weights]:
    """What every env runner that plays has for weights."""
    return algorithm.env_runner_group.foreach_env_runner(_weights_of, local_env_runner=algorithm.shares_modules)


def _weights_of(runner: Any) -> Weights:
    return {agent: copied(module.unwrapped().network.state_dict()) for agent, module in runner.module.items()}
