"""`ProtocolDQN`: it learns what is best, continues exactly where it was, and is the same whoever plays and learns."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from nip_ray.config.experiment import ExperimentConfig
from nip_ray.config.rules import check
from nip_ray.errors import TrainingError, UserError
from nip_ray.evaluation.examine import Examination, players
from nip_ray.rllib import dqn as rule
from nip_ray.rllib.dqn import ProtocolDQN, chunks
from nip_ray.scenarios.matrix_games.scenario import PLAYERS, MatrixGame
from nip_ray.settings.dqn import DQNRoleSettings, DQNSettings
from tests.rllib.experiments import distance, train, weights
from tests.rllib.test_restore import TRAVELS, Travel, same_state
from tests.tiers import thinned

ROLE: dict[str, Any] = dict(
    batch_size=32,
    lr=dict(initial=0.02),
    exploration=dict(kind="constant", initial=0.5, final=0.05, steps=10_000),
    target_interval=10,
    initial_rollout_size=40,
    rollout_size=8,
    steps_between_rollouts=4,
)
HIRONAKA: dict[str, Any] = dict(
    max_rounds=5,
    max_points=6,
    max_value=9,
    num_train=500,
    num_test=20,
    rho_games=0,
    agents={"_default": dict(view="scaled", encoder="flat", layers=[dict(width=16), dict(width=16)])},
)


def dqn(
    protocol: str = "kuhn_poker",
    scenario: dict[str, Any] | None = None,
    role: dict[str, Any] | None = None,
    **changes: Any,
) -> Any:
    """A small experiment of this rule; `role` and `changes` to the settings of all roles and to other groups."""
    rule = dict(
        name="dqn", steps_per_iteration=10, warm_up=32, buffer_size=400, roles={"_default": {**ROLE, **(role or {})}}
    )
    task: dict[str, Any] = dict(name="hironaka", **HIRONAKA)
    if protocol != "hironaka":
        task = dict(name="matrix_game", game="kuhn_poker")
    groups: dict[str, Any] = dict(
        evaluation=dict(sampled=False), iterations=10, algorithm={**rule, **changes.pop("algorithm", {})}
    )
    made = ExperimentConfig.model_validate(
        dict(protocol=dict(name=protocol), scenario={**task, **(scenario or {})}, **{**groups, **changes})
    )
    check(made)
    return made


@pytest.mark.parametrize(
    "rule",
    [
        pytest.param(dict(loss="l2"), id="double", marks=pytest.mark.slow),
        pytest.param(dict(double=False, loss="smooth_l1", loss_beta=4.0), id="single", marks=pytest.mark.slow),
        pytest.param(dict(loss="l2", dueling=True, n_step=2), id="dueling-2-steps"),
        pytest.param(
            dict(loss="l2", prioritised=True, precision="bfloat16"), id="prioritised-bfloat16", marks=pytest.mark.slow
        ),
    ],
)
def test_poker_against_a_random_player_is_won_by_as_much_as_possible(made: Any, rule: dict[str, Any]) -> None:
    """The exact value of the greedy policy, against that of the best of all 64 policies. Pots are up to 2: a loss that
    is straight from 1 on would learn medians rather than means."""
    scenario = dict(agents={"player1": dict(kind="random")})
    role = dict(
        lr=dict(kind="linear", initial=0.1, final=0.005, steps=400),
        gamma=1.0,
        exploration=dict(kind="constant", initial=0.3),
    )
    config = dqn(
        scenario=scenario,
        role={**role, "initial_rollout_size": 300, "batch_size": 128},
        algorithm={"buffer_size": 4000, **rule},
    )
    algorithm = made(config)
    train(algorithm, 50)
    figures = algorithm.scenario.exact_figures(players(config, algorithm.networks()))
    assert figures["player0/value"] > best_response_value(algorithm) - 0.05
    assert not (set(algorithm.row) & {"learn/player1/loss"}), "a random opponent costs no gradient step"


def best_response_value(algorithm: ProtocolDQN) -> float:
    """What player0 can get at most against player1 as it is."""
    scenario = algorithm.scenario
    assert isinstance(scenario, MatrixGame)
    tables = [scenario.policy_table(agent, algorithm.networks()[agent]) for agent in PLAYERS]
    return max(scenario.game.figures((table, tables[1]))["player0/value"] for table in every_pure_table(tables[0]))


def every_pure_table(table: torch.Tensor) -> Any:
    """All deterministic policies with as many states and moves."""
    states, moves = table.shape
    for number in range(moves**states):
        digits = torch.tensor([(number // moves**state) % moves for state in range(states)])
        yield nn.functional.one_hot(digits, moves).double()


@pytest.mark.parametrize("travel", thinned(TRAVELS, 3, 1))
@pytest.mark.parametrize(
    "config",
    [
        pytest.param(dict(algorithm=dict(prioritised=True, n_step=2)), id="kuhn-prioritised"),
        pytest.param(dict(protocol="hironaka", algorithm=dict(dueling=True, loss="smooth_l1")), id="hironaka-dueling"),
    ],
)
def test_four_iterations_are_two_and_two(made: Any, tmp_path: Path, config: dict[str, Any], travel: Travel) -> None:
    """To the last bit: weights, target networks, buffers, priorities, optimizers."""
    config = dqn(
        **config,
        role=dict(lr=dict(kind="exponential", initial=0.02, final=0.001, rate=0.9), target_tau=0.5, target_interval=7),
    )  # type: ignore[assignment]
    whole, first, second = (made(config) for _ in range(3))
    expected = train(whole, 4)
    train(first, 2)
    travel(first, second, tmp_path)
    assert second.train_iteration == 2
    assert distance(train(second, 2), expected) == 0
    assert same_state(second.training_state(), whole.training_state())
    for key in (
        "episodes",
        "env_steps_total",
        *(key for key in whole.row if key.endswith(("/loss", "/lr", "/epsilon", "/buffer_size"))),
    ):
        assert second.row[key] == whole.row[key], key


def test_without_saved_buffers_a_restored_run_fills_them_anew(made: Any) -> None:
    config = dqn(algorithm=dict(save_buffer=False))
    old, new = made(config), made(config)
    train(old, 2)
    state = old.training_state()
    assert set(state["extra"]) == {"targets"}
    new.load_training_state(state)
    train(new, 1)
    sizes = new.learner_group._learner.buffer_sizes()
    assert all(32 <= size < old.learner_group._learner.buffer_sizes()[role] + 200 for role, size in sizes.items())
    assert new.row["episodes"] > old.row["episodes"]


def test_first_weights_from_elsewhere_reach_the_target_networks(made: Any) -> None:
    """Also where targets are Polyak averages, which would otherwise remember the networks' own first weights."""
    from nip_ray.runs.initial_weights import put_weights

    algorithm = made(dqn(role=dict(target_tau=0.001, target_interval=1, lr=dict(initial=1e-6))))
    state = {"player0": {"policy_head.weight": torch.full((2, 6), 3.0)}}
    put_weights(algorithm, state)
    train(algorithm, 1)
    target = algorithm.learner_group._learner.targets["player0"].policy_head.weight
    assert float((target - 3).abs().max()) < 1e-3


