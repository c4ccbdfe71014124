"""Returns and lengths, copy by copy."""

import numpy as np

from nip_ray.drivers.contract import Transition
from nip_ray.drivers.statistics import EpisodeStatistics, information


def step(statistics: EpisodeStatistics, reward: list[float], over: list[bool], valid: list[bool] | None = None) -> None:
    seen = np.zeros((len(reward), 1), dtype=np.float32)
    ends, none = np.array(over), np.zeros(len(over), dtype=bool)
    mask = None if valid is None else np.array(valid)
    statistics.add(Transition(seen, seen, np.array(reward, dtype=np.float32), seen, ends, none, mask, {}))


def test_an_episode_that_ends_leaves_other_copies_alone() -> None:
    statistics = EpisodeStatistics(3)
    for _ in range(5):
        step(statistics, [1, 1, 1], [False, True, False])
    assert statistics.return_B.tolist() == [5, 0, 5]
    assert statistics.length_B.tolist() == [5, 0, 5]
    assert statistics.finished == [(1, 1.0, 1)] * 5
    assert statistics.env_steps == 15


def test_a_step_that_is_no_transition_counts_for_nothing() -> None:
    statistics = EpisodeStatistics(2)
    step(statistics, [1, 1], [True, False])
    step(statistics, [9, 1], [False, False], [False, True])
    assert statistics.env_steps == 3
    assert statistics.length_B.tolist() == [0, 2]
    assert statistics.take()["reward_mean"] == 1


def test_single_numbers_of_infos_are_tags() -> None:
    infos = {"episode": {"speed": np.array([2.5]), "a/b": 3, "each": np.zeros(4), "word": "x"}, "other": 1}
    assert information(infos, "episode") == {"info/speed": 2.5, "a/b": 3.0}
    assert information(infos, "absent") == {}
    absent = {"episode": {"r": np.array([3.0]), "_r": np.array([True]), "l": np.array([0]), "_l": np.array([False])}}
    assert information(absent, "episode") == {"info/r": 3.0}, "of the second Gymnasium says that there is none"
