"""All uses of non-public RLlib names, each with the version of Ray in which it was read.

`EnvRunnerGroup` always puts its config into the object store. That starts a cluster for a run in this process alone;
and Ray cannot restart an actor whose arguments the store has lost. No option prevents it, so while an algorithm of ours
is built, that one module of RLlib sees another `ray.put`; `ray` itself, and all other callers, are unaffected.
"""

# pyright: basic, reportAttributeAccessIssue=false, reportPrivateImportUsage=false, reportOptionalMemberAccess=false
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import ray
from ray.rllib.algorithms import algorithm
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.env import env_runner_group
from ray.rllib.env.env_runner_group import EnvRunnerGroup

PRIVATE = dict.fromkeys(
    (
        "EnvRunnerGroup._worker_manager",
        "LearnerGroup._learner",
        "LearnerGroup._workers",
        "Algorithm._storage",
        "Algorithm._logdir",
        "Algorithm._setup_logdir",
        "AlgorithmConfig._dont_auto_sync_env_runner_states",
        "Learner._weights_seq_no",
        "Learner._make_modules_ddp_if_necessary",
        "EnvRunner._check_component",
        "EnvRunner._get_subcomponents",
        "TorchDistribution._get_torch_distribution",
    ),
    "2.60.0",
)
"""`Class._name` -> the Ray that it was read from. Held by tests/rllib/test_compat.py."""


def actors_of(group: EnvRunnerGroup) -> Any:
    """The manager of a group's remote env runners."""
    return group._worker_manager


def local_learner(group: Any) -> Any:
    """The learner in this process; None if learners are remote."""
    return group._learner


def remote_learners(group: Any) -> list[Any]:
    """The actors of remote learners."""
    return list(group._workers or [])


def weights_number(learner: Any) -> int:
    """The sequence number of a learner's weights."""
    return learner._weights_seq_no


def number_weights(learner: Any, number: int) -> None:
    """Set the sequence number of a learner's weights."""
    learner._weights_seq_no = number


def wanted(owner: Any, name: str, components: Any, not_components: Any) -> dict[str, Any] | None:
    """The parts of component `name` requested by the caller of `owner.get_state`; None for none."""
    if not owner._check_component(name, components, not_components):
        return None
    found = {"components": components, "not_components": not_components}
    return {key: owner._get_subcomponents(name, value) for key, value in found.items()}


def send_no_states(config: AlgorithmConfig) -> None:
    """Env runners have no states of connectors to send around."""
    config._dont_auto_sync_env_runner_states = True


class WithoutLogFolder:
    """An algorithm that writes nothing to its log folder. Outside Tune RLlib leaves an empty one in the user's home."""

    def _setup_logdir(self) -> None:
        if self._storage is None:
            self._logdir = tempfile.gettempdir()
        else:
            super()._setup_logdir()


class WithoutDDP:
    """A learner whose modules are not wrapped for several learners."""

    def _make_modules_ddp_if_necessary(self) -> None:
        pass


class WithoutTorchDistribution:
    """A distribution that is not one of torch's."""

    def _get_torch_distribution(self, *args: object, **kwargs: object) -> None:
        return None


class _Ray:
    """The module `ray` with another `put`."""

    def __init__(self, put: Callable[[Any], Any]) -> None:
        self.put = put

    def __getattr__(self, name: str) -> Any:
        return getattr(ray, name)


class _Group(EnvRunnerGroup):
    """Gets spaces from the local env runner, not the first remote one, whose creation may have failed."""

    def get_spaces(self) -> Any:
        local = self.local_env_runner
        return None if local is None else local.get_spaces()  # none yet: it has to determine them


_LOCK = threading.RLock()  # protects the names that are replaced below


@contextmanager
def runners_by_value(store: bool) -> Iterator[None]:
    """Within it env runners are made from the config itself, some kilobytes. store: other objects go to the object
    store as usual."""
    put = ray.put
    with _LOCK:
        before = env_runner_group.ray, algorithm.EnvRunnerGroup
        env_runner_group.ray = _Ray(
            lambda value: put(value) if store and not isinstance(value, AlgorithmConfig) else value
        )
        algorithm.EnvRunnerGroup = _Group
        try:
            yield
        finally:
            env_runner_group.ray, algorithm.EnvRunnerGroup = before
