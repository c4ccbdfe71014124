"""Protocols as PettingZoo environments: PettingZoo's own tests, and the same pay as in the batched core."""

import sys
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pettingzoo
import pytest
import torch
from gymnasium import spaces
from pettingzoo.test import api_test, parallel_api_test, parallel_seed_test, seed_test

import nip_ray.pettingzoo as zoo
from nip_ray.config.experiment import ExperimentConfig
from nip_ray.environments.experiment import experiment_of
from nip_ray.errors import UserError
from nip_ray.evaluation.attackers import Uniform
from nip_ray.learning.policy import FORBIDDEN_BELOW
from nip_ray.play.core import BatchedPlay, episode_seeds, instance_ids, play_rollout
from nip_ray.play.rollout import Rollout, own_rows
from nip_ray.protocols.tables import SHIPPED
from nip_ray.rllib.shared import networks_of, scenario_of
from tests.rllib.experiments import GAMES, experiment, game_id, hironaka
from tests.tiers import thinned

CHAINS: dict[str, Any] = dict(name="state_tracking", length=4, num_train=40, num_test=10)
IMAGES = dict(
    name="image_classification", data=dict(num_train=40, num_test=10), num_normalization_steps=64, num_block_groups=1
)
LONG = dict(message_size=2, linear_symbols=3)


def configs() -> Iterator[Any]:
    for game in GAMES:
        yield pytest.param(experiment(game), id=game_id(game))
    yield pytest.param(experiment(dict(name="multi_channel_test"), LONG), id="long-and-linear-messages")
    yield pytest.param(experiment(dict(name="nip"), dict(central_critic=True)), id="central-critic")
    yield pytest.param(hironaka(), id="hironaka")
    for task, names in ((CHAINS, ("nip", "adp", "debate", "bisection", "solo_verifier")), (IMAGES, ("nip", "debate"))):
        for name in names:
            protocol = dict(name=name, max_rounds=5) if name == "bisection" else dict(name=name)
            yield pytest.param(experiment_of(dict(protocol=protocol, scenario=task)), id=f"{task['name']}-{name}")


CONFIGS = list(configs())


@pytest.mark.parametrize("config", thinned(CONFIGS, 3))
def test_pettingzoos_own_tests_pass(config: ExperimentConfig) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PettingZoo would like boxes as observations, and agents that are numbered
        api_test(zoo.aec(config, render_mode="ansi"), num_cycles=20)
        parallel_api_test(zoo.parallel(config, render_mode="ansi"), num_cycles=20)
        seed_test(lambda: zoo.aec(config), num_cycles=20)
        parallel_seed_test(lambda: zoo.parallel(config), num_cycles=20)


def scripted(config: ExperimentConfig, count: int) -> tuple[Rollout, dict[str, Any], dict[str, Any]]:
    """Dialogues of uniform players in the batched core; of each agent its rows, and its actions laid out flat."""
    dumped = config.model_dump(mode="json")
    scenario = scenario_of(dumped)
    players = {agent: Uniform(network) for agent, network in networks_of(dumped).items()}
    ids, seeds = instance_ids(scenario, "train", 1, 0, count), episode_seeds(2, 0, count)
    rollout = play_rollout(BatchedPlay(scenario), players, ids, seeds, torch.Generator().manual_seed(3))
    rows = {agent: own_rows(scenario, rollout, agent) for agent in scenario.protocol.agents}
    single = zoo.SinglePlay(scenario)
    return rollout, rows, {agent: single.layouts[agent].join(dict(row.action)).numpy() for agent, row in rows.items()}


