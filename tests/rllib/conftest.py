"""Algorithms that tests build and that are stopped after them."""

from collections.abc import Iterator
from typing import Any

import pytest

from nip_ray.config.experiment import ExperimentConfig
from nip_ray.rllib.algorithm import ProtocolAlgorithm
from tests.rllib.experiments import built


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
