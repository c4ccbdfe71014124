"""The state of an environment, read off and put back."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import SyncVectorEnv

from nip_ray.drivers.environments import make_environment
from nip_ray.drivers.snapshots import put_snapshot, take_snapshot
from nip_ray.settings.drivers import EnvironmentSettings
from nip_ray.storage.checkpoint import load_checkpoint, save_checkpoint
from tests.drivers.small import Counting, counting

ENVIRONMENTS = {
    "vector": EnvironmentSettings(),
    "loop": EnvironmentSettings(vectorization="sync"),
    "same-step": EnvironmentSettings(vectorization="sync", autoreset="same_step"),
    "pendulum": EnvironmentSettings(id="Pendulum-v1", options={"max_episode_steps": 9}),
    "mountain-car": EnvironmentSettings(id="MountainCarContinuous-v0"),
    "acrobot": EnvironmentSettings(id="Acrobot-v1"),
    "frozen-lake": EnvironmentSettings(id="FrozenLake-v1"),
}


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_an_environment_goes_on_where_another_was(name: str, tmp_path: Path) -> None:
    first, second = (make_environment(ENVIRONMENTS[name], 4) for _ in range(2))
    first.reset(seed=3)
    second.reset(seed=8)
    first.action_space.seed(0)
    for _ in range(25):
        first.step(first.action_space.sample())
    snapshot = take_snapshot(first)
    assert snapshot is not None
    save_checkpoint(tmp_path, 1, {"env": snapshot}, {}, "x", None)
    put_snapshot(second, load_checkpoint(tmp_path).tensors["env"])
    for _ in range(60):
        action = first.action_space.sample()
        for one, other in zip(first.step(action)[:4], second.step(action)[:4], strict=True):
            assert np.array_equal(one, other)
            assert one.dtype == other.dtype
    first.close()
    second.close()


def test_what_cannot_be_read_has_no_snapshot() -> None:
    processes = make_environment(EnvironmentSettings(vectorization="async"), 2)
    try:
        assert take_snapshot(processes) is None
    finally:
        processes.close()
    env: Any = counting(2)
    assert take_snapshot(env) is not None
    env.envs[1].world = object()
    assert take_snapshot(env) is None


def test_an_environment_may_keep_its_own_state() -> None:
    class One(Counting):
        def __init__(self) -> None:
            super().__init__(0)
            self.world = object()

        def state_dict(self) -> dict[str, int]:
            return {"count": self.count}

        def load_state_dict(self, state: dict[str, int]) -> None:
            self.count = state["count"]

    loops = [SyncVectorEnv([One, One]) for _ in range(2)]
    loops[0].envs[1].count = 5  # type: ignore[attr-defined]
    put_snapshot(loops[1], take_snapshot(loops[0]) or {})
    assert [one.count for one in loops[1].envs] == [0, 5]  # type: ignore[attr-defined]
