"""A run of consultancy and one of debate, whose agents are seated in environments."""

from pathlib import Path

import pytest

from nip_ray.runs.experiment import run_experiment
from tests.runs.small import small

SMALL = ("iterations=1", "checkpoint.interval=1", "scenario.data.num_train=40", "scenario.kernels=torch")
# in every round
PAID = ("protocol.verifier_no_guess_reward=-0.25", "protocol.payoff={prover0: {turns: {verifier: -0.5}}}")


@pytest.fixture(scope="session", params=["consultancy", "debate"])
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = small(*SMALL, *PAID, f"protocol.name={request.param}")
    return run_experiment(config, tmp_path_factory.mktemp("runs") / request.param, quiet=True).run_dir
