"""Hironaka's game through both doors, stock PPO on it, and our PPO and REINFORCE on games that are cut off."""

import warnings
from typing import Any

import numpy as np
import pytest
import torch
from ray.rllib.utils.pre_checks.env import check_multiagent_environments

from nip_ray.config.experiment import ExperimentConfig
from nip_ray.config.load import config_from_dict
from nip_ray.play.rollout import own_rows
from nip_ray.rllib.env_runner import ProtocolEnvRunner
from nip_ray.rllib.ppo import ProtocolPPOConfig
from nip_ray.rllib.protocol_env import ProtocolEnv
from tests.rllib.experiments import built, weights

COPIES = 12
SMALL: dict[str, Any] = dict(name="hironaka", max_points=6, max_rounds=5, num_train=200, num_test=20, rho_games=10)
NETWORK = dict(point_width=8, width=16, depth=1)


def hironaka(algorithm: str = "ppo", **agents: Any) -> ExperimentConfig:
    config = config_from_dict(
        {
            "protocol": {"name": "hironaka"},
            "scenario": {**SMALL, "agents": {"_default": NETWORK, **agents}},
            "algorithm": {"name": algorithm, "minibatch_size": 64, **({"num_epochs": 2} if algorithm == "ppo" else {})},
            "play": {"num_copies": 24},
        }
    )
    assert isinstance(config, ExperimentConfig)
    return config


SCRIPTED = dict(host=dict(kind="scripted", player="zeillinger"), agent=dict(kind="scripted", player="random", others=["choose_first"]))


@pytest.mark.parametrize("agents", [{}, SCRIPTED], ids=["learned", "scripted"])
def test_both_doors_give_the_same_games(agents: dict[str, Any]) -> None:
    config = hironaka(**agents)
    runner = ProtocolEnvRunner(config=ProtocolPPOConfig().experiment(config), worker_index=0, num_workers=0)
    assert runner.play is not None
    scenario, protocol = runner.play.scenario, runner.play.protocol
    (sample,) = runner.sample(iteration=3, num_episodes=COPIES)
    rollout = sample.rollout
    assert rollout.cut_B is not None
    rows = {agent: own_rows(scenario, rollout, agent) for agent in protocol.agents}
    env = ProtocolEnv({"experiment": config.model_dump(mode="json")})
    for copy in range(COPIES):
        obs, _ = env.reset(options={"id": int(rollout.id_B[copy]), "seed": int(rollout.seed_B[copy])})
        length = int(rollout.length_B[copy])
        for round in range(length):
            agent = protocol.agents[round % 2]
            assert set(obs) == {agent}
            row = int(rows[agent].row_BR[copy, round])
            for key, value in rows[agent].obs.items():
                np.testing.assert_array_equal(np.asarray(obs[agent][key], dtype=np.float64), value[row].double().numpy(), err_msg=key)
            obs, rewards, terminated, truncated, _ = env.step({agent: rows[agent].action["message"][row].numpy()})
            for index, name in enumerate(protocol.agents):
                assert rewards.get(name, 0.0) == float(rollout.reward_BRA[copy, round, index])
            cut = bool(rollout.cut_B[copy])
            assert terminated["__all__"] == (round == length - 1 and not cut)
            assert truncated["__all__"] == (round == length - 1 and cut)
    assert 0 < int(rollout.cut_B.sum()) < COPIES, "both ends should come up"


def test_the_env_keeps_rllibs_contract() -> None:
    env = ProtocolEnv({"experiment": hironaka().model_dump(mode="json")})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        env._agent_ids = set(env.possible_agents)
        env.observation_space, env.action_space = env.observation_spaces, env.action_spaces
        check_multiagent_environments(env)
    draw = np.random.default_rng(0)
    for episode in range(5):
        obs, _ = env.reset(seed=episode)
        done = False
        while not done:
            for agent, seen in obs.items():
                assert env.observation_spaces[agent].contains(seen), agent
            actions = {agent: np.array([draw.choice(np.flatnonzero(seen["legal"]))]) for agent, seen in obs.items()}
            obs, _, terminated, truncated, _ = env.step(actions)
            done = terminated["__all__"] or truncated["__all__"]


@pytest.mark.parametrize("rule", ["ppo", "reinforce", "stackelberg"])
def test_our_rules_train_both_players_on_games_that_are_cut_off(rule: str) -> None:
    algorithm = built(hironaka(rule))
    try:
        before = weights(algorithm)
        for _ in range(2):
            algorithm.train()
        after = weights(algorithm)
    finally:
        algorithm.stop()
    for agent, state in before.items():
        assert any(not torch.equal(value, after[agent][name]) for name, value in state.items()), agent
        assert all(bool(torch.isfinite(value).all()) for value in after[agent].values())


def test_a_scripted_opponent_has_no_weights_and_stands_still() -> None:
    algorithm = built(hironaka(agent=dict(kind="scripted", player="choose_first")))
    try:
        algorithm.train()
        found = weights(algorithm)
    finally:
        algorithm.stop()
    assert not found["agent"]
    assert found["host"]