def test_chunks_end_where_somebody_plays() -> None:
    """Steps 20 to 29, roll-outs after every fourth step for one role and every fifth for the other."""
    settings = DQNSettings(
        steps_per_iteration=10,
        roles={"a": DQNRoleSettings(steps_between_rollouts=4), "b": DQNRoleSettings(steps_between_rollouts=5)},
    )
    found = list(chunks(20, settings, ("a", "b")))
    assert found == [(20, 21, ("a", "b")), (21, 25, ("a",)), (25, 26, ("b",)), (26, 29, ("a",)), (29, 30, ())]


def test_roles_take_turns_by_schedules_and_rates_go_on(made: Any) -> None:
    turns = dict(kind="alternating", period=2, first_agent_num_rounds=1)
    config = dqn(
        role=dict(lr=dict(kind="inverse", initial=0.1, rate=1.0)),
        schedules={"player0": turns, "player1": {**turns, "first_agent": False}},
    )
    algorithm = made(config)
    first = train(algorithm, 1)
    assert {key.split("/")[1] for key in algorithm.row if key.startswith("learn/")} == {"player0"}
    second = train(algorithm, 1)
    assert {key.split("/")[1] for key in algorithm.row if key.startswith("learn/")} == {"player1"}
    assert distance({"player0": first["player0"]}, {"player0": second["player0"]}) == 0
    assert distance({"player1": first["player1"]}, {"player1": second["player1"]}) > 0
    assert algorithm.row["learn/player1/lr"] == pytest.approx(1 / (19 + 10))


