"""What a page says of a run: the task, who is paid for what, an item, and a reply that could not be used."""

from collections.abc import Iterator
from typing import Any

import pytest

from nip_ray.config.load import load_config
from nip_ray.config.members import ADDED
from nip_ray.evaluation.report.describe import GAMES_WITHOUT_SPLIT, TASKS, describe, has_held_out
from nip_ray.evaluation.report.episodes import shown
from nip_ray.play.dialogue import Turn
from nip_ray.play.transcripts import _transcript_turns
from nip_ray.protocols import build
from nip_ray.protocols.tables import PROTOCOLS
from nip_ray.scenarios.matrix_games.scenario import MatrixGame
from nip_ray.scenarios.message_game.scenario import MessageGame
from nip_ray.scenarios.registry import SCENARIOS


@pytest.mark.parametrize(
    ("config", "task", "pay"),
    [
        (
            {
                "scenario": {"name": "graph_isomorphism"},
                "protocol": {"name": "debate", "verifier_incorrect_penalty": -2.5},
            },
            "Task: are two graphs the same up to the names of their nodes (accept) or not (reject)?",
            (
                "The verifier is paid 1 for a correct verdict and -2.5 for a wrong one; prover0 1 for rejection, right"
                " or wrong; prover1 1 for acceptance, right or wrong."
            ),
        ),
        (
            load_config("tune_configs/message_game.yaml").model_dump(mode="json"),
            (
                "Task: does a secret that only the prover sees lie in the upper half (accept) or in the lower one"
                " (reject)?"
            ),
            "The verifier is paid 1 for a correct verdict and -1 for a wrong one; the prover the same.",
        ),
        (
            {
                "scenario": {"name": "message_game"},
                "protocol": {
                    "name": "nip",
                    "prover_reward": "much",
                    "payoff": {
                        "verifier": {"false_accept": -5, "turns": {"prover": -0.25}},
                        "prover": {"undecided": -2},
                        "x": 1,
                    },
                },
            },
            (
                "Task: does a secret that only the prover sees lie in the upper half (accept) or in the lower one"
                " (reject)?"
            ),
            (
                "The verifier is paid 1 for a true acceptance, -5 for a false one, 1 for a true rejection, -1 for a"
                " false one, -1 for no verdict, -0.25 for each turn of the prover; the prover 1 for acceptance, right"
                " or wrong, -2 for no verdict."
            ),
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


def episode(turn: dict[str, Any], item: dict[str, Any]) -> dict[str, Any]:
    record = {
        "instance": 81,
        "label": 1,
        "verdict": "reject",
        "correct": False,
        "rounds": [{"round": 0, "turns": [turn]}],
    }
    return shown(record, 1, {"prover": 1}, {}, {"81": item})


def test_items_of_numbers_and_lists_are_shown() -> None:
    item = {"id": 81, "y": 1, "a": 8, "parts": [8, 8], "claim": "eight and eight is sixteen"}
    assert episode({}, item)["item"] == [("a", "8"), ("parts", "[8, 8]"), ("claim", "eight and eight is sixteen")]


@pytest.mark.parametrize(
    ("raw", "words"), [("sixteen perhaps", "sixteen perhaps [invalid]"), ("", "(an empty reply) [invalid]")]
)
def test_what_was_written_is_shown_where_it_could_not_be_used(raw: str, words: str) -> None:
    class Scenario:
        protocol = build("nip")

    turn = Turn("prover", raw, {"prover_channel": "", Scenario.protocol.channels[0]: ""}, 2, retries=1, invalid=True)
    row, *_ = _transcript_turns(Scenario(), turn)  # type: ignore[arg-type]
    assert row["written"] == raw
    assert episode(row, {})["rounds"][0]["turns"][0]["message"] == words


@pytest.fixture
def own() -> Iterator[None]:
    class Words:
        """Is a sum right?"""

    ADDED["language_scenario"]["wordsum"] = Words
    PROTOCOLS["audited"] = PROTOCOLS["nip"]
    yield
    del ADDED["language_scenario"]["wordsum"], PROTOCOLS["audited"]


def test_a_plugin_that_is_there_is_described_by_itself(own: None) -> None:
    task, pay, *_ = describe({"scenario": {"name": "wordsum"}, "protocol": {"name": "audited"}})
    assert task == "Task: wordsum, defined by a plugin. Is a sum right?"
    assert pay.startswith("The verifier is paid 1 for a correct verdict")
