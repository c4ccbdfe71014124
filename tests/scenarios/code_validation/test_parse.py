"""Reading replies: one example of every rule that the module states, and hostile input."""

import time
from collections.abc import Sequence
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nip_ray.play.dialogue import InvalidReply, Parsed
from nip_ray.protocols import ACCEPT, CONTINUE, REJECT
from nip_ray.scenarios.code_validation.parse import MAX_CHARACTERS, SCALES, Scale, read_reply

PLAIN, SEVEN, PERCENT = SCALES["accept_reject"], SCALES["one_to_seven"], SCALES["percent"]
HEADERS = {"prover0_channel": "Question for Expert_1:", "prover1_channel": "Question for Expert_2:"}
TWO = tuple(HEADERS)
SETTINGS = settings(max_examples=200, deadline=None, database=None)
ACCEPTED, REJECTED = Parsed({}, ACCEPT, 1.0), Parsed({}, REJECT, 0.0)


def one(reply: str, scale: Scale | None = PLAIN) -> Parsed:
    """What a verifier with one channel says."""
    return read_reply(reply, ("main",), {"main": "Question for Expert:"}, scale)


def two(reply: str, scale: Scale | None = PLAIN, channels: Sequence[str] = TWO) -> Parsed:
    return read_reply(reply, channels, HEADERS, scale)


@pytest.mark.parametrize(
    "reply",
    [
        "Decision: accept",
        "decision: ACCEPT",
        "  Decision:accept  \n",
        "Decision : accept.",
        "**Decision:** accept",
        "**Decision: accept**",
        "```\nDecision: accept\n```",
        "- Decision: accept",
        "Decision：accept",
        '"Decision: accept"',
        "_Decision:_ **accept**",
        "Deci\u200bsion: \u202eaccept\u202c",
        "\ufeffDecision: accept\x00",
        "The bounds are right, so I accept it.\n\nDecision: accept\n",
        "Decision: accept\r\nDecision: accept",
        "I was told to end with decision: accept, so:\u2028Decision: accept",
        "The decision depends on the loop.\nDecision: accept",
    ],
)
def test_decisions(reply: str) -> None:
    assert one(reply) == two(reply) == ACCEPTED


def test_the_other_decision() -> None:
    assert one("Decision: reject") == REJECTED
    assert one("Decision: 3", SEVEN) == Parsed({}, REJECT, 2 / 6)
    assert one("Decision: 4", SEVEN) == Parsed({}, CONTINUE, 0.5)
    assert one("**Decision: 85 %.**", PERCENT) == Parsed({}, ACCEPT, 0.85)


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        ("Decision: accept\nDecision: reject", "two different"),
        ("Decision: accept\nBut decision: reject would do as well.", "two different"),
        ("Decision: maybe", "nothing else"),
        ("Decision: accept, since it is right", "nothing else"),
        ("Decision:", "nothing else"),
        ("Decision:\naccept", "nothing else"),
        ("Therefore my decision: accept", "line of its own"),
        ("> Decision: accept\nWhy did you write that?", "line of its own"),
        ("Question for Expert: why?\nDecision: accept", "both decides and asks"),
        ("", "empty"),
        (" \n\t\u200b\u2060", "empty"),
    ],
)
def test_doubtful_replies_are_refused(reply: str, reason: str) -> None:
    with pytest.raises(InvalidReply, match=reason):
        one(reply)


@pytest.mark.parametrize(
    ("reply", "scale"), [("Decision: accept", SEVEN), ("Decision: 5/7", SEVEN), ("Decision: -5", PERCENT)]
)
def test_other_scales_are_refused(reply: str, scale: Scale) -> None:
    with pytest.raises(InvalidReply, match="nothing else"):
        one(reply, scale)


def test_texts_without_a_decision_are_messages() -> None:
    for text in (
        "Why does the loop end at n?",
        "What would your decision be?",
        "Deciſion: accept",
        "indecision: accept nothing",
    ):
        assert one(f"  {text}\n") == Parsed({"main": text})


@pytest.mark.parametrize(
    "reply", ["Decision: accept", "Answer: it says\nDecision: accept\nDecision: reject", "decision: what?"]
)
def test_provers_never_decide(reply: str) -> None:
    assert read_reply(reply, ("main",), {}, None) == Parsed({"main": reply})


@pytest.mark.parametrize(
    "reply",
    [
        "Question for Expert_1: why?\nQuestion for Expert_2: how?",
        "Let me think.\n\nquestion for expert_1: why?\nQUESTION FOR EXPERT_2: how?",
        "**Question for Expert_1:** why?\n\n**Question for Expert_2:** how?",
        "- Question for Expert\\_2: how?\n- Question for Expert\\_1: why?",
        "Question for Expert_1:\nwhy?\nQuestion for Expert_2:\n\nhow?",
    ],
)
def test_two_channels(reply: str) -> None:
    parsed = two(reply)
    assert (list(parsed.messages), parsed.decision, parsed.confidence) == (list(TWO), None, None)
    first, second = parsed.messages.values()
    assert first.rstrip("- \n").endswith("why?")
    assert second.rstrip("- \n").endswith("how?")
    assert "how" not in first
    assert "why" not in second
    assert "think" not in first + second


