"""The configs for a laptop, a GPU machine and a cluster; the model of an iteration's time against what was measured,
and at its limits."""

import json
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nip_ray.config.experiment import ExperimentConfig
from nip_ray.config.load import load_config
from tests.runs.small import ROOT, nip_ray

sys.path.insert(0, str(ROOT / "benchmarks"))  # as for a script of that folder

from _scaling import Machines, Parts, iteration_time, load_parts

CONFIGS = ("scale_laptop", "scale_one_gpu", "scale_cluster")
MEASURED = ROOT / "benchmarks" / "scaling.json"
EXPERIMENTS = ("gi_published", "message_game")
TINY = [
    "iterations=1",
    "play.num_copies=8",
    "algorithm.minibatch_size=12",
    "algorithm.num_epochs=1",
    "scenario.data.num_train=40",
    "scenario.data.num_test=20",
    "pretraining.num_epochs=1",
    "runtime.num_threads=1",
]
RATIO = 1.35  # between modelled and measured ratios to (0, 0): those were taken in turns


def config(name: str) -> Path:
    return ROOT / "tune_configs" / f"{name}.yaml"


def loaded(name: str) -> ExperimentConfig:
    found = load_config(config(name))
    assert isinstance(found, ExperimentConfig)
    return found


@pytest.mark.parametrize("name", CONFIGS)
def test_each_config_is_the_fast_experiment_elsewhere(name: str) -> None:
    """As many copies in all, and the same but for where they are played and learned from."""
    fast, scaled = loaded("gi_fast"), loaded(name)
    assert scaled.play.num_copies * max(1, scaled.play.num_env_runners) == fast.play.num_copies
    elsewhere = {"name", "play", "learners", "runtime"}
    assert scaled.model_dump(exclude=elsewhere) == fast.model_dump(exclude=elsewhere)


def trained(folder: Path, name: str, *more: str) -> dict[str, Any]:
    """The one row of metrics of a tiny run, in a process of its own with its own Ray if it needs one."""
    settings = [word for setting in (*TINY, *more) for word in ("--set", setting)]
    nip_ray("train", config(name), "--run-dir", folder / "run", "--quiet", *settings, check=0)
    (line,) = (folder / "run" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return json.loads(line)


@pytest.mark.slow
def test_the_cluster_config_trains_on_one_machine(tmp_path: Path) -> None:
    """Two runners and two learners on its CPUs."""
    fewer = ("runtime.ray_address=null", "play.num_env_runners=2", "learners.num_gpus_per_learner=0")
    row = trained(tmp_path, "scale_cluster", *fewer)
    assert (row["iteration"], row["episodes"]) == (1, 16), "eight copies from each of two runners"


def measured(experiment: str) -> tuple[Parts, dict[tuple[int, int], Mapping[str, Any]], int]:
    """The shipped parts, the rows by (runners, learners), and the CPUs of the machine."""
    parts, rows = load_parts(MEASURED, experiment)
    machine = json.loads(MEASURED.read_text(encoding="utf-8"))["machine"]
    assert not machine["quick"], "the shipped figures are those of a full run"
    return (
        parts,
        {(row["runners"], row["learners"]): row for row in rows if row["threads"] == 1 and not row.get("staleness")},
        machine["cpus"],
    )


@pytest.mark.parametrize("experiment", EXPERIMENTS)
@pytest.mark.parametrize("variant", [(0, 0), (1, 0), (2, 0)])
def test_the_model_meets_what_was_measured(experiment: str, variant: tuple[int, int]) -> None:
    """Ratios to (0, 0), since seconds of different minutes are not comparable on a machine that drifts."""
    parts, rows, cpus = measured(experiment)
    alone = iteration_time(parts, Machines(cpus=cpus)).total
    expected = iteration_time(parts, Machines(runners=variant[0], learners=variant[1], cpus=cpus)).total / alone
    assert 1 / RATIO < expected / rows[variant]["ratio"] < RATIO


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_play_ahead_in_the_model(experiment: str) -> None:
    """It hides the shorter of the two, where there are CPUs for both."""
    parts, _, _ = measured(experiment)
    large = Machines(nodes=8, runners=64, learners=8)
    plain, ahead = (iteration_time(parts, machines) for machines in (large, replace(large, ahead=True)))
    assert plain.total - ahead.total == pytest.approx(plain.sample + plain.collect)
    assert ahead.bottleneck not in ("sample", "collect")
    one = Machines(runners=1, cpus=1)
    assert (
        iteration_time(parts, replace(one, ahead=True)).total >= iteration_time(parts, one).total - parts.call_s * 1.001
    ), "one CPU"
