"""Figures of dialogues, by hand and against what tensor agents' figures say."""

import json
from typing import Any

import pytest

from nip_ray.evaluation.intervals import mean, proportion, share_ends
from nip_ray.play.dialogue import Dialogue, Turn
from nip_ray.play.dialogues import advance, start_dialogue
from nip_ray.play.transcripts import transcript_record
from nip_ray.protocols import ACCEPT, CONTINUE, REJECT
from nip_ray.text.training.metrics import dialogue_metrics, dialogue_record, risk_and_coverage
from tests.text.small_dialogues import Item, random_dialogues, tiny

NIP = tiny("nip", max_rounds=4)


def over(number: int, y: int, verdict: int, confidence: float | None = None, **turn: Any) -> Dialogue:
    """A question, an answer, and a verdict; undecided: the rounds run out."""
    dialogue = start_dialogue(Item(number, y, difficulty="hard" if number % 2 else "easy"), 0)
    ask, answer = Turn("verifier", "Why?", {"main": "Why?"}, **turn), Turn("prover", "So.", {"main": "So."})
    if verdict != CONTINUE and confidence is None:
        confidence = float(verdict)
    last = ask if verdict == CONTINUE else Turn("verifier", "Decision", {}, verdict, confidence)
    for taken in (ask, answer, last, *([answer] if verdict == CONTINUE else [])):
        dialogue = advance(NIP, dialogue, [taken])
    assert dialogue.ended
    return dialogue


# right: 0, 1, 3; wrong: 2, 4; undecided: 5 (y = 1) and 6 (y = 0)
PLAYED = [
    over(0, 1, ACCEPT),
    over(1, 0, REJECT),
    over(2, 1, REJECT),
    over(3, 1, ACCEPT),
    over(4, 0, ACCEPT),
    over(5, 1, CONTINUE),
    over(6, 0, CONTINUE),
]


def test_risk_against_coverage_of_verdicts_on_a_scale() -> None:
    """Sureness .9 (right), .8 (wrong), .7 (right), and one that is left undecided: a quarter, a half and three quarters
    of all items."""
    graded = [over(0, 1, ACCEPT, 0.9), over(1, 1, REJECT, 0.2), over(2, 0, REJECT, 0.3), over(3, 1, CONTINUE)]
    found = risk_and_coverage(graded)["calibration"]["selective"]
    assert [(point["coverage"], point["risk"]) for point in found["curve"]] == [
        (0.25, 0),
        (0.5, 0.5),
        (0.75, pytest.approx(1 / 3)),
    ]
    assert found["area"]["estimate"] == pytest.approx(5 / 18, abs=1e-9)
    assert risk_and_coverage(PLAYED) == {}, "all equally sure"
    assert risk_and_coverage([*graded, over(0, 1, ACCEPT, 0.8)]) == {}, "an item twice"
    assert risk_and_coverage([]) == {}


def test_flat_figures_and_record_agree() -> None:
    for scenario in (tiny("debate", max_rounds=6), tiny("merlin_arthur"), tiny("solo_verifier"), NIP):
        dialogues = random_dialogues(scenario, 25, repeats=3, seed=4) + random_dialogues(scenario, 10, seed=5)
        groups = {"difficulty": lambda item: item.difficulty}
        flat = dialogue_metrics(dialogues, scenario.protocol, groups)
        record = dialogue_record(dialogues, scenario.protocol, groups=groups)
        assert {
            key: figure["estimate"] for key, figure in record.items() if figure["estimate"] is not None
        } == pytest.approx(flat)
        json.dumps(record, allow_nan=False)