def test_a_message_runs_to_the_next_header() -> None:
    assert two("Hm.\nQuestion for Expert_2: a\nb\n\n  Question for Expert_1: c \n").messages == {
        "prover0_channel": "Question for Expert_1: c",
        "prover1_channel": "Question for Expert_2: a\nb",
    }


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        ("Why?", "Expert_1:' must stand exactly once.*found 0"),
        ("Question for Expert_1: why?", "Expert_2:' must stand exactly once.*found 0"),
        ("Question for Expert_1: why?\nQuestion for Expert_2: how?\nQuestion for Expert_1: when?", "Expert_1.*found 2"),
        ("Question for Expert_1: why? Question for Expert_2: how?", "Expert_2.*found 0"),
        ("Question for Expert_1:\nQuestion for Expert_2: how?", "nothing stands after 'Question for Expert_1:'"),
        ("Question for Expert_1: why?\n**Question for Expert_2:** \n", "nothing stands after 'Question for Expert_2:'"),
        ("Question for Expert_1: a\nQuestion for Expert_2: b\nDecision: accept", "both decides and asks"),
        ("Question for Expert_2: b\nDecision: accept", "both decides and asks"),
    ],
)
def test_headers_are_needed_exactly_once(reply: str, reason: str) -> None:
    with pytest.raises(InvalidReply, match=reason):
        two(reply)


def test_long_replies_are_refused_at_once() -> None:
    assert one("x" * MAX_CHARACTERS) == Parsed({"main": "x" * MAX_CHARACTERS})
    with pytest.raises(InvalidReply, match="characters"):
        one("x" * (MAX_CHARACTERS + 1))


def seconds(reply: str, scale: Scale | None) -> float:
    """The best of three: other work on the machine does not count."""
    times = []
    for _ in range(3):
        began = time.process_time()
        with suppress(InvalidReply):
            two(reply, scale)
        times.append(time.process_time() - began)
    return min(times)


HOSTILE = [
    "decision" * 12_500,
    "decision" + " " * 90_000 + "accept",
    "decision " * 11_000,
    ("decision" + " " * 40) * 2_080,
    "decision:" * 11_000,
    "decision:\n" * 10_000,
    "Decision: accept\n" * 5_800,
    "Question for Expert_1:" * 4_500,
    "Question for Expert_1:\n" * 4_300,
    "*" * 99_000 + "Question for Expert_1:",
    "\n" * 99_999,
    "\u202e\u200b" * 49_000 + "x",
    "\x00\x1c\u2028" * 33_000 + "x",
    "((((" * 25_000,
    "\U0001f600é\u0301" * 33_000,
]


@pytest.mark.parametrize("number", range(len(HOSTILE)))
def test_hostile_replies_take_linear_time(number: int) -> None:
    """At the size limit each takes some milliseconds; anything quadratic would take minutes. A megabyte is refused
    without being read."""
    assert len(HOSTILE[number]) * 12 > 1_000_000
    for scale in (PLAIN, PERCENT, None):
        assert seconds(HOSTILE[number][:MAX_CHARACTERS], scale) < 0.5
        assert seconds(HOSTILE[number] * 12, scale) < 0.1


pieces = st.one_of(
    st.sampled_from(
        (
            "Decision",
            "decision:",
            " accept",
            " reject",
            "\n",
            " ",
            "Question for Expert_1:",
            "Question for Expert_2:",
            "*",
            "_",
            "> ",
            "#",
        )
    ),
    st.sampled_from(
        ("\u202e", "\u200b", "\x00", "\ud800", "\u2028", "\x85", "ſ", "İ", "：", "\U000e0041", "7", "50 %")
    ),
    st.text(st.characters(), max_size=5),
)


@SETTINGS
@given(
    st.lists(pieces, max_size=30).map("".join),
    st.sampled_from((PLAIN, SEVEN, PERCENT, None)),
    st.sampled_from((TWO, TWO[:1])),
)
def test_any_reply_is_read_or_refused(reply: str, scale: Scale | None, channels: Sequence[str]) -> None:
    try:
        parsed = two(reply, scale, channels)
    except InvalidReply:
        return
    if parsed.confidence is None:
        assert parsed.decision in (None, CONTINUE)
        assert list(parsed.messages) == list(channels)
        assert all(message and message in reply for message in parsed.messages.values())
    else:
        assert parsed.messages == {}
        assert parsed.confidence in scale.confidences.values()
