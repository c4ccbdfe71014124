"""What each agent is shown, under every protocol, and a protocol of one's own with templates of one's own."""

import asyncio
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path as File
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import validate

from nip_ray.errors import UserError
from nip_ray.play.dialogue import Chat, Dialogue, Turn
from nip_ray.play.dialogues import Answer, advance, play_dialogue, rulebook, start_dialogue
from nip_ray.protocols import ACCEPT, REJECT, build, wrap
from nip_ray.scenarios.code_validation.item import CodeItem
from nip_ray.scenarios.code_validation.scenario import EMPTY, LAST_NOTICE, ROLES, CodeValidation, build_text_scenario
from nip_ray.settings.code_validation import CodeValidationSettings
from nip_ray.settings.language_agents import LanguageAgentSettings
from nip_ray.settings.protocol import ProtocolParams
from tests.protocols.test_conformance import cross_examination

NAMES = tuple(ROLES)
ITEM = CodeItem(3, "Add two numbers.", "print(sum(map(int, input().split())))", 1, 0)
SETTINGS = settings(max_examples=60, deadline=None, database=None)


def made(
    name: str = "nip",
    randomize_prover_stance: bool = False,
    verdict_scale: Any = "accept_reject",
    form: Any = "text",
    **params: Any,
) -> CodeValidation:
    chosen = CodeValidationSettings(
        randomize_prover_stance=randomize_prover_stance, verdict_scale=verdict_scale, decision_format=form
    )
    return build_text_scenario(build(name, **params), chosen)


def talked(scenario: CodeValidation, rounds: int, seed: int = 0, silent: tuple[tuple[int, str], ...] = ()) -> Dialogue:
    """`rounds` rounds in which everyone says who speaks, when and where; those in `silent` give no usable reply."""
    dialogue = start_dialogue(ITEM, seed)
    for r in range(rounds):
        turns = []
        for agent, channels in rulebook(scenario.protocol).speakers(r, dialogue.seed).items():
            messages = {channel: f"{agent} {r} {channel}" for channel in channels}
            turn = Turn(agent, f"raw of {agent} {r}", messages)
            if (r, agent) in silent:
                turn = replace(turn, messages=dict.fromkeys(channels, ""), invalid=True)
            turns.append(turn)
        dialogue = advance(scenario, dialogue, turns)
    return dialogue


def short(chat: Chat) -> list[tuple[str, str]]:
    """(who speaks, what) of all but the system prompt, which must come first."""
    assert chat[0]["role"] == "system"
    assert all(entry["role"] != "user" or set(entry) <= {"role", "content", "name"} for entry in chat)
    return [
        ("notice" if entry["role"] == "system" else entry.get("name", entry["role"]), entry["content"])
        for entry in chat[1:]
    ]


def test_nip() -> None:
    scenario = made(max_rounds=5)
    assert short(scenario.chat(talked(scenario, 0), "verifier")) == []
    assert short(scenario.chat(talked(scenario, 1), "prover")) == [("Verifier", "verifier 0 main")]
    assert short(scenario.chat(talked(scenario, 4), "verifier")) == [
        ("assistant", "raw of verifier 0"),
        ("Expert", "prover 1 main"),
        ("assistant", "raw of verifier 2"),
        ("Expert", "prover 3 main"),
        ("notice", LAST_NOTICE),
    ]
    assert short(scenario.chat(talked(scenario, 3), "prover")) == [
        ("Verifier", "verifier 0 main"),
        ("assistant", "raw of prover 1"),
        ("Verifier", "verifier 2 main"),
    ]


def test_the_notice_comes_before_the_last_turn_of_the_verifier_even_if_a_prover_has_the_last_round() -> None:
    for rounds, last in ((8, 6), (9, 8)):
        scenario = made(max_rounds=rounds)
        for r in range(0, rounds, 2):
            assert (LAST_NOTICE in scenario.chat(talked(scenario, r), "verifier")[-1]["content"]) == (r == last)
    scenario = made("debate", sequential=True, verifier_first=False, max_rounds=7)  # it speaks in rounds 2 and 5
    assert ("notice", LAST_NOTICE) not in short(scenario.chat(talked(scenario, 2), "verifier"))
    assert short(scenario.chat(talked(scenario, 5), "verifier"))[-1] == ("notice", LAST_NOTICE)
    assert ("notice", LAST_NOTICE) not in short(scenario.chat(talked(scenario, 6), "prover0"))


