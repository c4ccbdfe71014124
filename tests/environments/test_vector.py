"""Many copies at once: the same episodes as in environments of one copy, each beginning when its last has ended."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import nip_ray.gymnasium as seats
import nip_ray.pettingzoo as zoo
import nip_ray.vector
from nip_ray.config.experiment import ExperimentConfig
from nip_ray.drivers.runner import run_runner
from nip_ray.errors import UserError
from nip_ray.evaluation.attackers import Uniform
from tests.environments.test_pettingzoo import CONFIGS
from tests.tiers import thinned

COPIES, ROUNDS, SEED = 5, 30, 11


MESSAGES = {"protocol": {"name": "message_game"}, "scenario": {"name": "message_game"}}


def sampled(env: Any, agent: str, mask: np.ndarray[Any, Any], random: np.random.Generator) -> Any:
    """A legal choice of each factor by a flat mask, as an array."""
    space = env.action_space(agent)
    sizes = [int(space.n)] if hasattr(space, "n") else space.nvec.tolist()
    parts = np.split(mask, np.cumsum(sizes)[:-1])
    return np.array([random.choice(part.nonzero()[0]) for part in parts])


@pytest.mark.parametrize("config", thinned(CONFIGS, 3))
def test_copies_play_the_episodes_of_environments_of_their_own(config: ExperimentConfig) -> None:
    many, random, ended = nip_ray.vector.parallel(config, COPIES), np.random.default_rng(0), 0
    ones = [zoo.parallel(config) for _ in range(COPIES)]
    seen, infos = many.reset(seed=SEED)
    expected = [one.reset(seed=SEED + i)[0] for i, one in enumerate(ones)]
    for _ in range(ROUNDS):
        actions = {
            agent: np.stack([sampled(many, agent, row, random) for row in seen[agent]["action_mask"]])
            for agent in many.possible_agents
        }
        for agent in many.possible_agents:
            for i in range(COPIES):
                assert seen[agent]["action_mask"][i].tolist() == np.concatenate(
                    [np.atleast_1d(expected[i][agent]["action_mask"])]
                    if isinstance(expected[i][agent]["action_mask"], np.ndarray)
                    else expected[i][agent]["action_mask"]
                ).tolist()  # fmt: skip
                for key, x in expected[i][agent]["observation"].items():
                    np.testing.assert_allclose(seen[agent]["observation"][key][i], x, rtol=1e-5, atol=1e-6)
                assert infos["turn"][agent][i] == (agent in ones[i].single.turns)
        seen, rewards, terminated, truncated, infos = many.step(actions)
        for i, one in enumerate(ones):
            last, paid, ends, cuts, told = one.step({agent: actions[agent][i] for agent in one.agents})
            for agent in many.possible_agents:
                assert rewards[agent][i] == pytest.approx(paid[agent])
                assert (terminated[agent][i], truncated[agent][i]) == (ends[agent], cuts[agent])
                assert infos["illegal"][agent][i] == told[agent]["illegal"]
                assert infos["instance"][i] == told[agent]["instance"]
            if not one.agents:
                place = infos["final"]["copies"].tolist().index(i)
                for agent in many.possible_agents:
                    for key, x in last[agent]["observation"].items():
                        found = infos["final"][agent]["observation"][key][place]
                        np.testing.assert_allclose(found, x, rtol=1e-5, atol=1e-6)
                last, ended = one.reset()[0], ended + 1
            expected[i] = last
    assert ended >= COPIES


class Fond(Uniform):
    """Fond of some legal choices by their numbers and the round: no ties, which rounding would decide by batch size."""

    def forward(self, obs: Any, want_policy: bool = True, want_value: bool = True) -> Any:
        policy, _ = super().forward(obs)
        round_N = obs["round"].float()

        def fond(x: Any) -> Any:
            if x is None:
                return None
            place = torch.arange(x.shape[-1])
            return x + ((place * 7 + round_N.view(-1, *[1] * (x.ndim - 1)) * 3) % 13 + place * 1e-3)

        parts = {name: fond(getattr(policy, name)) for name in ("message", "linear", "decision")}
        return replace(policy, **parts), None


@pytest.mark.parametrize("agent", ["prover0", "prover1", "verifier"])
def test_vector_seats_play_what_seats_play_one_by_one(run: Path, agent: str, monkeypatch: pytest.MonkeyPatch) -> None:
    trained = seats.trained
    monkeypatch.setattr(seats, "trained", lambda *a: {name: Fond(net) for name, net in trained(*a).items()})
    options: dict[str, Any] = {"run_dir": run, "agent": agent, "greedy": True}
    many = gymnasium.make_vec("nip_ray/Seat-v0", num_envs=COPIES, **options)
    assert isinstance(many.unwrapped, seats.VectorSeat)
    one_by_one = SyncVectorEnv([lambda: seats.Seat(**options)] * COPIES, autoreset_mode=AutoresetMode.SAME_STEP)
    random, finals = np.random.default_rng(1), 0
    seen, other = many.reset(seed=SEED)[0], one_by_one.reset(seed=SEED)[0]
    for _ in range(ROUNDS):
        for key, x in other.items():
            np.testing.assert_allclose(seen[key], x, rtol=1e-5, atol=1e-6)
        space = many.single_action_space
        sizes = [int(space.n)] if hasattr(space, "n") else space.nvec.tolist()  # type: ignore[attr-defined]
        actions = np.stack([[random.integers(size) for size in sizes] for _ in range(COPIES)])
        seen, *found, infos = many.step(actions)
        other, *expected, told = one_by_one.step(actions)
        for x, y in zip(found, expected):
            np.testing.assert_allclose(x, y, atol=1e-6)
        illegal = np.array([told["final_info"]["illegal"][i] if over else told["illegal"][i]
                            for i, over in enumerate(found[1] | found[2])])  # fmt: skip
        np.testing.assert_array_equal(infos["illegal"], illegal)
        over = found[1] | found[2]
        if over.any():
            assert infos["_final_obs"].tolist() == told["_final_obs"].tolist() == over.tolist()
            for i in over.nonzero()[0]:
                finals += 1
                for key, x in told["final_obs"][i].items():
                    np.testing.assert_allclose(infos["final_obs"][i][key], x, rtol=1e-5, atol=1e-6)
    assert finals >= COPIES


@pytest.mark.parametrize("autoreset", ["next_step", "same_step"])
def test_a_driver_learns_in_a_seat(run: Path, tmp_path: Path, autoreset: str) -> None:
    """By one batch where the vector form restarts as the driver asks for, else by a loop."""
    options = {"run_dir": str(run), "agent": "prover0", "label": 0}
    learner = {"name": "ppo", "algorithm": {"name": "ppo", "rollouts": 2, "mini_batches": 1, "num_epochs": 1}}
    environment = {"id": "nip_ray.gymnasium:nip_ray/Seat-v0", "options": options, "num_copies": 2}
    result = run_runner(
        {
            "environment": environment | {"autoreset": autoreset},
            "learners": [learner],
            "driver": {"timesteps": 4},
            "evaluation": {"timesteps": 2, "num_copies": 2},
            "experiment": {"storage_path": str(tmp_path)},
        }
    )
    assert result.metrics["eval/ppo/episodes"] >= 2


def test_an_ended_copy_stays_as_it_is_while_others_play_on() -> None:
    copies = nip_ray.vector.parallel(MESSAGES, 2).copies
    copies.reset(seed=0)
    actions = {agent: np.zeros((2, len(copies.sizes[agent])), int) for agent in copies.agents}
    while not bool(copies.play.over_B[0]):
        copies.step(actions, torch.tensor([True, False]))
    ended = copies.text(0)
    copies.step(actions)
    assert copies.text(0) == ended
    assert copies.text(1) != ended


def test_a_member_that_has_voted_has_one_choice() -> None:
    panel = {"protocol": {"name": "judge_panel", "judges": 2, "max_rounds": 4}}
    copies = nip_ray.vector.parallel({**zoo.IDS["nip_ray/graph_isomorphism_judge_panel-v0"], **panel}, 1).copies
    copies.reset(seed=0)
    while not bool(copies.turn_B("judge0")[0]):
        copies.step({agent: np.zeros((1, len(copies.sizes[agent])), int) for agent in copies.agents})
    actions = {agent: np.zeros((1, len(copies.sizes[agent])), int) for agent in copies.agents}
    actions["judge1"][0, -1] = 2  # continues
    copies.step(actions)
    copies.step({agent: np.zeros((1, len(copies.sizes[agent])), int) for agent in copies.agents})
    assert (bool(copies.turn_B("judge0")[0]), bool(copies.turn_B("judge1")[0])) == (False, True)
    assert [int(mask_BS.sum()) for mask_BS, _ in copies._factors("judge0")] == [1] * len(copies.sizes["judge0"])


def test_a_list_of_seeds_is_one_for_each_copy() -> None:
    env = nip_ray.vector.parallel(MESSAGES, 3)
    _, told = env.reset(seed=[7, None, 5])
    assert told["instance"][0] == nip_ray.vector.parallel(MESSAGES, 1).reset(seed=7)[1]["instance"][0]
    assert told["instance"][2] == nip_ray.vector.parallel(MESSAGES, 1).reset(seed=5)[1]["instance"][0]


def test_rows_without_a_turn_may_hold_anything() -> None:
    env = begun()
    _, rewards, *_ = env.step({"player0": np.array([0, 1, 0]), "player1": np.array([-1, 99, -1])})
    assert rewards["player0"].tolist() == [0, 0, 0]


def begun() -> Any:
    env = nip_ray.vector.parallel(zoo.IDS["nip_ray/kuhn_poker-v0"], 3)
    env.reset(seed=0)
    return env


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: nip_ray.vector.parallel(zoo.IDS["nip_ray/kuhn_poker-v0"], 0), "num_copies: got 0, expected a whole"),
        (lambda: begun().step({"player0": np.zeros(2, int)}), "player0: got the action .* for each of 3 copies"),
        (lambda: begun().step({"player0": np.zeros((1, 3), int)}), "player0: got the action .* for each of 3 copies"),
        (lambda: begun().step({"player0": [[0], [0, 1], [0]]}), "player0: got the action"),
        (lambda: begun().step({"dealer": np.zeros(3, int)}), "step: there are actions of dealer, expected only"),
        (lambda: begun().reset(seed=-1), "seed: got -1, expected a whole number of at least 0"),
        (lambda: begun().reset(seed=[1, 2]), r"seed: got \[1, 2\], expected a whole number"),
        (lambda: begun().reset(options={"id": [[0], [1, 2]]}), "options.id: got"),
        (lambda: begun().reset(options={"id": [0, 1, 9]}), r"options.id: got \[0, 1, 9\], expected a whole number"),
    ],
)  # fmt: skip
def test_bad_input_is_one_clear_line(call: Any, said: str) -> None:
    with pytest.raises(UserError, match=f"^{said}"):
        call()
