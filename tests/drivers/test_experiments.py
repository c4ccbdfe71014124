"""Our own protocols and algorithms under the drivers."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from nip_ray.config.experiment import ExperimentConfig
from nip_ray.config.load import config_to_yaml
from nip_ray.drivers.agents.protocol import ProtocolAgent
from nip_ray.drivers.contract import Agent
from nip_ray.drivers.experiments import ProtocolCopies, alone, experiment_recipe, own_experiment, read_experiment
from nip_ray.drivers.loops import ManualDriver, SequentialDriver, StepDriver
from nip_ray.drivers.parallel import ParallelDriver
from nip_ray.drivers.runner import make_driver, resume_as, resume_runner, run_runner
from nip_ray.drivers.spec import load_runner, parse_runner
from nip_ray.errors import UserError
from nip_ray.rllib.cluster import build_algorithm
from nip_ray.rllib.shared import scenario_of
from nip_ray.runs.pretraining import pretrain
from nip_ray.settings.drivers import ExperimentEnvironmentSettings
from nip_ray.storage.checkpoint import load_checkpoint, rewind_checkpoints, save_checkpoint
from tests.drivers.small import quiet, same
from tests.rllib.experiments import experiment
from tests.tiers import thinned

ROOT = Path(__file__).resolve().parents[2]
MESSAGES = experiment(dict(name="message_game"), dict(num_symbols=6, num_secrets=3), algorithm=dict(minibatch_size=32))
GAMES = {
    "messages": MESSAGES,
    "kuhn": experiment(dict(name="kuhn_poker"), algorithm=dict(name="stackelberg", minibatch_size=12)),
    "zero-knowledge": experiment(
        dict(name="debate", min_rounds=2, max_rounds=3, zero_knowledge=True),
        dict(message_size=2, linear_symbols=3),
        algorithm=dict(name="reinforce", minibatch_size=18),
    ),
    "hironaka": ExperimentConfig.model_validate(
        dict(
            protocol=dict(name="hironaka"),
            scenario=dict(
                name="hironaka",
                max_rounds=3,
                agents=dict(
                    host=dict(point_width=4, layers=[dict(width=4)]), agent=dict(kind="scripted", player="random")
                ),
            ),
            algorithm=dict(name="ppo", minibatch_size=12),
        )
    ),
}
"""A verdict at the end, an end at any time, everything that is said and compared, a game with positions that is cut
off."""


@cache
def built(text: str, copies: int, number: int) -> tuple[Any, dict[str, Any]]:
    """A learner, and its first state; one for each number, since they cost some tenths of a second."""
    made = ProtocolAgent(json.loads(text), copies)
    return made, made.state_dict()


def learner(config: ExperimentConfig, copies: int, seed: int = 0, number: int = 0) -> Any:
    agent, first = built(json.dumps(alone(config, seed, copies).model_dump(mode="json")), copies, number)
    agent.load_state_dict(first)
    agent.enable_training_mode(False)
    return agent


def recipe(config: ExperimentConfig, copies: int, shared: bool = False) -> Any:
    return experiment_recipe(ExperimentEnvironmentSettings(num_copies=copies, shared=shared), config)


def both(copies: tuple[int, int] = (4, 6)) -> list[Any]:
    changed = own_experiment(MESSAGES, ["algorithm.name=reinforce"], "here")
    return [learner(MESSAGES, copies[0]), learner(changed, copies[1], seed=7)]


def trained(driver: Any) -> dict[str, Any]:
    driver.train()
    state = driver.state_dict()
    driver.close()
    return state


@pytest.mark.parametrize("name", GAMES)
def test_alone_with_all_copies_a_learner_learns_what_a_run_learns(name: str) -> None:
    config, copies = GAMES[name], 10
    agent = learner(config, copies)
    assert isinstance(agent, Agent)
    driver = SequentialDriver(recipe(config, copies), agent, quiet(100))
    while agent.updates < 2:
        driver.train(driver.timestep + 1)
    algorithm = build_algorithm(alone(config, 0, copies))
    for _ in range(2):
        algorithm.train()
    assert same(algorithm.training_state(), agent.algorithm.training_state())
    assert driver.env_steps == algorithm.env_steps_total
    if name == "hironaka":
        assert algorithm.rollout.cut_B.any()
        assert not algorithm.rollout.cut_B.all()
    rounds = agent.protocol.max_rounds
    assert driver.timestep <= 2 * rounds
    driver.close()


def test_averages_play_outside_training() -> None:
    agent = learner(own_experiment(MESSAGES, ["algorithm.average_weights=0.5"], "here"), 5)
    driver = SequentialDriver(recipe(MESSAGES, 5), agent, quiet(100))
    while agent.updates < 2:
        driver.train(driver.timestep + 1)
    assert agent._playing is agent.networks
    agent.enable_training_mode(False)
    averages = agent.algorithm.networks()
    for name, network in agent._playing.items():
        newest, averaged = (one.state_dict() for one in (agent.networks[name], averages[name]))
        assert all(torch.equal(part, averaged[key]) for key, part in network.state_dict().items())
        assert any(not torch.equal(part, averaged[key]) for key, part in newest.items())
    driver.close()


def test_a_timestep_is_a_round_and_learning_follows_the_last_of_a_batch() -> None:
    agent = learner(MESSAGES, 5)
    driver = StepDriver(recipe(MESSAGES, 5), agent, quiet(100))
    for t in range(1, 17):
        shown, rewards, terminated, _, _ = driver.step()
        assert set(rewards) == set(terminated) == {"prover", "verifier"}
        assert agent.updates == t // 8
        assert terminated["prover"].all() == (t % 8 == 0)
        assert (shown["round"] == t % 8).all()
    assert driver.core.learners[0].statistics.finished[0][2] == 8
    assert 0 <= driver.core.row()["learner_0/verifier/accuracy"] <= 1
    driver.close()


def test_copies_that_have_ended_wait_and_count_for_nothing() -> None:
    copies = ProtocolCopies(scenario_of(GAMES["kuhn"].model_dump(mode="json")), 60)
    copies.reset(0, "episodes")
    agent = learner(GAMES["kuhn"], 60)
    agent.enable_training_mode(True)
    first, seen = copies.observations["id"], 0
    for _ in range(12):
        before = copies.observations
        led_to, rewards, terminated, _, valid, _ = copies.step(agent.act(before, 0, 1))
        if valid is not None:
            seen += int((~valid).sum())
            assert (valid == ~before["over"]).all()
            assert not any(reward[~valid].any() for reward in rewards.values())
            assert not any(ends[~valid].any() for ends in terminated.values())
        if led_to["over"].all():
            assert not copies.observations["over"].any()
            assert not copies.observations["round"].any()
    assert seen > 0
    assert not np.array_equal(first, copies.observations["id"])


@pytest.mark.parametrize("shared", [False, True], ids=["own", "shared"])
def test_steps_and_the_loop_by_hand_are_what_the_sequential_driver_does(shared: bool) -> None:
    expected = trained(SequentialDriver(recipe(MESSAGES, 10, shared), both(), quiet(20), [4, 6]))
    steps = StepDriver(recipe(MESSAGES, 10, shared), both(), quiet(20), [4, 6])
    for _ in range(20):
        steps.step()
    assert same(steps.state_dict(), expected)
    steps.close()
    assert same(
        trained(SequentialDriver(recipe(MESSAGES, 10, not shared), both(), quiet(20), [4, 6]))["agents"],
        expected["agents"],
    )
    if not shared:
        assert same(trained(ManualDriver(recipe(MESSAGES, 10), both(), quiet(20), [4, 6])), expected)


@pytest.mark.parametrize(
    ("learners", "shared"),
    [(1, False), pytest.param(2, False, marks=pytest.mark.slow), pytest.param(2, True, marks=pytest.mark.slow)],
)
def test_processes_learn_what_the_sequential_driver_learns(learners: int, shared: bool, ray_session: None) -> None:
    game = recipe(MESSAGES, 10, shared)
    expected = trained(SequentialDriver(game, both((10 // learners, 5))[:learners], quiet(20)))
    agents = both((10 // learners, 5))[:learners]
    driver = ParallelDriver(game, agents, quiet(20))
    try:
        assert same(trained(driver), expected)
        assert [agent.updates for agent in agents] == [2] * learners
    finally:
        driver.close()


@pytest.mark.parametrize("name", thinned(GAMES))
def test_a_stop_in_the_middle_of_episodes_leaves_no_trace(name: str, tmp_path: Path) -> None:
    config = GAMES[name]
    expected = trained(SequentialDriver(recipe(config, 6), learner(config, 6), quiet(21)))
    driver = SequentialDriver(recipe(config, 6), learner(config, 6), quiet(21))
    driver.train(11)
    save_checkpoint(tmp_path, 11, {"driver": driver.state_dict()}, {}, "x", None)
    again = SequentialDriver(recipe(config, 6), learner(config, 6, number=1), quiet(21))
    again.load_state_dict(load_checkpoint(tmp_path).tensors["driver"])
    assert same(trained(again), expected)


def test_evaluation_is_greedy_for_every_agent_on_held_out_instances_and_teaches_nobody() -> None:
    agent = learner(MESSAGES, 8)
    driver = SequentialDriver(recipe(MESSAGES, 8), agent, quiet(40))
    driver.train(12)
    before = agent.state_dict()
    first, second = driver.evaluate(8, num_copies=20), driver.evaluate(8, num_copies=20)
    assert first == second
    assert first["learner_0/episodes"] == 20
    assert same(agent.state_dict(), before)
    copies = driver._evaluation_parts(20)[0].copies  # type: ignore[index]
    copies.reset(0, "evaluation", 0)
    assert set(copies.observations["id"]) <= set(agent.scenario.ids("test").tolist())
    greedy = agent.act(copies.observations, 0, 1, explore=False)
    assert all(
        np.array_equal(part, agent.act(copies.observations, 9, 1, explore=False)["prover"][key])
        for key, part in greedy["prover"].items()
    )
    drawn = [agent.act(copies.observations, t, 1)[name]["message"] for t in range(4) for name in ("prover", "verifier")]
    assert any(not np.array_equal(one, other) for one, other in zip(drawn, drawn[2:]))
    driver.close()


def runner_data(tmp_path: Path, **options: Any) -> dict[str, Any]:
    (tmp_path / "game.yaml").write_text(config_to_yaml(MESSAGES))
    return {
        "seed": 3,
        "environment": {"name": "experiment", "config": str(tmp_path / "game.yaml"), "num_copies": 10},
        "learners": [
            {"name": "a", "scope": 4},
            {"name": "b", "scope": 6, "algorithm": {"changes": ["algorithm.lr=1e-4"], "name": "experiment"}},
        ],
        "driver": {"timesteps": 24},
        "evaluation": {"timesteps": 8, "num_copies": 5},
        "experiment": {"checkpoint_interval": 10},
        **options,
    }


def test_a_run_goes_on_by_its_own_copy_of_the_experiment(tmp_path: Path) -> None:
    data = runner_data(tmp_path)
    whole, stopped = (run_runner(data, tmp_path / name, quiet=True) for name in ("whole", "stopped"))
    assert {"eval/a/verifier/accuracy", "eval/b/return_mean"} <= set(whole.metrics)
    assert load_runner(tmp_path / "whole") == whole.settings
    rewind_checkpoints(stopped.run_dir / "checkpoints", 10)
    game = (tmp_path / "game.yaml").read_text()
    (tmp_path / "game.yaml").write_text(game.replace("seed: 0", "seed: 9"))
    with pytest.raises(UserError, match=r"was begun with another seed in .*game\.yaml; put that back"):
        resume_as(stopped.settings, stopped.run_dir, quiet=True)
    (tmp_path / "game.yaml").unlink()
    again = resume_runner(stopped.run_dir, ["driver.name=step"], quiet=True)
    assert again.settings.driver.name == "step"
    states = [load_checkpoint(run.run_dir / "checkpoints").tensors for run in (whole, again)]
    assert same(*states)
    assert resume_runner(stopped.run_dir, ["driver.timesteps=26"], quiet=True).timesteps == 26


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"environment": {"name": "experiment", "num_copies": 10}}, "environment.config: missing"),
        ({"environment": {"name": "experimnt"}}, "did you mean experiment"),
        (
            {"learners": [{"algorithm": {"name": "ppo"}}]},
            "learners.0.algorithm.name: got ppo, but an experiment is learned by",
        ),
        (
            {"environment": {}, "learners": [{"algorithm": {"name": "experiment"}}]},
            "but the environment is not one",
        ),
        (
            {"learners": [{"network": {"hidden": [8]}}]},
            "learners.0.network: an experiment's networks are in its config",
        ),
        (
            {"learners": [{"algorithm": {"name": "experiment", "changes": ["protocol.max_rounds=3"]}}]},
            "put it into environment.changes",
        ),
        (
            {"learners": [{"algorithm": {"name": "experiment", "changes": ["algorithm.lr=fast"]}}]},
            "learners.0.algorithm.changes: algorithm.lr",
        ),
        (
            {
                "learners": [
                    {"algorithm": {"name": "experiment", "changes": ["algorithm={name: solo, agent: verifier}"]}}
                ]
            },
            "solo training",
        ),
        (
            {"learners": [{"algorithm": {"name": "experiment", "changes": ["algorithm.minibatch_size=9999"]}}]},
            "learners.0: algorithm.minibatch",
        ),
        (
            {"learners": [{"algorithm": {"name": "experiment", "changes": ["algorithm.verdict_gradient=expected"]}}]},
            "algorithm.verdict_gradient: expected: not available to a driver",
        ),
        ({"learners": [{"scope": 3}]}, "expected a sum of 10"),
    ],
)
def test_what_does_not_go_together_is_refused_before_anything_is_built(
    changes: dict[str, Any], words: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=words):
        make_driver(parse_runner(runner_data(tmp_path, **changes)))


def test_a_learner_may_begin_with_a_pretrained_body(tmp_path: Path) -> None:
    config = experiment(dict(name="nip", max_rounds=2), pretraining=dict(agents=["verifier"], num_epochs=1))
    (tmp_path / "game.yaml").write_text(config_to_yaml(config))
    data = {
        "environment": {"name": "experiment", "config": str(tmp_path / "game.yaml"), "num_copies": 16},
        "experiment": {"storage_path": str(tmp_path)},
    }
    settings = parse_runner(data)
    first = make_driver(settings, quiet=True).agents[0].state_dict()["training"]["modules"]  # type: ignore[attr-defined]
    made = pretrain(alone(config, 0, 16), tmp_path / "pretrained")["verifier"]
    assert made.figures["cached"]
    assert made.weights
    assert all(torch.equal(first["verifier"][name], value) for name, value in made.weights.items())
    raw = make_driver(settings, quiet=True, fresh=False).agents[0].state_dict()["training"]["modules"]  # type: ignore[attr-defined]
    assert not all(torch.equal(raw["verifier"][name], value) for name, value in made.weights.items())
    assert same(raw["prover"], first["prover"])


def test_an_algorithm_that_plays_by_itself_is_refused_unless_another_is_put_in_its_place() -> None:
    environment = {"name": "experiment", "config": str(ROOT / "tune_configs" / "hironaka_host.yaml"), "num_copies": 4}
    with pytest.raises(
        UserError, match=r"got dqn, which plays and learns in its own rhythm.*'algorithm=\{name: ppo\}'"
    ):
        make_driver(parse_runner({"environment": environment}))
    read = read_experiment(ExperimentEnvironmentSettings(config=str(environment["config"])))
    for change in ("algorithm.name=ppo", "algorithm={name: ppo}"):
        assert own_experiment(read, [change], "here").algorithm.name == "ppo"
