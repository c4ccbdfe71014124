"""The two sentences that every page begins with: the task, and who is paid for what."""

from typing import Any

import pytest

from nip_ray.config.load import load_config
from nip_ray.evaluation.report.describe import GAMES_WITHOUT_SPLIT, TASKS, describe, has_held_out
from nip_ray.scenarios.matrix_games.scenario import MatrixGame
from nip_ray.scenarios.message_game.scenario import MessageGame
from nip_ray.scenarios.registry import SCENARIOS


@pytest.mark.parametrize(
    ("config", "task", "pay"),
    [
        (
            {"scenario": {"name": "graph_isomorphism"}, "protocol": {"name": "debate", "verifier_incorrect_penalty": -2.5}},
            "Task: are two graphs the same up to the names of their nodes (accept) or not (reject)?",
            "The verifier is paid 1 for a correct verdict and -2.5 for a wrong one; prover0 1 for rejection, right or wrong; "
            "prover1 1 for acceptance, right or wrong.",
        ),
        (
            load_config("tune_configs/message_game.yaml").model_dump(mode="json"),
            "Task: does a secret that only the prover sees lie in the upper half (accept) or in the lower one (reject)?",
            "The verifier is paid 1 for a correct verdict and -1 for a wrong one; the prover the same.",
        ),
        (
            {
                "scenario": {"name": "message_game"},
                "protocol": {
                    "name": "nip",
                    "prover_reward": "much",
                    "payoff": {"verifier": {"false_accept": -5, "turns": {"prover": -0.25}}, "prover": {"undecided": -2}, "x": 1},
                },
            },
            "Task: does a secret that only the prover sees lie in the upper half (accept) or in the lower one (reject)?",
            "The verifier is paid 1 for a true acceptance, -5 for a false one, 1 for a true rejection, -1 for a false one, "
            "-1 for no verdict, -0.25 for each turn of the prover; the prover 1 for acceptance, right or wrong, -2 for no verdict.",
        ),
        (
            {"scenario": {"name": "own"}, "protocol": {"name": "own"}},
            "Task: own, defined by a plugin.",
            "Who is paid for what is defined by",
        ),
        ({"scenario": 3}, "Task: unknown.", "Who is paid for what is unknown."),
    ],
)
def test_the_task_and_the_pay_are_those_of_the_config(config: dict[str, Any], task: str, pay: str) -> None:
    told = describe(config)
    assert told[0] == task
    assert told[1].startswith(pay)


def test_what_is_said_of_shipped_scenarios_holds(no_plugins: None) -> None:
    assert {*TASKS, "matrix_game"} >= set(SCENARIOS)
    assert not has_held_out({"scenario": {"name": "message_game"}})
    assert not MessageGame.held_out
    assert not MatrixGame.held_out
    assert set(GAMES_WITHOUT_SPLIT) <= set(SCENARIOS)
