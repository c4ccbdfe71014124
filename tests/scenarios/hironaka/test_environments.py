"""One learner against a fixed opponent: Gymnasium's own checks, and that what is played is the game."""

import warnings
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode

from nip_ray.errors import UserError
from nip_ray.scenarios.hironaka.environments import HironakaEnv, HironakaVectorEnv
from nip_ray.settings.hironaka import SCRIPTED

OTHER = {"host": "agent", "agent": "host"}
IDS = {"host": "nip_ray/HironakaHost-v0", "agent": "nip_ray/HironakaAgent-v0"}
POINTS = [[7, 5, 3], [0, 6, 2], [4, 0, 8], [1, 1, 9]]


@pytest.mark.parametrize("role", ["host", "agent"])
@pytest.mark.parametrize(
    "settings", [{}, {"scale_observation": False, "max_points": 5}, {"dimension": 4, "max_rounds": 3}], ids=str
)
def test_gymnasiums_own_checker_finds_nothing(role: str, settings: dict[str, Any]) -> None:
    for opponent in SCRIPTED[OTHER[role]]:
        env = gymnasium.make(IDS[role], render_mode="ansi", opponent=opponent, **settings)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            check_env(env.unwrapped)


@pytest.mark.parametrize("role", ["host", "agent"])
def test_every_observation_lies_in_the_space_and_the_mask_says_what_moves(role: str) -> None:
    env = gymnasium.make(IDS[role], opponent="random", max_rounds=8, max_points=6)
    env.action_space.seed(0)
    ends = {"terminated": 0, "truncated": 0, "illegal": 0}
    for episode in range(30):
        obs, _ = env.reset(seed=episode)
        done = truncated = False
        while not done:
            assert env.observation_space.contains(obs)
            action = env.action_space.sample()
            before = obs
            obs, reward, terminated, truncated, info = env.step(action)
            assert info["illegal"] == (not before["action_mask"][action])
            if info["illegal"]:
                ends["illegal"] += 1
                assert reward == -0.001
                np.testing.assert_array_equal(before["points"], obs["points"])
            elif role == "host":
                assert reward == float(terminated)
            else:
                assert reward == -float(terminated)
            ends["terminated"] += terminated
            ends["truncated"] += truncated
            done = terminated or truncated
        assert (obs["points"][:, 0] >= 0).sum() == 1 or truncated
    assert ends["terminated"] > 5
    assert ends["truncated"] > 1
    assert (ends["illegal"] > 0) == (role == "agent")


def test_the_agent_sees_what_the_host_has_chosen() -> None:
    env = HironakaEnv("agent", "all_coordinates", render_mode="ansi")
    obs, _ = env.reset(seed=0, options={"points": POINTS})
    assert obs["choice"].tolist() == obs["action_mask"].tolist() == [1, 1, 1]
    assert env.render() == "round 0: (7 5 3), (4 0 8), (1 1 9), (0 6 2); the host chose [0, 1, 2]"


@pytest.mark.parametrize(
    ("points", "message"),
    [
        ([[1, 1, 1], [2, 2, 2]], "over"),
        ([[1, 2]], "shape"),
        ([[-1, 2, 3], [1, 1, 1]], "at least 0"),
        ([[float("nan"), 2, 3], [1, 1, 1]], "finite"),
        ([[1e30, 2, 3], [1, 1, 1]], "at most"),
        ([["a", 2, 3]], "numbers"),
        ([[i, 30 - i, 0] for i in range(25)], "points"),
    ],
)
def test_points_that_no_game_can_begin_with_are_one_clear_error(points: Any, message: str) -> None:
    env = HironakaEnv("host")
    with pytest.raises(UserError, match=message) as error:
        env.reset(options={"points": points})
    assert str(error.value).startswith("points")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_points": 1}, "max_points: got 1, expected int from 2 to 255"),
        ({"size": 3}, "size: no setting of this game"),
        ({"opponent": "zeillinger"}, "agent: unknown player 'zeillinger'"),
        ({"polytope": "hull"}, "polytope: got 'hull', expected one of minimal, exact"),
    ],
)
def test_a_wrong_argument_is_named(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        HironakaEnv(**{"role": "host", **settings})


@pytest.mark.parametrize("role", ["host", "agent"])
def test_many_copies_play_as_one_does(role: str) -> None:
    """The same start, the same actions, an opponent that does not draw: the same course, in one environment and in each
    copy."""
    opponent = {"host": "choose_last", "agent": "zeillinger"}[role]
    one = HironakaEnv(role, opponent, max_points=4, max_rounds=12)  # pyright: ignore[reportArgumentType]
    many = gymnasium.make_vec(
        IDS[role], 3, vectorization_mode="vector_entry_point", opponent=opponent, max_points=4, max_rounds=12
    )
    assert isinstance(many, HironakaVectorEnv)
    obs, _ = one.reset(seed=0, options={"points": POINTS})
    all_obs, _ = many.reset(seed=0, options={"points": POINTS})
    draw, done = np.random.default_rng(0), False
    while not done:
        assert many.observation_space.contains(all_obs)
        for name, value in obs.items():
            for row in all_obs[name]:
                np.testing.assert_array_equal(row, value)
        action = draw.integers(one.games.actions)
        obs, reward, terminated, truncated, info = one.step(action)
        all_obs, rewards, terminations, truncations, infos = many.step(np.full(3, action))
        assert set(rewards.tolist()) == {reward}
        assert (terminations == terminated).all()
        assert (truncations == truncated).all()
        assert (infos["illegal"] == info["illegal"]).all()
        done = terminated or truncated


def test_copies_that_have_ended_begin_anew_in_the_next_step() -> None:
    envs = gymnasium.make_vec(IDS["host"], 64, opponent="random", max_rounds=5, max_points=5)
    assert envs.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP
    envs.reset(seed=3)
    over, begun = np.zeros(64, bool), 0
    for _ in range(40):
        _, rewards, terminated, truncated, _ = envs.step(envs.action_space.sample())
        assert not rewards[over].any()
        assert not (terminated | truncated)[over].any(), "no game begins over"
        begun += int(over.sum())
        over = terminated | truncated
    assert begun > 200
