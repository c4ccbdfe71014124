"""Both doors to the batched core open on the same game: the one-copy env and the batched env runner, step by step."""

import warnings
from typing import Any

import numpy as np
import pytest
import torch
from ray.rllib.utils.pre_checks.env import check_multiagent_environments

from nip_ray.config.experiment import ExperimentConfig
from nip_ray.play.rollout import own_rows
from nip_ray.rllib.env_runner import ProtocolEnvRunner
from nip_ray.rllib.ppo import ProtocolPPOConfig
from nip_ray.rllib.protocol_env import ProtocolEnv
from tests.rllib.experiments import GAMES, experiment, game_id, hironaka

COPIES = 12


def runner_of(config: ExperimentConfig) -> ProtocolEnvRunner:
    """A local env runner without an algorithm."""
    return ProtocolEnvRunner(config=ProtocolPPOConfig().experiment(config), worker_index=0, num_workers=0)


def env_of(config: ExperimentConfig, **options: Any) -> ProtocolEnv:
    return ProtocolEnv({"experiment": config.model_dump(mode="json"), **options})


def plain(value: Any) -> np.ndarray[Any, Any]:
    return np.asarray(value, dtype=np.float64)


CONFIGS = [pytest.param(experiment(game), id=game_id(game)) for game in GAMES]
CONFIGS += [
    pytest.param(
        experiment(dict(name=name), dict(message_size=2, linear_symbols=3)), id=f"{name}-long-and-linear-messages"
    )
    for name in ("nip", "multi_channel_test")
]
SCRIPTED = dict(
    host=dict(kind="scripted", player="zeillinger"),
    agent=dict(kind="scripted", player="random", others=["choose_first"]),
)
CONFIGS += [
    pytest.param(hironaka(**agents), id=f"hironaka-{name}")
    for name, agents in (("learned", {}), ("scripted", SCRIPTED))
]


@pytest.mark.parametrize("config", CONFIGS)
def test_both_doors_give_the_same_episodes(config: ExperimentConfig) -> None:
    """What the runner plays, played again copy by copy through the env with the same ids, episode seeds and actions."""
    runner = runner_of(config)
    assert runner.play is not None
    scenario, protocol = runner.play.scenario, runner.play.protocol
    (sample,) = runner.sample(iteration=3, num_episodes=COPIES)
    rollout = sample.rollout
    rows = {agent: own_rows(scenario, rollout, agent) for agent in protocol.agents}
    env = env_of(config)
    assert env.possible_agents == list(protocol.agents)
    lengths = set()
    for copy in range(COPIES):
        obs, _ = env.reset(options={"id": int(rollout.id_B[copy]), "seed": int(rollout.seed_B[copy])})
        acted: set[str] = set()
        infos: dict[str, Any] = {}
        done = False
        for round in range(int(rollout.length_B[copy])):
            assert not done
            turns = {agent for index, agent in enumerate(protocol.agents) if rollout.turn_BRA[copy, round, index]}
            assert set(obs) == turns, round
            actions = {}
            for agent in turns:
                row = rows[agent].row_BR[copy, round]
                assert obs[agent].keys() == rows[agent].obs.keys()
                for key, value in rows[agent].obs.items():
                    np.testing.assert_array_equal(
                        plain(obs[agent][key]), plain(value[row]), err_msg=f"{agent} {key} in round {round}"
                    )
                action = {key: value[row][None] for key, value in rows[agent].action.items()}
                actions[agent] = env.layouts[agent].join(action)[0].numpy()
            acted |= turns
            obs, rewards, terminated, truncated, infos = env.step(actions)
            paid = {agent: rollout.reward_BRA[copy, round, index].item() for index, agent in enumerate(protocol.agents)}
            assert rewards == {agent: paid[agent] for agent in acted}
            done, last = terminated["__all__"] or truncated["__all__"], round == int(rollout.length_B[copy]) - 1
            assert truncated["__all__"] == (last and rollout.cut_B is not None and bool(rollout.cut_B[copy]))
        assert done
        assert set(obs) == acted
        if protocol.verifier:
            assert {info["verdict"] for info in infos.values()} == {int(rollout.verdict_B[copy])}
        assert not rollout.turn_BRA[copy, int(rollout.length_B[copy]) :].any()
        assert not rollout.reward_BRA[copy, int(rollout.length_B[copy]) :].any()
        lengths.add(int(rollout.length_B[copy]))
    if rollout.cut_B is not None:
        assert 0 < int(rollout.cut_B.sum()) < COPIES, "both ends should come up"
    if protocol.verifier and protocol.min_rounds < protocol.max_rounds and protocol.verifier_turns > 1:
        assert len(lengths) > 1, "some copies should end early, or this test shows little"


