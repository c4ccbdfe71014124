"""What a page shows of an item, of a reply that could not be used and of a plugin's own task and payment."""

from collections.abc import Iterator
from typing import Any

import pytest

from nip_ray.config.members import ADDED
from nip_ray.evaluation.report.describe import describe
from nip_ray.evaluation.report.episodes import shown
from nip_ray.play.dialogue import Turn
from nip_ray.play.transcripts import _transcript_turns
from nip_ray.protocols import build
from nip_ray.protocols.tables import PROTOCOLS


def episode(turn: dict[str, Any], item: dict[str, Any]) -> dict[str, Any]:
    record = {"instance": 81, "label": 1, "verdict": "reject", "correct": False, "rounds": [{"round": 0, "turns": [turn]}]}
    return shown(record, 1, {"prover": 1}, {}, {"81": item})


def test_items_of_numbers_and_lists_are_shown() -> None:
    item = {"id": 81, "y": 1, "a": 8, "parts": [8, 8], "claim": "eight and eight is sixteen"}
    assert episode({}, item)["item"] == [("a", "8"), ("parts", "[8, 8]"), ("claim", "eight and eight is sixteen")]


@pytest.mark.parametrize(("raw", "words"), [("sixteen perhaps", "sixteen perhaps [invalid]"), ("", "(an empty reply) [invalid]")])
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