@pytest.mark.parametrize("config", thinned(CONFIGS, 3))
def test_scripted_dialogues_are_paid_as_in_the_core(config: ExperimentConfig) -> None:
    count = 12
    rollout, rows, flat = scripted(config, count)
    both = zoo.parallel(config), zoo.aec(config).unwrapped
    for copy in range(count):
        options = {"id": int(rollout.id_B[copy]), "seed": int(rollout.seed_B[copy])}
        length, agents = int(rollout.length_B[copy]), both[0].possible_agents
        actions = [
            {agent: flat[agent][row.row_BR[copy, r]] for agent, row in rows.items() if row.row_BR[copy, r] >= 0}
            for r in range(length)
        ]
        cut = rollout.cut_B is not None and bool(rollout.cut_B[copy])
        both[0].reset(options=options)
        for r in range(length):
            assert both[0].agents == agents
            _, paid, ended, truncated, infos = both[0].step(actions[r])
            assert list(paid.values()) == rollout.reward_BRA[copy, r].tolist()
            assert not any(info["illegal"] for info in infos.values())
        assert set(truncated.values()) == {cut}
        assert set(ended.values()) == {not cut}
        assert not both[0].agents
        both[1].reset(options=options)
        r, waiting, paid = 0, list[str](), dict.fromkeys(agents, 0.0)
        for agent in both[1].agent_iter():
            _, reward, terminated, truncated_, _ = both[1].last(observe=False)
            paid[agent] += reward
            if terminated or truncated_:
                both[1].step(None)
                continue
            waiting = waiting or list(actions[r])
            waiting.remove(agent)
            both[1].step(actions[r][agent])
            if not waiting:
                assert list(both[1].rewards.values()) == rollout.reward_BRA[copy, r].tolist()
                r += 1
        assert r == length
        assert list(paid.values()) == pytest.approx(rollout.reward_BRA[copy].sum(0).tolist())


@pytest.mark.parametrize("config", thinned(CONFIGS, 3))
@torch.no_grad()
def test_masks_allow_what_the_networks_may_say(config: ExperimentConfig) -> None:
    env, networks = zoo.parallel(config), networks_of(config.model_dump(mode="json"))
    for agent in env.possible_agents:
        env.action_space(agent).seed(4)
    for seed in range(4):
        env.reset(seed=seed)
        while env.agents:
            for agent in env.single.turns:
                obs = env.single.tensors(agent)
                policy = networks[agent].eval()(obs, True, False)[0]
                for factor, mask in enumerate(env.single.legal(agent)[: policy.message.shape[1]]):
                    expected = (
                        (policy.message[0, factor] > FORBIDDEN_BELOW).numpy()
                        if obs["speaks"][0, factor]
                        else np.arange(len(mask)) == 0
                    )
                    assert mask.tolist() == expected.tolist(), (agent, factor)
            env.step({agent: env.action_space(agent).sample(env.observe(agent)["action_mask"]) for agent in env.agents})


@pytest.mark.parametrize("config", thinned(CONFIGS, 3))
def test_spaces_are_of_kinds_that_every_library_reads(config: ExperimentConfig) -> None:
    """skrl reads neither MultiBinary nor Text, and asks for the spaces of masks too."""

    def kinds(space: Any) -> set[str]:
        parts = (
            space.values()
            if isinstance(space, spaces.Dict)
            else space.spaces
            if isinstance(space, spaces.Tuple)
            else ()
        )
        return {type(space).__name__}.union(*map(kinds, parts))

    env = zoo.parallel(config)
    found = set().union(
        *(kinds(made(agent)) for agent in env.possible_agents for made in (env.observation_space, env.action_space))
    )
    assert found <= {"Box", "Discrete", "MultiDiscrete", "Dict", "Tuple"}


def test_an_illegal_choice_counts_as_the_first_legal_one_and_is_told() -> None:
    # prover0 says 0 or 1, of five symbols
    config = experiment_of(dict(protocol=dict(name="bisection", max_rounds=5), scenario=CHAINS))
    env = zoo.parallel(config)
    env.reset(options={"id": 3, "seed": 0})
    env.step({"prover1": 4})
    _, _, _, _, infos = env.step({"prover0": 3})
    assert env.single.play.main_BRACM[0, 1].amax() == 0
    assert {agent for agent, info in infos.items() if info["illegal"]} == {"prover0"}


