"""Whether a cluster can hold what a run asks for, and what is said when it cannot."""

import itertools
import random
import time
from pathlib import Path

import pytest

from nip_ray.cluster import ray_session
from nip_ray.cluster.resources import Bundle, missing, trial_bundles, worker_bundles
from nip_ray.config.experiment import ExperimentConfig
from nip_ray.errors import UserError
from nip_ray.rllib.cluster import start_ray
from nip_ray.runs import pretraining
from nip_ray.runs.experiment import run_experiment
from tests.runs.small import MESSAGES, small

ONE: Bundle = {"CPU": 1}


def test_what_fits_lacks_nothing() -> None:
    assert missing([ONE] * 4, [{"CPU": 4.0}]) == ""
    assert missing([], [{"CPU": 1.0}]) == ""
    assert missing([], []) == ""
    assert missing([ONE] * 4, [{"CPU": 1.0, "memory": 1e9}, {"CPU": 3.0, "GPU": 1.0}]) == ""


@pytest.mark.parametrize(
    ("bundles", "nodes", "said"),
    [
        (
            [ONE] * 64 + [{"CPU": 2, "GPU": 1}],
            [{"CPU": 4.0}, {"CPU": 2.0, "GPU": 1.0}],
            ("66 CPU and 1 GPU are", "6 of 65 processes fit"),
        ),
        (
            [{"CPU": 6}],
            [{"CPU": 4.0}, {"CPU": 4.0}],
            ("one process requests 6 CPU, and the largest node has 4 CPU; lower ",),
        ),
        (
            [{"CPU": 3}] * 3,
            [{"CPU": 5.0}, {"CPU": 5.0}],
            ("its nodes have 5 CPU, 5 CPU", "2 of 3 processes fit; lower "),
        ),
        (
            [{"CPU": 1, "GPU": 1}] * 2,
            [{"CPU": 8.0, "GPU": 1.0}],
            ("1 of 2 processes fit", "lower the GPUs for each env runner"),
        ),
    ],
    ids=["too few", "one too large", "pieces too small", "GPUs"],
)
def test_what_is_lacking_is_said(bundles: list[Bundle], nodes: list[dict[str, float]], said: tuple[str, ...]) -> None:
    found = missing(bundles, nodes)
    assert all(part in found for part in said), found


def test_a_share_of_a_gpu_is_a_share_of_one_gpu() -> None:
    node = {"CPU": 8.0, "GPU": 2.0}
    assert missing([{"GPU": 0.5}] * 4, [node]) == ""
    assert missing([{"GPU": 0.1}] * 10 + [{"GPU": 1}], [node]) == ""  # ten times 0.1 is 1, whatever floats make of it
    assert "2 of 3 processes fit" in missing([{"GPU": 0.6}] * 3, [node])
    assert "lower the GPUs" in missing([{"GPU": 0.6}] * 3, [node])
    assert missing([{"GPU": 2}], [node]) == ""
    assert "1 of 2 processes fit" in missing([{"GPU": 2}, {"GPU": 0.5}], [node])


@pytest.mark.parametrize("seed", range(40))
def test_it_refuses_exactly_what_no_placement_holds(seed: int) -> None:
    """Against trying all placements."""
    dice = random.Random(seed)
    kinds = [dice.choice([1, 2, 3, 4, 5]) for _ in range(2)]
    bundles: list[Bundle] = [{"CPU": dice.choice(kinds)} for _ in range(dice.randint(2, 6))]
    nodes = [{"CPU": float(dice.randint(2, 9))} for _ in range(dice.randint(1, 3))]
    possible = any(
        all(sum(b["CPU"] for b, at in zip(bundles, place) if at == i) <= node["CPU"] for i, node in enumerate(nodes))
        for place in itertools.product(range(len(nodes)), repeat=len(bundles))
    )
    assert (missing(bundles, nodes) == "") == possible


def test_bundles_are_those_of_the_config() -> None:
    workers = (
        "play.num_env_runners=2",
        "play.num_cpus_per_env_runner=0.5",
        "learners.num_learners=1",
        "learners.num_gpus_per_learner=1",
    )
    config = small(*workers, "runtime.num_cpus=2", base=MESSAGES)
    assert isinstance(config, ExperimentConfig)
    assert worker_bundles(config) == [{"CPU": 0.5}, {"CPU": 0.5}, {"CPU": 1, "GPU": 1}]
    assert trial_bundles(config) == [{"CPU": 2}, *worker_bundles(config)]


def test_a_run_that_can_never_be_placed_is_refused_at_once(ray_session: None, tmp_path: Path) -> None:
    began = time.monotonic()
    with pytest.raises(UserError) as refused:
        run_experiment(small("play.num_env_runners=64", base=MESSAGES), tmp_path / "run", quiet=True)
    assert time.monotonic() - began < 20  # imports, most of it
    said = str(refused.value)
    assert said.startswith(
        "the cluster is too small for this config: it has 4 CPU in all, and 64 CPU are requested (64 x 1 CPU)"
    )
    assert "4 of 64 processes fit; lower play.num_env_runners" in said
    assert "\n" not in said


def test_it_is_refused_before_bodies_are_pretrained(
    ray_session: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pretraining, "pretrain", lambda *_: pytest.fail("pretrained"))
    workers = ("learners.num_learners=4", "learners.num_gpus_per_learner=1", "pretraining.agents=[prover]")
    with pytest.raises(UserError, match="too small"):
        run_experiment(small(*workers), tmp_path / "run", quiet=True)


def test_more_workers_than_cores_are_told_of(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ray_session, "start_ray", lambda *_: True)
    for workers in (1, 640):
        start_ray(small(f"play.num_env_runners={workers}", "runtime.autoscaling=true", base=MESSAGES))
    said = capsys.readouterr().err.splitlines()
    assert [line.startswith("warning: 640 processes take turns on the") for line in said] == [True]
    start_ray(small("play.num_env_runners=0", "learners.num_learners=640", "runtime.autoscaling=true", base=MESSAGES))
    said = capsys.readouterr().err
    assert "fewer learners.num_learners" in said
    assert "play.num_env_runners" not in said