def test_what_is_not_finite_ends_the_run(made: Any) -> None:
    algorithm = made(
        dqn(role=dict(lr=dict(initial=1e30), optimizer="sgd"), algorithm=dict(loss="l2", max_grad_norm=None))
    )
    with pytest.raises(TrainingError, match=r"not finite.*algorithm\.roles"):
        train(algorithm, 30)


def test_scripted_opponents_are_set_by_name(made: Any) -> None:
    algorithm = made(dqn("hironaka", algorithm=dict(trained_roles=["host"])))
    algorithm.set_opponent("agent", "choose_last")
    train(algorithm, 1)
    rollout = algorithm.rollout
    host_N, axis_N = rollout.main_BRACM[:, 0, 0, 0, 0], rollout.main_BRACM[:, 1, 1, 0, 0]
    last = torch.tensor([1, 2, 2, 2])  # of the host's classes in three dimensions
    assert torch.equal(axis_N, last[host_N])
    for opponent, said in (
        ("nobody", "choose_first"),
        ([], r"got \[\]"),
        (nn.Linear(2, 2), r"a Linear, which has no groups\(\)"),
    ):
        with pytest.raises(UserError, match=said):
            algorithm.set_opponent("agent", opponent)
    assert algorithm.opponents["agent"].names == ("choose_last",)


def test_weights_of_an_opponent_leave_buffers_and_optimizers_alone(made: Any) -> None:
    algorithm = made(dqn(algorithm=dict(trained_roles=["player0"], save_buffer=False)))
    train(algorithm, 1)
    learner = algorithm.learner_group._learner
    before, sizes = algorithm.training_state(), learner.buffer_sizes()
    algorithm.set_opponent("player1", {name: value + 1 for name, value in weights(algorithm)["player1"].items()})
    assert learner.buffer_sizes() == sizes != {}
    after = algorithm.training_state()
    assert same_state(after["optimizers"], before["optimizers"])
    assert distance({"player0": after["modules"]["player0"]}, {"player0": before["modules"]["player0"]}) == 0
    assert distance({"player1": after["modules"]["player1"]}, {"player1": before["modules"]["player1"]}) == 1


@pytest.mark.parametrize("travel", TRAVELS)
def test_opponents_set_by_name_are_there_again_after_a_restore(made: Any, tmp_path: Path, travel: Travel) -> None:
    config = dqn("hironaka", algorithm=dict(trained_roles=["host"]))
    whole, again = made(config), made(config)
    whole.set_opponent("agent", ["choose_last", "random"])
    train(whole, 1)
    travel(whole, again, tmp_path)
    assert again.opponents["agent"].names == ("choose_last", "random")
    assert distance(train(whole, 1), train(again, 1)) == 0


def test_a_restore_says_whose_module_is_missing(made: Any, capsys: pytest.CaptureFixture[str]) -> None:
    config = dqn(algorithm=dict(trained_roles=["player0"]))
    whole, again = made(config), made(config)
    whole.set_opponent("player1", whole.networks()["player1"])
    state = whole.training_state()
    whole.load_training_state(state)
    assert "player1" in whole.opponents
    assert "player1" not in capsys.readouterr().err
    again.load_training_state(state)
    assert not again.opponents
    assert "player1 was played by a module" in capsys.readouterr().err