def test_agents_of_one_round_see_nothing_of_each_other() -> None:
    env = zoo.aec(experiment(dict(name="debate")))
    env.reset(seed=0)
    env.step(np.array([0, 0, 2]))
    first = env.agent_selection
    other = "prover1" if first == "prover0" else "prover0"
    before = env.observe(other)["observation"]["latest"]
    env.step(env.action_space(first).sample(env.observe(first)["action_mask"]))
    assert env.agent_selection == other
    np.testing.assert_array_equal(env.observe(other)["observation"]["latest"], before)


def test_the_critics_privileges_are_not_shown() -> None:
    env = zoo.parallel(experiment(dict(name="debate", sequential=True), dict(central_critic=True)))
    for agent in env.possible_agents:
        assert not [
            key for key in env.observation_space(agent)["observation"] if key == "label" or key.startswith("state_")
        ]


def test_rendering_tells_the_dialogue() -> None:
    env = pettingzoo.make("aec", "nip_ray/kuhn_poker-v0", render_mode="ansi")
    env.reset(options={"id": 2, "seed": 0})
    env.step(1)
    env.step(0)
    assert env.render().splitlines()[1:] == [
        "round 0: player0 in main: 1",
        "round 1: player1 in main: 0",
        "end; paid: player0 1, player1 -1",
    ]


def test_registered_ids_are_of_every_protocol_that_ships() -> None:
    assert {config["protocol"]["name"] for config in zoo.IDS.values()} == set(SHIPPED) - {"multi_channel_test"}
    for name, config in zoo.IDS.items():
        assert name in pettingzoo.aec_registry
        assert name in pettingzoo.parallel_registry
        experiment_of(config)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (
            lambda: zoo.aec(dict(protocol=dict(name="message_game"), scenario=dict(name="message_game"), sede=1)),
            "sede: unknown key",
        ),
        (lambda: zoo.aec(dict(protocol=dict(name="mnip"), scenario=CHAINS)), "protocol.name: got mnip"),
        (lambda: zoo.aec(dict(algorithm=dict(name="malt"))), "algorithm.name: malt is for language models"),
        (
            lambda: zoo.aec(dict(protocol=dict(name="nip", zero_knowledge=True))),
            "protocol.zero_knowledge: pay depends on",
        ),
        (
            lambda: zoo.parallel(zoo.IDS["nip_ray/kuhn_poker-v0"], split="dev"),
            "split: got 'dev', expected train or test",
        ),
        (
            lambda: zoo.parallel(zoo.IDS["nip_ray/kuhn_poker-v0"], render_mode="human"),
            "render_mode: got 'human', expected ansi",
        ),
        (lambda: begun().reset(options={"id": 9}), "options.id: got 9, expected a whole number from 0 to 5"),
        (
            lambda: begun().reset(options={"seed": "a"}),
            "options.seed: got 'a', expected a whole number from 0 to 65535",
        ),
        (
            lambda: begun().step({"player0": 0, "dealer": 0}),
            "step: there are actions of dealer, expected only player0, player1",
        ),
        (
            lambda: begun().step({"player1": 0}),
            "player0: it is its turn and there is no action of it, expected a whole number below 2",
        ),
        (lambda: begun().step({"player0": 2}), "player0: got the action 2, expected a whole number below 2"),
        (
            lambda: zoo.parallel(zoo.IDS["nip_ray/kuhn_poker-v0"]).step({}),
            "step: no episode has begun, expected a call of reset",
        ),
        (lambda: begun().step({"player0": 0.5}), "player0: got the action 0.5, expected"),
    ],
)
def test_bad_input_is_one_clear_line(call: Any, said: str) -> None:
    with pytest.raises(UserError, match=f"^{said}") as caught:
        call()
    assert "\n" not in str(caught.value)


def begun() -> Any:
    env = zoo.parallel(zoo.IDS["nip_ray/kuhn_poker-v0"])
    env.reset(seed=0)
    return env


def test_without_the_library_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "nip_ray.pettingzoo")
    monkeypatch.setitem(sys.modules, "pettingzoo", None)
    with pytest.raises(UserError, match=r"^this needs the package pettingzoo: pip install 'nip_ray\[pettingzoo\]'$"):
        import nip_ray.pettingzoo  # noqa: F401
