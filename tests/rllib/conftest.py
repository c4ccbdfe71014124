"""One thread for these small games: with several processes on few cores, more threads only wait for each other."""

import os
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from nip_ray.config.experiment import ExperimentConfig
from nip_ray.rllib.algorithm import ProtocolAlgorithm
from tests.rllib.experiments import built


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    before, variable = torch.get_num_threads(), os.environ.get("OMP_NUM_THREADS")
    torch.set_num_threads(1)
    os.environ["OMP_NUM_THREADS"] = "1"
    yield
    torch.set_num_threads(before)
    if variable is not None:
        os.environ["OMP_NUM_THREADS"] = variable


@pytest.fixture
def made() -> Iterator[Any]:
    """Makes algorithms of configs; they are stopped afterwards."""
    algorithms: list[ProtocolAlgorithm] = []

    def make(config: ExperimentConfig, **training: Any) -> ProtocolAlgorithm:
        algorithms.append(built(config, **training))
        return algorithms[-1]

    yield make
    for algorithm in algorithms:
        algorithm.stop()
