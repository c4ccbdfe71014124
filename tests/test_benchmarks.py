"""The plain loop that benchmarks time RLlib against does the same mathematics: equal weights, to the last bit."""

import importlib
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from nip_ray.config.load import load_config
from nip_ray.rllib.cluster import build_algorithm

ROOT = Path(__file__).resolve().parents[1]
TINY = {
    "message_game": ("play.num_copies=32", "algorithm.minibatch_size=64"),
    "gi_fast": (
        "search=null",
        "algorithm.verdict_gradient=sampled",
        "algorithm.average_weights=null",
        "play.num_copies=16",
        "algorithm.minibatch_size=24",
        "algorithm.num_epochs=2",
        "scenario.data.num_train=60",
        "scenario.data.num_test=20",
    ),
}


@pytest.mark.parametrize("name", TINY)
def test_the_plain_loop_and_rllib_learn_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    common = importlib.import_module("_common")
    experiment = load_config(ROOT / "tune_configs" / f"{name}.yaml", TINY[name])
    algorithm, plain = build_algorithm(experiment), common.PlainLoop(experiment)
    try:
        for _ in range(2):
            algorithm.train()
            plain.learn(plain.sample())
        for agent, network in algorithm.networks().items():
            for key, weights in network.state_dict().items():
                assert torch.equal(weights, plain.agents[agent].state_dict()[key]), (agent, key)
    finally:
        algorithm.stop()
        for module in ("_common", "ppo_loop"):
            sys.modules.pop(module, None)


def test_the_gate_tells_a_slowdown_from_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten pairs by two clocks: 5 % by one of them is found under a noise of 2 %, and equal trees or wide noise are no
    slowdown."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    gate = importlib.import_module("gate")
    try:
        noise_TKC = np.random.default_rng(1).normal(0, 0.02, (50, 10, 2))
        slower = [gate.is_slower(noise_KC + np.array([0, np.log(1.05)])) for noise_KC in noise_TKC]
        assert sum(slower) >= 45
        assert sum(gate.is_slower(noise_KC) for noise_KC in noise_TKC) <= 2
        assert sum(gate.is_slower(10 * noise_KC + np.log(1.05)) for noise_KC in noise_TKC) <= 10
        with pytest.raises(SystemExit, match="error: --base: no commit 'nowhere' here"):
            gate.commit_of("nowhere")
    finally:
        for module in ("gate", "_gate_cases"):
            sys.modules.pop(module, None)


def test_the_table_of_protocols_has_both_halves_of_the_worst_case_and_no_interval_of_two_seeds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    table, made = importlib.import_module("protocol_table"), importlib.import_module("_protocol_table_page")
    right = {"estimate": 0.25, "lower": 0.125, "upper": 0.5, "n": 8}
    chosen = {"completeness_under_attack": {**right, "attacker": "own"}}
    assert table.completeness_error({}) == {}, "where no prover is paid for rejection nobody attacks true claims"
    assert table.completeness_error(chosen) == {"estimate": 0.75, "lower": 0.5, "upper": 0.875, "n": 8, "by": "own"}
    exact = {**chosen, "attack": {"completeness": {"every_message": {**right, "estimate": 0.2}}}}
    assert table.completeness_error(exact)["by"] == "every_message"
    row = {
        "case": "debate",
        "seed": 0,
        "minutes": 1.0,
        **dict.fromkeys(("accuracy", "searched", "soundness_error"), right),
    }
    lines = made._table(
        {"debate": [{**row, "completeness_error": table.completeness_error(chosen)}]}, {}, {}
    ).splitlines()
    assert lines[2] == "| debate | 1 | .250 | .250 | +0.000 | .250 | .750 | - | - | - | 1.0, - |"
    tried = [
        {"case": "nip", "lr": rate, "accuracy": {"estimate": share}}
        for rate, share in ((1.0, 0.9), (1.0, 0.5), (1.0, 0.5), (2.0, 0.6))
    ]
    assert (table.tuned(tried, "nip", 3.0), table.tuned(tried, "mnip", 3.0)) == (2.0, 3.0)
    seeds = [{"estimate": share, "n": 100} for share in (0.5, 0.6, 0.55, 0.5, 0.6)]
    assert (made._over_seeds(seeds[:2]), "to" in made._over_seeds(seeds)) == (".550", True)
