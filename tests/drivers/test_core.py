"""The order of calls, what learners are shown, and what evaluation leaves alone."""

import copy
from typing import Any

import numpy as np
import pytest

from nip_ray.drivers.agents import make_agent
from nip_ray.drivers.loops import SequentialDriver
from nip_ray.drivers.runner import DRIVERS
from nip_ray.errors import TrainingError
from nip_ray.settings.drivers import LearnerSettings
from tests.drivers.small import CARTPOLE, DQN, PPO, Recorder, Watched, agents, counting, quiet, same

TRACK = ["a.track info/speed", "a.track a/b"]


def watched(copies: int, sizes: list[int], **options: Any) -> tuple[SequentialDriver, list[str], list[Recorder]]:
    calls: list[str] = []
    recorders = [Recorder(name, calls, size) for name, size in zip("ab", sizes, strict=False)]
    driver = SequentialDriver(Watched(counting(copies), calls), recorders, quiet(2, **options), sizes)
    return driver, calls, recorders


def test_one_learner_is_called_in_the_documented_order() -> None:
    driver, calls, _ = watched(3, [3], headless=False, render_interval=2)
    driver.train()
    driver.close()
    assert calls == [
        *("a.training=True", "env.reset", "a.begin"),
        *("a.pre 0/2", "a.act 0", "env.step", "env.render", "a.record 0", *TRACK, "a.post 0"),
        *("a.pre 1/2", "a.act 1", "env.step", "a.record 1", *TRACK, "a.post 1"),
        "env.close",
    ]


class WithState(Watched):
    """Also shows how many steps there were since each copy's episode began, as its global state."""

    def state(self) -> np.ndarray:
        return np.array([[one.unwrapped.count] for one in self.env.envs])


class StateRecorder(Recorder):
    """Also writes down the states that it acts upon."""

    def act(
        self, observations: Any, timestep: int, timesteps: int, *, explore: bool = True, states: Any = None
    ) -> np.ndarray:
        self.calls.append(f"states {states.tolist()}")
        return super().act(observations, timestep, timesteps, explore=explore, states=states)


@pytest.mark.parametrize("mode", ["next_step", "disabled"])
def test_the_loop_by_hand_makes_the_calls_of_the_sequential_driver_with_states_pictures_and_infos(mode: str) -> None:
    made = []
    for name in ("sequential", "manual"):
        calls: list[str] = []
        recorder = StateRecorder("a", calls, 2)
        driver = DRIVERS[name](
            WithState(counting(2, mode), calls), recorder, quiet(5, headless=False, render_interval=2)
        )
        driver.train()
        driver.close()
        told = [call for call in calls if "training=" not in call]
        made.append((told, [(one.states.tolist(), one.next_states.tolist()) for one in recorder.seen]))
    assert made[0] == made[1]
    assert {"a.track info/speed", "env.render", "states [[0], [0]]"} <= set(made[0][0])
    assert made[0][1][1] == ([[1], [1]], [[2], [2]])  # also of the copy whose episode ends here


def test_learners_that_share_an_environment_take_turns_within_each_step() -> None:
    driver, calls, (first, second) = watched(5, [2, 3])
    driver.train(1)
    driver.close()
    assert calls[-14:-2] == [
        *("a.pre 0/2", "b.pre 0/2", "a.act 0", "b.act 0", "env.step"),
        *("a.record 0", "b.record 0", *TRACK, *(track.replace("a.", "b.", 1) for track in TRACK), "a.post 0"),
    ]
    assert calls[-2:] == ["b.post 0", "env.close"]
    whole = np.concatenate([first.seen[0].next_observations, second.seen[0].next_observations])
    assert whole.tolist() == [[0, 1]] * 5


@pytest.mark.parametrize("learner", [PPO, DQN], ids=["ppo", "dqn"])
@pytest.mark.parametrize("shared", [False, True], ids=["own-copies", "copies-of-training"])
def test_evaluation_teaches_nobody(learner: LearnerSettings, shared: bool) -> None:
    settings: Any = CARTPOLE if not shared else counting(6)
    made = (
        agents(learner)
        if not shared
        else [make_agent(learner, settings.single_observation_space, settings.single_action_space, 6, 0, 0)]
    )
    driver = SequentialDriver(settings, made, quiet(60))
    driver.train(13)
    before = copy.deepcopy(made[0].state_dict())
    steps = driver.env_steps
    figures = driver.evaluate(30)
    assert figures["learner_0/episodes"] > 0
    after = made[0].state_dict()
    if shared:  # the episodes in flight were cut, which a stretch in progress is told
        after["stored"] = before["stored"] = None
    assert same(before, after)
    assert driver.env_steps == steps
    driver.train(20)
    assert driver.env_steps > steps
    driver.close()


def test_an_environment_that_reuses_its_arrays_is_refused() -> None:
    env = counting(3)
    env.copy = False
    driver = SequentialDriver(env, Recorder("a", [], 3), quiet(3))
    with pytest.raises(TrainingError, match="copy=True"):
        driver.train()
    driver.close()


def test_what_is_about_rows_in_infos_is_cut_to_each_learners_own() -> None:
    calls: list[str] = []

    class Marking(Watched):
        def step(self, actions: Any) -> Any:
            *rest, _ = super().step(actions)
            over = rest[2] | rest[3]
            return *rest, {"outcomes": {"won": np.where(over, [1.0, 0.0, np.nan], 9.0)}, "whole": np.arange(3)}

    recorders = [Recorder("a", calls, 1), Recorder("b", calls, 2)]
    driver = SequentialDriver(Marking(counting(3), calls), recorders, quiet(60), [1, 2])
    driver.train()
    infos = recorders[1].seen[0].infos
    assert infos["outcomes"]["won"].shape == (2,)
    assert infos["whole"].tolist() == [0, 1, 2]
    row = driver.core.row()
    assert row["learner_0/won"] == 1
    assert row["learner_1/won"] == 0  # of the copy that it is about
    driver.close()