def test_each_member_of_a_panel_has_the_figures_of_its_own_vote() -> None:
    """Those of a verifier whose verdicts are its votes."""
    scenario = tiny("judge_panel", judges=2, max_rounds=4, panel_rule="veto")
    dialogues = random_dialogues(scenario, 30, repeats=2, seed=4)
    found = dialogue_metrics(dialogues, scenario.protocol, {"difficulty": lambda item: item.difficulty})
    for judge in ("judge0", "judge1"):
        given = []
        for dialogue in dialogues:
            cast = [
                turn.decision
                for turns in dialogue.rounds
                for turn in turns
                if turn.agent == judge and turn.decision != CONTINUE
            ]
            assert len(cast) <= 1, "who has voted has no more turns"
            given.append((dialogue.item.y, cast[0] if cast else CONTINUE))
        assert found[f"{judge}/accuracy"] == pytest.approx(sum(y == vote for y, vote in given) / len(given))
        assert found[f"{judge}/undecided"] == pytest.approx(sum(vote == CONTINUE for _, vote in given) / len(given))
        assert {f"{judge}/{name}" for name in ("brier", "worst_case", "precision")} <= found.keys()
        for dialogue, (y, vote) in zip(dialogues, given):
            assert transcript_record(scenario, dialogue)["votes"][judge] == ("reject", "accept", "undecided")[vote]
            sure = [
                turn.confidence
                for turns in dialogue.rounds
                for turn in turns
                if turn.agent == judge and turn.confidence is not None
            ]
            truth = 0.0 if not sure else sure[0] if y else 1 - sure[0]
            assert dialogue.total(judge) == pytest.approx(2 * truth - 1, abs=1e-6)
    assert any(len(dialogue.rounds) == 4 for dialogue in dialogues)
    json.dumps(dialogue_record(dialogues, scenario.protocol), allow_nan=False)


def test_intervals_of_items_played_once_are_exact() -> None:
    record = dialogue_record(PLAYED, NIP.protocol)
    assert record["verifier/accuracy"] == proportion(3, 7).record()
    assert record["verifier/completeness"] == proportion(2, 4).record()
    assert record["verifier/soundness"] == proportion(1, 3).record()
    assert record["verifier/precision"] == proportion(2, 3).record()
    assert record["verifier/always_fail"] == proportion(4, 7).record()
    assert record["prover/return"] == pytest.approx(mean([1, 0, 0, 1, 1, 0, 0]).record())
    assert record["verifier/worst_case"] == {"estimate": 0.0, "lower": None, "upper": None, "n": 7}


def test_repeats_are_no_more_data_points() -> None:
    twice = [over(0, 1, ACCEPT), over(1, 1, REJECT)] * 10
    record = dialogue_record(twice, NIP.protocol)
    assert record["verifier/accuracy"] == proportion(1, 2).record()
    mixed = [over(i, 1, ACCEPT if play < i else REJECT) for i in range(4) for play in range(4)]
    shares = [0.0, 0.25, 0.5, 0.75]
    wanted = mean(shares)
    found = dialogue_record(mixed, NIP.protocol)["verifier/accuracy"]
    assert wanted.upper is not None
    lower, upper = share_ends(0.375, wanted.upper - 0.375)
    assert found == pytest.approx({"estimate": 0.375, "lower": lower, "upper": upper, "n": 4})
    assert dialogue_metrics(mixed, NIP.protocol)["verifier/worst_case"] == 0.0
    assert dialogue_metrics(mixed, NIP.protocol)["verifier/always_fail"] == 0.25
    kinder = [dialogue for dialogue in mixed if dialogue.item.id > 1]
    assert dialogue_metrics(kinder, NIP.protocol)["verifier/worst_case"] == 0.5
    assert dialogue_metrics(kinder, NIP.protocol)["verifier/always_fail"] == 0.0


def test_shares_of_nothing() -> None:
    undecided = [over(0, 1, CONTINUE)]
    flat, record = dialogue_metrics(undecided, NIP.protocol), dialogue_record(undecided, NIP.protocol)
    for key in ("verifier/soundness", "verifier/acceptance", "verifier/precision", "verifier/recall"):
        assert key not in flat
        assert record[key] == {"estimate": None, "lower": 0.0, "upper": 1.0, "n": 0}
    for key in ("verifier/brier", "verifier/confidence", "verifier/overconfidence"):
        assert key not in flat
        assert record[key] == {"estimate": None, "lower": None, "upper": None, "n": 0}
    assert flat["verifier/undecided"] == 1.0