@pytest.mark.parametrize(("name", "rounds"), [("merlin_arthur", 1), ("consultancy", 2)])
def test_a_drawn_prover_is_not_named(name: str, rounds: int) -> None:
    scenario = made(name)
    for seed, speaker in ((2, "prover0"), (3, "prover1")):
        assert short(scenario.chat(talked(scenario, rounds, seed), "verifier"))[-1] == (
            "user",
            f"{speaker} {rounds - 1} main",
        )


def test_the_verifier_reads_two_channels_in_a_seeded_order() -> None:
    scenario = made("mnip", max_rounds=9)
    orders = Counter(
        tuple(
            content.split()[2]
            for name, content in short(scenario.chat(talked(scenario, 2, seed), "verifier"))
            if name != "assistant"
        )
        for seed in range(200)
    )
    assert set(orders) == {("prover0_channel", "prover1_channel"), ("prover1_channel", "prover0_channel")}
    assert min(orders.values()) > 60
    one = talked(scenario, 8, 11)
    assert scenario.chat(one, "verifier") == scenario.chat(one, "verifier")
    by_round = [
        content.split()[2] for name, content in short(scenario.chat(one, "verifier")) if name.startswith("Expert")
    ][::2]
    # not the same in all rounds
    assert len({tuple(by_round)} | {("prover0_channel",) * 4, ("prover1_channel",) * 4}) == 3
    fixed = build_text_scenario(scenario.protocol, replace(scenario.settings, randomize_channel_order=False))
    firsts = {short(fixed.chat(talked(fixed, 2, seed), "verifier"))[1][0] for seed in range(20)}
    assert firsts == {"Expert_1"}


def test_a_decision_that_comes_too_early_is_silence_to_others() -> None:
    scenario = made(min_rounds=3)
    early = advance(scenario, start_dialogue(ITEM, 0), [Turn("verifier", "Decision: accept", {}, ACCEPT, 1.0)])
    assert not early.ended
    assert short(scenario.chat(early, "prover")) == [("Verifier", EMPTY)]


@SETTINGS
@given(
    st.sampled_from(("nip", "adp", "debate", "merlin_arthur", "consultancy", "mnip")),
    st.booleans(),
    st.booleans(),
    st.integers(0, 65535),
    st.integers(0, 8),
)
def test_everyone_sees_exactly_what_the_protocol_shows(
    name: str, verifier_first: bool, sequential: bool, seed: int, rounds: int
) -> None:
    params: dict[str, Any] = {"verifier_first": verifier_first} if name in ("nip", "debate", "mnip") else {}
    params |= {"sequential": sequential} if name in ("debate", "mnip") else {}
    scenario = made(name, **params)
    rounds = min(rounds, scenario.protocol.max_rounds - 1)
    dialogue = talked(scenario, rounds, seed)
    for agent in scenario.protocol.agents:
        heard = [
            content for who, content in short(scenario.chat(dialogue, agent)) if who not in ("assistant", "notice")
        ]
        said = [turn for turns in dialogue.rounds for turn in turns if turn.agent != agent]
        wanted = [
            text for turn in said for channel, text in turn.messages.items() if channel in scenario.protocol.sees[agent]
        ]
        assert sorted(heard) == sorted(wanted)
        assert [int(content.split()[1]) for content in heard] == sorted(int(content.split()[1]) for content in heard)
        own = [turn.raw for turns in dialogue.rounds for turn in turns if turn.agent == agent]
        assert [content for who, content in short(scenario.chat(dialogue, agent)) if who == "assistant"] == own


def test_training_chats_are_what_was_seen() -> None:
    for name in NAMES:
        scenario = made(name)
        seen: dict[tuple[int, str], Chat] = {}

        async def ask(
            dialogue: Dialogue, agent: str, chat: Chat, attempt: int, path: tuple[int, ...], made=scenario, seen=seen
        ) -> Answer:
            seen[len(dialogue.rounds), agent] = chat
            return Answer(made.invent(dialogue, agent, 4))

        dialogue = asyncio.run(play_dialogue(scenario, ITEM, 8, ask))
        for (r, agent), chat in seen.items():
            assert scenario.training_chat(dialogue, agent, r) == (
                chat,
                next(t.raw for t in dialogue.rounds[r] if t.agent == agent),
            )
        assert sorted(seen) == sorted(
            (r, agent) for agent in scenario.protocol.agents for r in scenario.usable_rounds(dialogue, agent)
        )


