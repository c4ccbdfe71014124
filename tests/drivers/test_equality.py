"""All drivers are the same training: number for number; so is a resumed run in any process."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nip_ray.drivers.agents import make_agent
from nip_ray.drivers.contract import arrays
from nip_ray.drivers.core import Reports
from nip_ray.drivers.environments import Recipe
from nip_ray.drivers.loops import SequentialDriver, StepDriver
from nip_ray.drivers.parallel import ParallelDriver
from nip_ray.errors import LearnerLost, TrainingError, UserError
from nip_ray.settings.drivers import EnvironmentSettings
from nip_ray.storage.checkpoint import load_checkpoint, save_checkpoint
from tests.drivers.small import CARTPOLE, DQN, PPO, RANDOM, agents, counting, quiet, same

ROOT = Path(__file__).resolve().parents[2]
SYNC = EnvironmentSettings(num_copies=6, vectorization="sync", autoreset="same_step")
SHARED = EnvironmentSettings(num_copies=6, shared=True)
PENDULUM = EnvironmentSettings(id="Pendulum-v1", num_copies=6, options={"max_episode_steps": 15})


def sequential(environment: Any, *learners: Any, timesteps: int = 48, env: str = "CartPole-v1") -> dict[str, Any]:
    driver = SequentialDriver(environment, agents(*learners, env=env), quiet(timesteps), seed=5)
    driver.train()
    state = driver.state_dict()
    driver.close()
    return state


@pytest.mark.parametrize("environment", [CARTPOLE, SYNC, SHARED], ids=["vector", "sync", "shared"])
def test_steps_are_what_the_sequential_driver_does(environment: EnvironmentSettings) -> None:
    driver = StepDriver(environment, agents(PPO, DQN), quiet(48), seed=5)
    for _ in range(48):
        driver.step()
    assert same(driver.state_dict(), sequential(environment, PPO, DQN))
    driver.close()


def test_a_learner_is_not_touched_by_its_neighbour() -> None:
    with_dqn, with_random = sequential(SYNC, PPO, DQN), sequential(SYNC, PPO, RANDOM)
    assert same(with_dqn["agents"][0], with_random["agents"][0])
    assert not same(with_dqn["agents"][0], sequential(SYNC, DQN, PPO)["agents"][1])


@pytest.mark.parametrize(
    "environment",
    [CARTPOLE, pytest.param(SHARED, marks=pytest.mark.slow), pytest.param(SYNC, marks=pytest.mark.slow)],
    ids=["own", "shared", "own-loops"],
)
def test_processes_learn_what_the_sequential_driver_learns_and_bring_it_home(
    environment: EnvironmentSettings, ray_session: None
) -> None:
    """And one that dies is named."""
    import ray

    learners = agents(PPO, DQN)
    driver = ParallelDriver(environment, learners, quiet(48), seed=5)
    try:
        rows: list[dict[str, Any]] = []
        driver.train(reports=Reports(write_interval=16, on_row=rows.append))
        expected = sequential(environment, PPO, DQN)
        found = driver.state_dict()
        for state in (found, expected):  # a run that writes rows has taken its figures; another has not
            for statistics in state["statistics"]:
                statistics.update(finished=None, reward_sum=None, reward_count=None)
            for agent in state["agents"]:
                agent["tracked"] = None
        assert same(found, expected)
        for agent, state in zip(learners, expected["agents"], strict=True):
            assert same({**agent.state_dict(), "tracked": None}, state)
        assert [row["iteration"] for row in rows] == [16, 32, 48]
        assert rows[-1]["env_steps_total"] == driver.env_steps
        assert {"learner_0/policy_loss", "learner_1/value_loss", "learner_1/return_mean"} <= set().union(*rows)
        evaluated = driver.evaluate(30)
        ray.kill(driver._seats[1]._actor)
        with pytest.raises(LearnerLost, match="learner_1: its process is gone"):
            [driver.evaluate(30) for _ in range(100)]  # a killed process may still answer for a moment
    finally:
        driver.close()
    again = SequentialDriver(environment, learners, quiet(48), seed=5)
    again.core.timestep = 48
    assert evaluated == again.evaluate(30)
    again.close()


def broken(copies: int) -> Any:
    raise ValueError("no such simulator")


def test_an_error_in_a_process_is_told(ray_session: None) -> None:
    with pytest.raises(TrainingError, match="learner_0: ValueError: no such simulator"):
        ParallelDriver(Recipe(broken, 6), agents(PPO), quiet(40))
    with pytest.raises(UserError, match="need 60 processors"):
        ParallelDriver(CARTPOLE, agents(PPO, PPO), quiet(40, threads_per_learner=30))


RESUME = """
import sys
from pathlib import Path
from tests.drivers.test_equality import STOPPED, resumed
for name in STOPPED:
    resumed(name, Path(sys.argv[1]) / name, "there")
