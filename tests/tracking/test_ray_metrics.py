"""A run's figures as metrics of Ray, read where Prometheus reads them, and the board that shows them."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from nip_ray.tracking.ray_metrics import METRICS
from tests.docs.metrics import documented_metrics

ROOT = Path(__file__).resolve().parents[2]
BOARD = ROOT / "grafana" / "nip_ray.json"
ENDINGS = {"gauge": ("",), "counter": ("_total",), "histogram": ("_bucket", "_sum", "_count")}
# as Prometheus has it
EXPORTED = {f"ray_{name}{ending}" for name, metric in METRICS.items() for ending in ENDINGS[metric.kind]}

# of every metric one key at least, in two iterations
ROWS: list[dict[str, Any]] = [
    {
        "iteration": 1,
        "env_steps": 100,
        "env_steps_total": 5100,
        "env_steps_per_s": 400.0,
        "episodes": 16,
        "time/iteration_s": 0.2,
        "time/sample_s": 0.05,
        "time/learn_s": 0.15,
        "train/verifier/accuracy": 0.5,
        "train/verifier/accuracy/wl_score=-1": 0.125,  # of one group: not the headline
        "train/verifier/undecided": 0.0,
        "train/episode_length": 3.5,
        "train/prover/return": -1.25,
        "learn/prover/entropy": 1.5,
        "learn/prover/kl": 0.01,
        "learn/prover/grad_norm": 2.0,
        "learn/lr": 0.001,
    },
    {
        "iteration": 2,
        "env_steps": 150,
        "env_steps_total": 5250,
        "episodes": 16,
        "time/iteration_s": 0.7,
        "time/evaluate_s": 0.4,
        "train/verifier/accuracy": 0.75,
        "eval/verifier/accuracy": 0.625,
        "eval_sampled/verifier/soundness": 0.25,
        "eval/verifier/completeness": 1.0,
        "eval/verifier/solo_baseline": 0.875,
        "eval/exploitability": 0.5,
        "cost/usd": 0.5,
        "cost/tokens": 12000,
        "eval/verifier/undecided": None,
    },
]


@pytest.fixture(scope="module")
def scraped(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """(name, our tags) -> value, as a live Ray's endpoint says them."""
    scratch = Path(os.environ["RAY_TMPDIR"]) / "metrics"  # short, since Ray's sockets lie below it
    command = [
        sys.executable,
        str(Path(__file__).with_name("log_to_ray.py")),
        str(scratch),
        json.dumps(ROWS),
        "ray_nip_cost_tokens{",
    ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "RAY_AUTH_MODE": "disabled"}
    done = subprocess.run(
        command, env=environment, cwd=tmp_path_factory.mktemp("cwd"), capture_output=True, text=True, timeout=150
    )
    assert done.returncode == 0, done.stderr
    return {
        (
            sample.name,
            frozenset((key, value) for key, value in sample.labels.items() if key in {"run", "name", "split", "agent"}),
        ): sample.value
        for family in text_string_to_metric_families(done.stdout)
        for sample in family.samples
        if sample.name.startswith("ray_nip_") and sample.labels.get("le", "+Inf") == "+Inf"
    }


def tags(**more: str) -> frozenset[tuple[str, str]]:
    return frozenset({"run": "run-7", "name": "proofs", **more}.items())


@pytest.mark.slow
def test_what_a_run_says_arrives_at_the_endpoint(scraped: dict[Any, float]) -> None:
    assert scraped["ray_nip_iteration", tags()] == 2
    assert scraped["ray_nip_verifier_accuracy", tags(split="train")] == 0.75
    assert scraped["ray_nip_verifier_accuracy", tags(split="eval")] == 0.625
    assert scraped["ray_nip_verifier_soundness", tags(split="eval_sampled")] == 0.25
    assert scraped["ray_nip_agent_return", tags(split="train", agent="prover")] == -1.25
    assert scraped["ray_nip_env_steps_so_far", tags()] == 5250
    assert scraped["ray_nip_cost_usd", tags()] == 0.5
    assert scraped["ray_nip_env_steps_total", tags()] == 250, "counters count what this process has seen"
    assert scraped["ray_nip_episodes_total", tags()] == 32
    assert scraped["ray_nip_iteration_seconds_count", tags()] == 2
    assert scraped["ray_nip_seconds_in_iterations_total", tags()] == pytest.approx(0.9)
    assert 0.125 not in scraped.values(), "figures of groups are not exported"
    assert ("ray_nip_verifier_undecided", tags(split="eval")) not in scraped
    assert scraped["ray_nip_verifier_undecided", tags(split="train")] == 0


@pytest.mark.slow
def test_everything_in_the_table_is_exported_and_nothing_else(scraped: dict[Any, float]) -> None:
    assert {name for name, _ in scraped} == EXPORTED


def test_every_key_of_the_table_is_in_the_documentation_of_metrics() -> None:
    documented = documented_metrics(files=True)
    for metric in METRICS.values():
        key = re.sub(r"\(\?P<split>[^)]*\)", "train", metric.keys)
        key = re.sub(r"\(\?P<agent>[^)]*\)", "<agent>", key)
        assert f"`{key}`" in documented or key in documented, key


@pytest.fixture(scope="module")
def board() -> dict[str, Any]:
    return json.loads(BOARD.read_text(encoding="utf-8"))


def expressions(board: dict[str, Any]) -> Iterator[str]:
    for panel in board["panels"]:
        for target in panel.get("targets", []):
            yield target["expr"]


def test_the_board_asks_only_for_metrics_that_are_exported_and_for_each_of_them(board: dict[str, Any]) -> None:
    asked = {name for text in expressions(board) for name in re.findall(r"ray_\w+", text)}
    assert asked <= EXPORTED
    shown = {
        name
        for name in METRICS
        if any(re.search(rf"ray_{name}(_total|_bucket|_sum|_count)?\{{", text) for text in expressions(board))
    }
    assert shown == set(METRICS)
    assert board["templating"]["list"][1]["query"]["query"] == "label_values(ray_nip_iteration, run)"