@pytest.mark.parametrize("form", ["text", "json"])
@pytest.mark.parametrize("scale", ["accept_reject", "one_to_seven", "percent"])
def test_a_replaced_guess_reads_as_the_true_verdict(scale: str, form: str) -> None:
    scenario = made(verdict_scale=scale, form=form)
    dialogue = talked(scenario, 2)
    for label in (REJECT, ACCEPT):
        chat, _ = scenario.training_chat(talked(scenario, 3), "verifier", 2)
        assert chat == scenario.fenced_chat(dialogue, "verifier")
        parsed = scenario.parse(dialogue, "verifier", scenario.verdict_text(label))
        assert (parsed.decision, parsed.confidence) == (label, float(label))


@pytest.mark.parametrize("scale", ["accept_reject", "one_to_seven", "percent"])
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("form", ["text", "json"])
def test_dummy_replies_are_valid_and_seeded(name: str, scale: str, form: str) -> None:
    scenario = made(name, verdict_scale=scale, form=form)
    for seed in range(10):
        dialogue = start_dialogue(ITEM, seed)
        while not dialogue.ended:
            turns = []
            for agent in rulebook(scenario.protocol).speakers(len(dialogue.rounds), dialogue.seed):
                reply = scenario.invent(dialogue, agent, seed)
                assert reply == scenario.invent(dialogue, agent, seed)
                if schema := scenario.reply_schema(agent):
                    validate(json.loads(reply), schema)
                parsed = scenario.parse(dialogue, agent, reply)
                decision = scenario.protocol.undecided if parsed.decision is None else parsed.decision
                turns.append(Turn(agent, reply, parsed.messages, decision, parsed.confidence))
            dialogue = advance(scenario, dialogue, turns)


def test_a_protocol_of_ones_own_needs_templates_alone(tmp_path: File) -> None:
    room = tmp_path / "cross_examination"
    room.mkdir()
    (room / "judge.j2").write_text(
        '{% include "_parts/item.j2" %}\n{{ headers.accuser_note }} {{ names.accuser }} {{ max_questions }}'
    )
    for agent in ("accuser", "defender"):
        (room / f"{agent}.j2").write_text("You are {{ name }}. Convince {{ verifier_name }} to {{ stance_word }}.")
    chosen = CodeValidationSettings(prompts=str(tmp_path))
    scenario = build_text_scenario(cross_examination(ProtocolParams()), chosen)
    assert scenario.system_prompt(ITEM, "accuser") == "You are Accuser. Convince Judge to reject."
    assert scenario.system_prompt(ITEM, "judge").endswith("To Accuser: Accuser 2")
    said = {"judge": "Why?", "accuser": "It is wrong.", "defender": "It is right."}

    async def ask(dialogue: Dialogue, agent: str, chat: Chat, attempt: int, path: tuple[int, ...]) -> Answer:
        return Answer("Decision: accept" if len(dialogue.rounds) == 6 else said[agent])

    dialogue = asyncio.run(play_dialogue(scenario, ITEM, 0, ask))
    learned = [text.split("\n")[-1] for _, text in short(scenario.training_chat(dialogue, "defender", 3)[0])]
    assert learned == ["It is wrong.", "It is right.", "It is wrong."]
    assert (dialogue.verdict, dialogue.total("defender"), dialogue.total("judge")) == (ACCEPT, 1.0, 1.0)
    with pytest.raises(UserError, match=r"no prompts for 'cross_examination'.*judge\.j2"):
        build_text_scenario(cross_examination(ProtocolParams()), CodeValidationSettings())


def test_what_cannot_be_played_is_refused() -> None:
    plain = CodeValidationSettings()
    with pytest.raises(UserError, match="game without a verifier"):
        build_text_scenario(build("matrix_game"), plain)
    with pytest.raises(UserError, match="zero_knowledge"):
        build_text_scenario(wrap(build("nip"), ProtocolParams(zero_knowledge=True)), plain)
    for name in ("debate", "merlin_arthur", "solo_verifier"):
        with pytest.raises(UserError, match="randomize_prover_stance"):
            made(name, randomize_prover_stance=True)
    with pytest.raises(UserError, match=r"scenario\.agents\.prover0.*prover, verifier, _default"):
        build_text_scenario(build("nip"), replace(plain, agents={"prover0": LanguageAgentSettings()}))