"""
STOPPED = {"vector": (CARTPOLE, DQN), "sync": (SYNC, DQN), "pendulum": (PENDULUM, PPO)}
"""Environment and second learner of runs that are stopped."""


def stopping(name: str) -> SequentialDriver:
    settings, second = STOPPED[name]
    return SequentialDriver(settings, agents(PPO, second, env=settings.id), quiet(48), seed=5)


def resumed(name: str, folder: Path, where: str) -> None:
    """Continue from the checkpoint of timestep 21 in `folder` to the end, and save that in its folder `where`."""
    driver = stopping(name)
    load(driver, folder, 21)
    driver.train()
    save(driver, folder / where)
    driver.close()


def load(driver: SequentialDriver, folder: Path, timestep: int) -> None:
    driver.load_state_dict(load_checkpoint(folder, timestep).tensors["driver"])


def save(driver: SequentialDriver, folder: Path) -> None:
    save_checkpoint(folder, driver.timestep, {"driver": driver.state_dict()}, {}, "x", None)


def test_a_run_that_is_resumed_in_a_new_process_is_the_one_that_is_resumed_here(tmp_path: Path) -> None:
    for name in STOPPED:
        driver = stopping(name)
        driver.train(21)  # in the middle of a stretch and of episodes
        save(driver, tmp_path / name)
        driver.close()
    done = subprocess.run(
        [sys.executable, "-c", RESUME, str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for name in STOPPED:
        resumed(name, tmp_path / name, "here")
        here, there = (load_checkpoint(tmp_path / name / where).tensors for where in ("here", "there"))
        assert same(here, there)


def stateful(copies: int) -> Any:
    """An environment that can say where it stands."""
    env: Any = counting(copies)

    def state_dict() -> dict[str, Any]:
        return {"at": np.array([(one.episode, one.count) for one in env.envs]), "over": env._autoreset_envs.copy()}

    def load_state_dict(state: dict[str, Any]) -> None:
        for one, (episode, count) in zip(env.envs, state["at"], strict=True):
            one.episode, one.count = int(episode), int(count)
        env._autoreset_envs = arrays(state["over"])

    env.state_dict, env.load_state_dict = state_dict, load_state_dict
    return env


@pytest.mark.parametrize("make", [stateful, counting])
def test_an_environment_that_says_where_it_stands_continues_there_others_begin_anew(make: Any, tmp_path: Path) -> None:
    def driven() -> SequentialDriver:
        env = make(3)
        agent = make_agent(PPO, env.single_observation_space, env.single_action_space, 3, 0, 0)
        return SequentialDriver(env, agent, quiet(40))

    driver, again = driven(), driven()
    driver.train(5)
    save(driver, tmp_path)
    load(again, tmp_path, 5)
    again_stored = again.agents[0].state_dict()["stored"]
    assert again_stored["truncated"][-1].any() == (make is counting)  # the stretch in progress knows of the cut
    if make is counting:
        assert again.core.parts[0].copies.observations[:, 1].tolist() == [0, 0, 0]
        assert again.core.learners[0].statistics.length_B.tolist() == [0, 0, 0]
    driver.train()
    again.train()
    assert same(again.state_dict(), driver.state_dict()) == (make is stateful)
    driver.close()
    again.close()
