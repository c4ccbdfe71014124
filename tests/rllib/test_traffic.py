"""What travels between processes: small constructors, one put of the weights, one of the rollouts, ids and tokens
instead of graphs.

Bytes are what Ray serialises and reads in this process, watched by the benchmark that reports them
(`benchmarks/scaling.py`).
"""

import importlib.util
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import ray

from nip_ray.config.experiment import ExperimentConfig
from tests.rllib.experiments import built, experiment, message_game

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
COPIES = 64
LARGEST_ARGUMENT = 100_000  # Ray puts larger ones into the object store, where a restart may not find them again
PAIRS = 1000


@dataclass(frozen=True)
class Measured:
    """One variant: the largest constructor argument by class of actor, its traffic in a second iteration, and bytes of
    its weights."""

    constructors: Mapping[str, int]
    traffic: Any
    weights: int


@pytest.fixture(scope="module")
def benchmark() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patched:
        patched.syspath_prepend(str(BENCHMARKS))
        spec = importlib.util.spec_from_file_location("benchmark_scaling", BENCHMARKS / "scaling.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        patched.setitem(sys.modules, spec.name, module)
        spec.loader.exec_module(module)
        yield module
        sys.modules.pop("_common", None)


def graphs(num_train: int = 40, size: int = 7) -> ExperimentConfig:
    data = dict(
        num_train=num_train, num_test=10, graph_sizes=[size], non_iso_prop_score_1=0.5, non_iso_prop_score_2=0.5
    )
    return experiment(dict(name="nip"), dict(data=data), play=dict(num_copies=COPIES))


def measured(benchmark: ModuleType, config: ExperimentConfig, runners: int, learners: int) -> Measured:
    case = benchmark.Case(config, runners, learners)
    try:
        for _ in range(2):
            case.train(counts=True)
        weights = sum(v.nbytes for network in case.algorithm.networks().values() for v in network.state_dict().values())
        return Measured(case.constructors, case.traffic, weights)
    finally:
        case.algorithm.stop()


@pytest.fixture(scope="module")
def few(ray_session: None, benchmark: ModuleType) -> Measured:
    return measured(benchmark, graphs(PAIRS), 1, 1)


@pytest.fixture(scope="module")
def many(ray_session: None, benchmark: ModuleType) -> Measured:
    """Two runners and two learners, who between them play as many copies, of few pairs."""
    return measured(benchmark, graphs(), 2, 2)


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["few", "many"])
def test_constructors_of_actors_take_no_large_argument(variant: str, request: pytest.FixtureRequest) -> None:
    found: Measured = request.getfixturevalue(variant)
    assert len(found.constructors) == 2, "env runners and learners"
    assert 1000 < min(found.constructors.values()) <= max(found.constructors.values()) < LARGEST_ARGUMENT


@pytest.mark.slow
def test_weights_are_put_once_for_all_runners(few: Measured, many: Measured) -> None:
    for found in (few, many):
        puts = found.traffic.of("put", "weights")
        assert len(puts) == 1
        assert found.weights < puts[0].size < 1.5 * found.weights + 20_000, "the weights, and no optimizer"
        taken = found.traffic.of("read", "weights")
        assert sum(read.size > 1000 for read in taken) == 1, "from one of the learners alone"
        assert found.traffic.total("argument", "weights") < 10_000, "requests hold a reference"


@pytest.mark.slow
def test_rollouts_go_once_to_the_driver_and_in_one_put_to_all_learners(few: Measured, many: Measured) -> None:
    for found, runners in ((few, 1), (many, 2)):
        read = [moved for moved in found.traffic.of("read", "sample") if moved.size > 1000]
        assert len(read) == runners
        puts = found.traffic.of("put", "learn")
        assert len(puts) == 1
        assert puts[0].size <= sum(moved.size for moved in read), "nothing is added on the way"
        assert found.traffic.total("argument", "learn") < 10_000, "requests hold a reference"
    one, two = (found.traffic.total("put", "learn") for found in (few, many))
    assert two < one + 3000, "as many copies, whoever played them"


@pytest.mark.parametrize("config", [graphs(), message_game(play=dict(num_copies=COPIES))], ids=["nip", "message_game"])
def test_a_copy_is_ids_and_tokens(ray_session: None, benchmark: ModuleType, config: ExperimentConfig) -> None:
    """At most 64 bytes a copy, 24 an agent and round, and 8 a token."""
    size, rollout = sent(benchmark, config)
    copies, rounds, agents, channels, tokens = rollout.main_BRACM.shape
    kinds = 1 if rollout.linear_BRACM is None else 2
    most = 64 + rounds * agents * (24 + 8 * channels * tokens * kinds)
    assert copies == COPIES
    assert size < copies * most + 4000


def sent(benchmark: ModuleType, config: ExperimentConfig) -> tuple[int, Any]:
    """Bytes of a rollout as it is put for learners, and the rollout."""
    algorithm: Any = built(config)
    try:
        samples = algorithm.env_runner_group.local_env_runner.sample(iteration=0)
        traffic = benchmark.Traffic()
        with traffic.watching():
            ray.put(samples)
        return traffic.total("put"), samples[0].rollout
    finally:
        algorithm.stop()
