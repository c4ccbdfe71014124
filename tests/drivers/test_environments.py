"""Where episodes begin and end, whatever the environment's way of beginning again."""

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from nip_ray.drivers.agents import make_agent
from nip_ray.drivers.agents.base import encoder
from nip_ray.drivers.contract import rows
from nip_ray.drivers.environments import Copies, make_environment
from nip_ray.drivers.loops import SequentialDriver
from nip_ray.drivers.spec import load_runner
from nip_ray.errors import UserError
from nip_ray.settings.drivers import EnvironmentSettings, LearnerSettings
from tests.drivers.small import DQN, PPO, RANDOM, Counting, counting, quiet

MODES = ("next_step", "same_step", "disabled")


def transitions(mode: str, steps: int = 40) -> list[list[tuple]]:
    """Every transition of each of three copies: (observation, reward, next observation, terminated, truncated)."""
    copies = Copies(counting(3, mode))
    copies.reset(0)
    found: list[list[tuple]] = [[], [], []]
    for _ in range(steps):
        before = copies.observations
        after, reward, terminated, truncated, valid, _ = copies.step(np.zeros(3, dtype=np.int64))
        for i in range(3):
            if valid is None or valid[i]:
                found[i].append((tuple(before[i]), reward[i], tuple(after[i]), bool(terminated[i]), bool(truncated[i])))
    copies.close()
    return found


@pytest.mark.parametrize("mode", MODES)
def test_every_transition_is_one_that_the_environment_made(mode: str) -> None:
    for copy, found in enumerate(transitions(mode)):
        episode, count = 0, 0
        for before, reward, after, terminated, truncated in found:
            assert before == (episode, count)
            assert after == (episode, count + 1)
            assert reward == count + 1
            over = count + 1 == 2 + (episode + copy) % 3
            assert terminated == (over and episode % 2 == 0)
            assert truncated == (over and episode % 2 == 1)
            episode, count = (episode + 1, 0) if over else (episode, count + 1)
        assert episode > 5


def test_copies_of_a_loop_play_the_same_episodes_in_a_slice_and_in_the_whole() -> None:
    settings = EnvironmentSettings(num_copies=5, vectorization="sync")
    whole, part = Copies(make_environment(settings, 5)), Copies(make_environment(settings, 2), first=3)
    actions = np.random.default_rng(0).integers(0, 2, (80, 5))
    for copies in (whole, part):
        copies.reset(7, "episodes")
    for action in actions:
        whole.step(action)
        part.step(action[3:])
        assert np.array_equal(rows(whole.observations, 3, 5), part.observations)
    assert not np.array_equal(whole.observations[0], whole.observations[1])


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (EnvironmentSettings(id="CartPol-v1"), "did you mean CartPole"),
        (EnvironmentSettings(id="no_such_module:Env-v0"), "expected one that Gymnasium knows"),
        (
            EnvironmentSettings(id="nip_ray.scenarios.hironaka.environments:nip_ray/HironakaHos-v0"),
            "did you mean nip_ray/HironakaHost",
        ),
        (EnvironmentSettings(id="Pendulum-v1", vectorization="vector_entry_point"), "no vector form of its own"),
        (
            EnvironmentSettings(vectorization="vector_entry_point", autoreset="same_step"),
            "can only next_step; try vectorization: sync",
        ),
        (
            EnvironmentSettings(vectorization="sync", options={"sutton_barto_rewards": True}),
            "options.sutton_barto_rewards: .*did you mean",
        ),
        (EnvironmentSettings(options={"gravity_of_the_moon": 1.6}), "expected one of max_episode_steps"),
    ],
)
def test_environments_that_cannot_be_are_refused(settings: EnvironmentSettings, words: str) -> None:
    with pytest.raises(UserError, match=words):
        make_environment(settings, 2)


class Hand(Counting):
    """`Counting` that shows ((step, 3), {"bit": step % 2})."""

    observation_space = gymnasium.spaces.Tuple(  # type: ignore[assignment]
        [
            gymnasium.spaces.MultiDiscrete([9, 3], start=[0, 1]),
            gymnasium.spaces.Dict({"bit": gymnasium.spaces.Discrete(2)}),
        ]
    )

    def _seen(self) -> Any:
        return np.array([self.count, 3]), {"bit": self.count % 2}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("learner", [PPO, DQN, RANDOM], ids=["ppo", "dqn", "random"])
def test_tuples_and_several_counts_are_seen_in_all_modes_and_kept(mode: str, learner: LearnerSettings) -> None:
    env = SyncVectorEnv([lambda: Hand(0), lambda: Hand(1)], autoreset_mode=AutoresetMode[mode.upper()])
    agent = make_agent(learner, env.single_observation_space, env.single_action_space, 2, 0, 0)
    driver = SequentialDriver(env, agent, quiet(24))
    driver.train(12)
    shown = driver.core.parts[0].copies.observations
    assert shown["0"].shape == (2, 2)
    state = driver.state_dict()
    driver.load_state_dict(state)
    driver.train()
    assert driver.evaluate(6)["learner_0/episodes"] > 0
    driver.close()
    width, encode = encoder(env.single_observation_space)
    assert width == 14
    rows = encode({"0": np.array([[4, 3], [0, 1]]), "1": {"bit": np.array([1, 0])}})
    assert [np.flatnonzero(row).tolist() for row in rows] == [[4, 11, 13], [0, 9, 12]]


def test_arguments_of_an_environment_may_be_lists() -> None:
    settings = load_runner(
        {"environment": {"id": "FrozenLake-v1", "options": {"desc": ["SF", "FG"], "is_slippery": False}}}
    )
    assert isinstance(settings.environment, EnvironmentSettings)
    env = make_environment(settings.environment, 2)
    assert env.single_observation_space == gymnasium.spaces.Discrete(4)
    env.close()
