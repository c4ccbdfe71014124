"""What we use of RLlib that is not public is still there, in the Ray that it was read from."""

import importlib
import sys
from typing import Any

import pytest
import ray
from ray.rllib.algorithms import algorithm as algorithm_module
from ray.rllib.env import env_runner_group
from ray.rllib.env.env_runner_group import EnvRunnerGroup

from nip_ray.environments.layout import Layout
from nip_ray.rllib.compat import PRIVATE, local_learner, runners_by_value
from nip_ray.rllib.module import distribution_class
from nip_ray.rllib.ppo import ProtocolPPOConfig
from tests.rllib.experiments import built, message_game


@pytest.fixture(scope="module")
def owners() -> Any:
    """An instance of each class that has such names."""
    algorithm: Any = built(message_game())
    learner = local_learner(algorithm.learner_group)
    yield {
        "Algorithm": algorithm,
        "AlgorithmConfig": algorithm.config,
        "EnvRunner": algorithm.env_runner,
        "EnvRunnerGroup": algorithm.env_runner_group,
        "Learner": learner,
        "LearnerGroup": algorithm.learner_group,
        "TorchDistribution": distribution_class(Layout(1, 2, 0, 0)),
    }
    algorithm.stop()


@pytest.mark.parametrize("private, read_in", PRIVATE.items())
def test_private_names_are_still_there(owners: dict[str, Any], private: str, read_in: str) -> None:
    """Set by RLlib, not by us: on the instance, or on a class of RLlib's."""
    of, _, name = private.partition(".")
    owner = owners[of]
    classes = type(owner).__mro__ if not isinstance(owner, type) else owner.__mro__
    theirs = [vars(one) for one in classes if not one.__module__.startswith("nip_ray")]
    assert name in getattr(owner, "__dict__", {}) or any(name in names for names in theirs), (
        f"Ray {ray.__version__} has no {private}, which was read in {read_in}"
    )
    assert read_in == ray.__version__, "read it again in this Ray, and write its version there"


def test_only_one_module_of_rllib_sees_another_put() -> None:
    """`ray.put` stays what it is for everybody else, and all is as before afterwards, nested too."""
    put = ray.put
    with runners_by_value(store=False):
        with runners_by_value(store=False):
            assert env_runner_group.ray.put(3) == 3
        assert env_runner_group.ray.put(3) == 3
        assert ray.put is put
    assert env_runner_group.ray is ray
    assert algorithm_module.EnvRunnerGroup is EnvRunnerGroup


def test_the_former_place_of_the_algorithms_leads_to_the_new_one() -> None:
    sys.modules.pop("nip_ray.rllib.algorithms", None)
    with pytest.warns(DeprecationWarning, match=r"nip_ray\.rllib\.algorithms: import from"):
        former = importlib.import_module("nip_ray.rllib.algorithms")
    assert (
        former.ProtocolPPOConfig
        is importlib.import_module("nip_ray.rllib.algorithms.ppo").ProtocolPPOConfig
        is ProtocolPPOConfig
    )