def test_unseeded_copies_play_different_episodes() -> None:
    """Stock RLlib seeds environments only where `config.seed` is set, and makes one for each copy of each runner."""
    first, second = env_of(experiment(GAMES[0])), env_of(experiment(GAMES[0]))

    def played(env: ProtocolEnv, seed: int | None) -> list[int]:
        env.reset(seed=seed)
        return [int(env.play.id_B[0]) for _ in range(20) if env.reset()]

    assert played(first, None) != played(second, None)
    assert played(first, 4) == played(second, 4)


def drawn(env: ProtocolEnv, agent: str, seen: Any) -> Any:
    """A random action that is legal."""
    mask = (np.asarray(seen["legal"], dtype=np.int8),) if "legal" in seen else None
    return env.action_spaces[agent].sample(mask=mask)


@pytest.mark.parametrize("config", CONFIGS)
def test_the_env_keeps_rllibs_contract(config: ExperimentConfig) -> None:
    """RLlib's own checker, and what it leaves out: spaces, who is asked, who is paid, what an end looks like."""
    env = env_of(config)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # the checker asks for this attribute of older envs and checks nothing without it
        env._agent_ids = set(env.possible_agents)
        env.observation_space, env.action_space = env.observation_spaces, env.action_spaces
        check_multiagent_environments(env)
    assert set(env.observation_spaces) == set(env.action_spaces) == set(env.possible_agents) == set(env.agents)
    for space in env.action_spaces.values():
        space.seed(1)
    for episode in range(6):
        obs, infos = env.reset(seed=episode)
        assert obs
        assert set(infos) <= set(obs)
        waiting, done = set(obs), False
        rounds = 0
        while not done:
            for agent, seen in obs.items():
                assert env.observation_spaces[agent].contains(seen), agent
            obs, rewards, terminated, truncated, infos = env.step(
                {agent: drawn(env, agent, seen) for agent, seen in obs.items()}
            )
            rounds += 1
            done = terminated["__all__"] or truncated["__all__"]
            assert waiting <= set(rewards), "whoever acted is told what it was paid"
            assert all(isinstance(value, float) for value in rewards.values())
            assert set(terminated) | set(truncated) == {"__all__"}
            assert set(infos) <= set(obs)
            assert obs, "somebody acts next, or gets a last observation"
            waiting = waiting | set(obs)
            assert rounds <= env.play.protocol.max_rounds
        for agent, seen in obs.items():
            assert env.observation_spaces[agent].contains(seen), agent


def test_reset_seeds_the_draw_of_instances_and_episode_seeds() -> None:
    env = env_of(experiment(dict(name="merlin_arthur")))

    def drawn(seed: int) -> list[tuple[int, int]]:
        found = []
        for number in range(8):
            env.reset(seed=seed if number == 0 else None)
            found.append((int(env.play.id_B[0]), int(env.play.state.seed_B[0])))
        return found

    first = drawn(5)
    assert first == drawn(5)
    assert first != drawn(6)
    assert len(set(first)) > 4


def test_the_env_plays_the_split_it_is_told_to() -> None:
    config = experiment(dict(name="nip"))
    train, test = env_of(config), env_of(config, split="test")
    assert not set(train.instances.tolist()) & set(test.instances.tolist())
    for _ in range(5):
        test.reset()
        assert int(test.play.id_B[0]) in set(test.instances.tolist())


def test_what_a_runner_plays_is_a_function_of_iteration_and_share() -> None:
    """A second runner, or the same one asked again, plays the same; another iteration or share is another game."""
    config = experiment(dict(name="nip"), play=dict(num_copies=6))
    first, second = runner_of(config), runner_of(config)
    (a,), (b,) = first.sample(iteration=4), second.sample(iteration=4)
    (again,) = first.sample(iteration=4)
    (other,) = first.sample(iteration=5)
    for one in (b, again):
        assert torch.equal(a.rollout.id_B, one.rollout.id_B)
        assert torch.equal(a.rollout.seed_B, one.rollout.seed_B)
        assert torch.equal(a.rollout.main_BRACM, one.rollout.main_BRACM)
        assert torch.equal(a.rollout.log_prob_BRA, one.rollout.log_prob_BRA)
    assert not torch.equal(a.rollout.seed_B, other.rollout.seed_B)
    assert first.iteration == 6
    assert len(first.sample(num_timesteps=17)[0]) == 3  # whole episodes of 8 rounds
