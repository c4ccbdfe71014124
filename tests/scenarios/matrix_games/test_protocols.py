"""The protocols of the games, and every config of one that makes no sense."""

from typing import Any

import pytest
import torch

from nip_ray.config.load import config_from_dict
from nip_ray.config.rules import check
from nip_ray.errors import UserError
from nip_ray.protocols import Judgement, build, start, step

Data = dict[str, Any]

USELESS: list[tuple[str, Any]] = [
    ("min_rounds", 2),
    ("verifier_first", False),
    ("sequential", True),
    ("prover0_first", False),
    ("prover_reward", 2.0),
    ("verifier_reward", 0.5),
    ("verifier_incorrect_penalty", 0.0),
    ("verifier_terminated_penalty", 0.0),
    ("verifier_no_guess_reward", 1.0),
    ("shared_reward", True),
    ("force_guess", "y"),
    ("zero_knowledge", True),
]


def config(protocol: Data | None = None, scenario: Data | None = None, **groups: Data) -> Data:
    """A prisoner's dilemma, changed."""
    made = {
        "protocol": {"name": "matrix_game", **(protocol or {})},
        "scenario": {"name": "matrix_game", **(scenario or {})},
    }
    return made | {"play": {"num_copies": 64}, **groups}


def kuhn(protocol: Data | None = None, **scenario: Any) -> Data:
    return config({"name": "kuhn_poker", **(protocol or {})}, {"game": "kuhn_poker", **scenario})


def bimatrix(payoffs0: Any = ((1, 2), (3, 4)), payoffs1: Any = ((1, 2), (3, 4)), **more: Any) -> Data:
    return config(scenario={"game": "bimatrix", "payoffs0": payoffs0, "payoffs1": payoffs1, **more})


def test_a_game_pays_as_its_judge_says_and_nothing_after_the_end() -> None:
    protocol = build("matrix_game", max_rounds=2)
    state, decision_BA = (
        start(protocol, torch.zeros(2, dtype=torch.int64), torch.zeros(2, dtype=torch.int64)),
        torch.full((2, 2), 2),
    )
    reward_BA = torch.tensor([[1.0, -2.0], [3.0, 4.0]])
    with pytest.raises(ValueError, match="scenario must judge"):
        step(protocol, state, decision_BA)
    state, outcome = step(protocol, state, decision_BA, Judgement(reward_BA, torch.tensor([True, False])))
    assert torch.equal(outcome.reward_BA, reward_BA)
    assert state.ended_B.tolist() == [True, False]
    state, outcome = step(protocol, state, decision_BA, Judgement(reward_BA, torch.tensor([False, False])))
    assert outcome.reward_BA.tolist() == [[0.0, 0.0], [3.0, 4.0]]
    assert state.round_B.tolist() == [1, 2]
    assert state.ended_B.tolist() == state.done_B.tolist() == [True, True], "the last round ends a game"


@pytest.mark.parametrize("name", ["matrix_game", "kuhn_poker"])
@pytest.mark.parametrize(("key", "value"), USELESS, ids=[key for key, _ in USELESS])
def test_parameters_of_proofs_are_refused(name: str, key: str, value: Any) -> None:
    data = kuhn({key: value}) if name == "kuhn_poker" else config({key: value, "max_rounds": 3})
    with pytest.raises(UserError) as caught:
        check(config_from_dict(data))
    faults = str(caught.value).split("; ")
    assert all(fault.startswith(f"protocol.{key}: ") for fault in faults)
    with pytest.raises(UserError, match=rf"protocol\.{key}: .*leave it out"):
        build(name, **{key: value})


@pytest.mark.parametrize(
    ("data", "key", "said"),
    [
        (kuhn({"max_rounds": 4}), "protocol.max_rounds", "always has 3"),
        (
            config({"name": "nip"}),
            "protocol.name",
            "matrix_game is played under the protocol matrix_game or kuhn_poker or leduc_poker only",
        ),
        (config({"name": "message_game"}), "scenario.name", "played in message_game only"),
        (
            config(scenario={"name": "graph_isomorphism"}),
            "scenario.name",
            "the protocol matrix_game is played in matrix_game only",
        ),
        (
            config(scenario={"game": "kuhn_poker"}),
            "protocol.name",
            "got matrix_game, but kuhn_poker is played under kuhn_poker",
        ),
        (kuhn(game="tandem"), "protocol.name", "got kuhn_poker, but tandem is played under matrix_game"),
        (config(scenario={"agents": {"player2": {}}}), "scenario.agents.player2", "did you mean player1?"),
        (
            config(scenario={"agents": {"_default": {"kind": "random"}}}),
            "scenario.agents",
            "no agent learns (player0, player1)",
        ),
        (
            config(scenario={"agents": {"player0": {"initial_scale": float("inf")}}}),
            "scenario.agents.player0.initial_scale",
            "finite",
        ),
        (
            config(scenario={"tandem_actions": 5}),
            "scenario.tandem_actions",
            "prisoners_dilemma has no use for it (only tandem)",
        ),
        (config(scenario={"payoffs1": [[1]]}), "scenario.payoffs1", "no use for it (only bimatrix)"),
        (bimatrix(payoffs0=[]), "scenario.payoffs0", "got [], expected a row for each move of player0"),
        (bimatrix(payoffs1=[[], []]), "scenario.payoffs1", "got [[], []], expected a row"),
        (bimatrix(payoffs0=[[1, 2], [3]]), "scenario.payoffs0", "rows of 2, 1 numbers"),
        (bimatrix(payoffs1=[[1, 2]]), "scenario.payoffs1", "got 1 x 2 numbers, but payoffs0 has 2 x 2"),
        (bimatrix(payoffs0=[[1, 2], [3, float("nan")]]), "scenario.payoffs0.1.1", "finite number"),
        (bimatrix(payoffs1=[[1, 2], [3, -1e38]]), "scenario.payoffs1", "at most 1e+30"),
        (config(algorithm={"minibatch_size": 65}), "algorithm.minibatch_size", "64 frames (64 copies of 1 rounds)"),
    ],
)
def test_refused(data: Data, key: str, said: str) -> None:
    with pytest.raises(UserError) as caught:
        check(config_from_dict(data))
    message = str(caught.value)
    assert message.startswith(f"{key}: "), message
    assert said in message
    assert "; " not in message, "one fault, one answer"
