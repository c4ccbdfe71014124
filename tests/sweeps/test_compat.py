"""What we use of Ray Tune that is not public is still there, in the Ray that it was read from."""

import inspect

import pytest
import ray
from ray import tune
from ray.tune.experiment import Trial
from ray.tune.search import BasicVariantGenerator

from nip_ray.sweeps.compat import PRIVATE


@pytest.mark.parametrize("name, read_in", PRIVATE.items())
def test_private_names_are_still_there(name: str, read_in: str) -> None:
    there = {
        *(f"Tuner({parameter})" for parameter in inspect.signature(tune.Tuner).parameters),
        *(f"BasicVariantGenerator.{attribute}" for attribute in vars(BasicVariantGenerator())),
        *(f"Trial.temporary_state.{attribute}" for attribute in vars(Trial("PPO", stub=True).temporary_state)),
    }
    assert name in there, f"Ray {ray.__version__} has no {name}, which was read in {read_in}"
    assert read_in == ray.__version__, "read it again in this Ray, and write its version there"
