"""Replies in JSON: how they are read, and a dialogue in which the verifier writes them."""

import asyncio
import json
from pathlib import Path

import pytest

from nip_ray.errors import UserError
from nip_ray.play.dialogue import Chat, Dialogue, InvalidReply, Parsed
from nip_ray.play.dialogues import Answer, play_dialogue
from nip_ray.protocols import ACCEPT, REJECT, build
from nip_ray.scenarios.code_validation.item import CodeItem
from nip_ray.scenarios.code_validation.parse import SCALES, field_names, read_json_reply
from nip_ray.scenarios.code_validation.scenario import build_text_scenario
from nip_ray.settings.code_validation import CodeValidationSettings

HEADERS = {"a": "Question for Expert_1:", "b": "Question for Expert_2:"}
TWO = field_names(("a", "b"), HEADERS)
ASKED = {"a": "Question for Expert_1: Why?", "b": "Question for Expert_2: How?"}


def read(reply: str, scale: str = "accept_reject", fields: dict[str, str] = TWO) -> Parsed:
    return read_json_reply(reply, tuple(fields), fields, HEADERS, SCALES[scale])


@pytest.mark.parametrize(
    ("reply", "scale", "parsed"),
    [
        (
            '{"question_for_expert_1": null, "question_for_expert_2": null, "decision": "accept"}',
            "accept_reject",
            Parsed({}, ACCEPT, 1.0),
        ),
        (' {"decision": "reject"}\n', "accept_reject", Parsed({}, REJECT, 0.0)),
        ('{"question_for_expert_1": "It is wrong.", "decision": 1}', "one_to_seven", Parsed({}, REJECT, 0.0)),
        ('```json\n{"decision": "accept"}\n```\n', "accept_reject", Parsed({}, ACCEPT, 1.0)),
        ('```\n{\n  "decision": "reject"\n}\n```', "accept_reject", Parsed({}, REJECT, 0.0)),
        ('{"decision": 85}', "percent", Parsed({}, ACCEPT, 0.85)),
        (
            '{"question_for_expert_1": " Why?", "question_for_expert_2": "How?", "decision": null}',
            "accept_reject",
            Parsed(ASKED),
        ),
    ],
)
def test_replies(reply: str, scale: str, parsed: Parsed) -> None:
    assert read(reply, scale) == parsed


@pytest.mark.parametrize(
    ("reply", "why"),
    [
        ("Decision: accept", "no JSON"),
        ('So:\n```json\n{"decision": "accept"}\n```', "no JSON"),
        ('{"decision": "accept"} {}', "no JSON"),
        ('{"decision": "accept", "decision": "reject"}', "twice"),
        ("[" * 90_000, "no JSON"),
        ('{"decision": "accept", "reason": "?"}', "unknown field 'reason'"),
        ('{"question_for_expert_1": 3}', "text or null"),
        ('{"decision": "Accept"}', "null or one of reject, accept"),
        ('{"decision": true}', "null or one of"),
        ("{}", "there must be text in question_for_expert_1, question_for_expert_2"),
        ('{"question_for_expert_1": "Why?", "question_for_expert_2": " "}', "there must be text"),
        (" " * 100_001, "characters"),
    ],
)
def test_replies_that_are_refused(reply: str, why: str) -> None:
    with pytest.raises(InvalidReply, match=why):
        read(reply)


def test_others_read_the_question_and_the_verifier_learns_json() -> None:
    scenario = build_text_scenario(build("nip"), CodeValidationSettings(decision_format="json"))
    question = '{"message": "Why?", "decision": null}'
    lines = {
        "verifier": ["Question for Expert: Why?", question, '{"message": null, "decision": "accept"}'],
        "prover": ["Answer: So."],
    }
    read_by_prover: list[Chat] = []

    async def ask(dialogue: Dialogue, agent: str, chat: Chat, attempt: int, path: tuple[int, ...]) -> Answer:
        if agent == "prover":
            read_by_prover.append(chat)
        return Answer(lines[agent].pop(0))

    dialogue = asyncio.run(play_dialogue(scenario, CodeItem(0, "Print 1.", "print(1)", 1, 1), 0, ask))
    assert (dialogue.verdict, dialogue.rounds[0][0].retries) == (ACCEPT, 1)
    fence, said = read_by_prover[0][-1]["content"].split("\n")
    assert (fence[:10], said) == ("[Verifier ", "Question for Expert: Why?")
    assert "JSON" not in read_by_prover[0][0]["content"]
    chat, reply = scenario.training_chat(dialogue, "verifier", 2)
    assert [chat[1]["content"], json.loads(reply)["decision"]] == [question, "accept"]


def test_prompts_name_the_fields(tmp_path: Path) -> None:
    for name in ("nip", "debate", "solo_verifier"):
        scenario = build_text_scenario(build(name), CodeValidationSettings(decision_format="json"))
        prompt = scenario.system_prompt(CodeItem(0, "Print 1.", "print(1)", 1, 1), "verifier")
        assert ("Decision:" in prompt, "Question for" in prompt, scenario.verdict_text(ACCEPT) in prompt) == (
            False,
            False,
            True,
        )
    own = tmp_path / "nip" / "verifier.j2"
    own.parent.mkdir()
    own.write_text("Judge.")
    with pytest.raises(UserError, match=r'verifier\.j2, line 1: .* does not name the field "message"'):
        build_text_scenario(build("nip"), CodeValidationSettings(decision_format="json", prompts=str(tmp_path)))
