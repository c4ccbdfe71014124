"""What we use of RLlib that is not public: here alone, each name with the version of Ray in which it was read.

`EnvRunnerGroup` puts its config into the object store in any case. That starts a cluster for a run that is all in this process; and Ray
cannot make an actor anew whose arguments the store has lost. No option prevents it, so while an algorithm of ours is built, that one
module of RLlib sees another `ray.put`; `ray` itself, and whoever else calls it, is left alone.
"""

# pyright: basic, reportAttributeAccessIssue=false, reportPrivateImportUsage=false, reportOptionalMemberAccess=false
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import ray
from ray.rllib.algorithms import algorithm
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.env import env_runner_group
from ray.rllib.env.env_runner_group import EnvRunnerGroup


@dataclass(frozen=True)
class Private:
    """A name that may be another one in the next Ray. owner: the class that has it, or whose instances have it."""

    owner: str
    name: str
    read_in: str = "2.60.0"


PRIVATE = (
    Private("EnvRunnerGroup", "_worker_manager"),
    Private("LearnerGroup", "_learner"),
    Private("LearnerGroup", "_workers"),
    Private("Algorithm", "_storage"),
    Private("Algorithm", "_logdir"),
    Private("Algorithm", "_setup_logdir"),
    Private("AlgorithmConfig", "_dont_auto_sync_env_runner_states"),
    Private("Learner", "_device"),
    Private("Learner", "_weights_seq_no"),
    Private("Learner", "_make_modules_ddp_if_necessary"),
    Private("EnvRunner", "_check_component"),
    Private("EnvRunner", "_get_subcomponents"),
    Private("TorchDistribution", "_get_torch_distribution"),
)
"""Held by tests/rllib/test_compat.py."""


def actors_of(group: EnvRunnerGroup) -> Any:
    """The manager of a group's remote env runners."""
    return group._worker_manager


def local_learner(group: Any) -> Any:
    """The learner in this process; None where learners are remote."""
    return group._learner


def remote_learners(group: Any) -> list[Any]:
    """The actors of remote learners."""
    return list(group._workers or [])


class _Ray:
    """The module `ray` with another `put`."""

    def __init__(self, put: Callable[[Any], Any]) -> None:
        self.put = put

    def __getattr__(self, name: str) -> Any:
        return getattr(ray, name)


class _Group(EnvRunnerGroup):
    """Asks the local env runner for spaces, not the first remote one, which there may not be where it could not be made."""

    def get_spaces(self) -> Any:
        local = self.local_env_runner
        return None if local is None else local.get_spaces()  # none yet: it is to find out for itself


_LOCK = threading.RLock()  # of the names that are exchanged below


@contextmanager
def runners_by_value(store: bool) -> Iterator[None]:
    """Within it env runners are made from the config itself, some kilobytes. store: other things go to the object store as ever."""
    put = ray.put
    with _LOCK:
        before = env_runner_group.ray, algorithm.EnvRunnerGroup
        env_runner_group.ray = _Ray(lambda value: put(value) if store and not isinstance(value, AlgorithmConfig) else value)
        algorithm.EnvRunnerGroup = _Group
        try:
            yield
        finally:
            env_runner_group.ray, algorithm.EnvRunnerGroup = before