WORKERS = [
    pytest.param(dict(play=dict(num_env_runners=1)), 1e-6, id="one-runner"),
    pytest.param(dict(play=dict(num_env_runners=2), learners=dict(num_learners=1)), 1e-6, id="two-runners-one-learner"),
    pytest.param(dict(learners=dict(num_learners=2)), 2e-3, id="two-learners"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("workers", "tolerance"), WORKERS)
def test_workers_change_where_things_are_computed_and_not_the_numbers(
    ray_session: None, made: Any, workers: dict[str, Any], tolerance: float
) -> None:
    """Roll-outs, buffers, priorities and weights; with several learners up to the order of float sums, and they are
    equal to each other."""
    settings: dict[str, Any] = dict(algorithm=dict(prioritised=True, n_step=2), role=dict(lr=dict(initial=0.005)))
    here, there = made(dqn(**settings)), made(dqn(**settings, **workers))
    expected, found = train(here, 2), train(there, 2)
    assert torch.equal(here.rollout.main_BRACM, there.rollout.main_BRACM)
    assert distance(found, expected) <= tolerance
    states = there._foreach_learner(lambda learner: learner.training_state())
    assert all(same_state(state, states[0]) for state in states)
    assert same_state(
        states[0]["extra"]["replay"]["player0"]["ring"], here.training_state()["extra"]["replay"]["player0"]["ring"]
    )
    for key, value in here.row.items():
        if key.endswith(("/loss", "/td_error", "/buffer_size", "/epsilon")):
            assert there.row[key] == pytest.approx(value, rel=1e-3, abs=1e-5), key


NORMED: dict[str, Any] = {
    "agents": {"_default": dict(encoder="flat", view="scaled", layers=[dict(width=16, norm="batch"), dict(width=16)])}
}


def test_evaluations_and_restores_leave_running_statistics_alone(made: Any) -> None:
    config = dqn("hironaka", NORMED)
    whole, examined, first, second = (made(config) for _ in range(4))
    expected = train(whole, 2)
    train(examined, 1)
    Examination(examined.scenario, 0).rollout(players(config, examined.networks()), greedy=True)
    assert distance(train(examined, 1), expected) == 0
    train(first, 1)
    second.load_training_state(first.training_state())
    assert distance(train(second, 1), expected) == 0


def test_frozen_norms_keep_their_statistics(made: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rule, "is_frozen_norm", lambda module: isinstance(module, nn.BatchNorm1d))
    algorithm = made(dqn("hironaka", NORMED))
    norms = [one for one in algorithm.networks()["host"].modules() if isinstance(one, nn.BatchNorm1d)]
    before = [one.running_mean.clone() for one in norms]
    train(algorithm, 1)
    assert norms
    assert all(torch.equal(one.running_mean, mean) for one, mean in zip(norms, before, strict=True))


def test_asking_whether_a_network_draws_draws_nothing(made: Any) -> None:
    algorithm = made(dqn("hironaka"))
    train(algorithm, 1)
    learner = algorithm.learner_group._learner
    learner.networks["host"] = Noisy(learner.networks["host"])
    learner._draw.clear()
    before = torch.get_rng_state()
    assert learner._draws("host")
    assert torch.equal(torch.get_rng_state(), before)


class Noisy(nn.Module):
    """A network that draws a number when it learns."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, *inputs: Any) -> Any:
        torch.rand(1)
        return self.network(*inputs)


@pytest.mark.parametrize("norm", ["none", "batch"])
def test_threads_change_no_number(made: Any, norm: str) -> None:
    """One after the other in one thread, or each role in a thread of its own: the same to the last bit."""
    layers = [dict(width=16, norm=norm), dict(width=16)]
    config = dqn("hironaka", {"agents": {"_default": dict(encoder="flat", view="scaled", layers=layers)}})
    before = torch.get_num_threads()
    found = []
    try:
        for threads in (1, 2):
            algorithm = made(config)
            torch.set_num_threads(threads)
            train(algorithm, 2)
            assert torch.get_num_threads() == threads
            assert (algorithm.learner_group._learner._pool is not None) == (threads == 2)
            found.append(algorithm.training_state())
    finally:
        torch.set_num_threads(before)
    assert same_state(*found)
