"""The text core: payment and endings against the tensor step, attempts and fallbacks, concurrency, records that give
everything back."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st

from nip_ray.errors import TrainingError, UserError
from nip_ray.evaluation.report import episodes
from nip_ray.play.dialogue import Chat, Dialogue, Turn, dialogue_from_record, dialogue_record
from nip_ray.play.dialogues import (
    Answer,
    Path,
    Question,
    advance,
    play_dialogue,
    play_in_step,
    play_round,
    rulebook,
    start_dialogue,
    verdict_of,
)
from nip_ray.play.transcripts import transcript_record
from nip_ray.protocols import ACCEPT, CONTINUE, REJECT, Ends, build, check, start, step
from nip_ray.scenarios.code_validation.item import CodeItem
from nip_ray.scenarios.code_validation.scenario import CodeValidation, build_text_scenario
from nip_ray.seeding import stable_seed
from nip_ray.settings.code_validation import CodeValidationSettings
from nip_ray.settings.language_agents import LanguageAgentSettings
from nip_ray.settings.protocol import PayoffSettings
from nip_ray.text.training.metrics import dialogue_metrics

NAMES = ("nip", "adp", "debate", "merlin_arthur", "consultancy", "mnip", "solo_verifier")
ORDERED = ("nip", "debate", "mnip", "consultancy")
SETTINGS = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow], database=None)
amounts = st.sampled_from((-1.0, -0.3, 0.0, 0.1, 1.0, 2.5))
BOTH = "Question for Expert_1: why?\nQuestion for Expert_2: how?"


def item(y: int = 1, stance: int = 1, id: int = 7) -> CodeItem:
    return CodeItem(id, "Add two numbers.", "print(sum(map(int, input().split())))", y, stance)


def scenario(
    name: str = "nip", randomize: bool = False, scale: Any = "accept_reject", replies: int = 3, **params: Any
) -> CodeValidation:
    agents = {"_default": LanguageAgentSettings(max_invalid_replies=replies)}
    chosen = CodeValidationSettings(verdict_scale=scale, randomize_prover_stance=randomize, agents=agents)
    return build_text_scenario(build(name, **params), chosen)


@st.composite
def protocol_parameters(draw: st.DrawFn) -> tuple[str, dict[str, Any]]:
    name = draw(st.sampled_from(NAMES))
    params: dict[str, Any] = {
        "shared_reward": draw(st.booleans()),
        "force_guess": draw(st.sampled_from((None, None, "zero", "one", "y"))),
    }
    params |= {
        f"verifier_{key}": draw(amounts)
        for key in ("reward", "incorrect_penalty", "terminated_penalty", "no_guess_reward")
    }
    if not params["shared_reward"]:
        params["prover_reward"] = draw(amounts)
    if name in ORDERED:
        params["verifier_first"] = draw(st.booleans())
        params["max_rounds"] = draw(st.integers(3, 9))
        params["min_rounds"] = draw(st.integers(1, 3))
    if name in ("debate", "mnip"):
        params["sequential"] = draw(st.booleans())
    return name, params


def turns_of(made: CodeValidation, dialogue: Dialogue, confidence: float | None) -> list[Turn]:
    """What all speakers of the next round say: provers a message, the verifier this confidence, or a message."""
    found = []
    for agent, channels in rulebook(made.protocol).speakers(len(dialogue.rounds), dialogue.seed).items():
        own = confidence if agent == made.protocol.verifier else None
        decision = CONTINUE if own is None else verdict_of(own)
        messages = dict.fromkeys(channels, "a message") if own is None else {}
        found.append(Turn(agent, "a reply", messages, decision, own))
    return found


@SETTINGS
@given(protocol_parameters(), st.integers(0, 65535), st.integers(0, 1), st.integers(0, 1), st.booleans(), st.data())
def test_payment_and_endings_are_those_of_the_tensor_step(
    chosen: tuple[str, dict[str, Any]], seed: int, y: int, stance: int, randomize: bool, data: st.DataObject
) -> None:
    name, params = chosen
    try:
        made = scenario(name, randomize and name in ("nip", "adp", "mnip"), **params)
    except UserError:  # some orders leave the verifier no turn in which it can decide
        reject()
    about = item(y, stance)
    paid = made.protocol
    if made.settings.randomize_prover_stance:
        paid = replace(paid, payment=paid.payment.arguing(dict.fromkeys(paid.provers, stance)))
    state = start(paid, torch.tensor([y]), torch.tensor([seed]))
    dialogue = start_dialogue(about, seed)
    while not dialogue.ended:
        assert not bool(state.ended_B.any())
        decision = data.draw(st.sampled_from((REJECT, ACCEPT, CONTINUE, CONTINUE)))
        state, outcome = step(paid, state, torch.full((1, len(paid.agents)), decision))
        dialogue = advance(made, dialogue, turns_of(made, dialogue, None if decision == CONTINUE else float(decision)))
        assert dialogue.rewards[-1] == dict(zip(paid.agents, outcome.reward_BA[0].tolist()))
        assert dialogue.verdict == int(outcome.decision_B[0])
        assert dialogue.confidence == (None if dialogue.verdict == CONTINUE else dialogue.verdict)
    assert bool(state.ended_B.all())
    assert len(dialogue.rounds) == int(state.round_B[0]) == len(dialogue.rewards)


@SETTINGS
@given(protocol_parameters(), st.integers(0, 65535), st.integers(0, 1), st.integers(0, 100))
def test_payment_is_linear_in_confidence(chosen: tuple[str, dict[str, Any]], seed: int, y: int, percent: int) -> None:
    name, params = chosen
    try:
        made = scenario(name, scale="percent", **{**params, "force_guess": None})
    except UserError:
        reject()
    share, ends = percent / 100, {}
    for confidence in (0.0, 1.0, share):
        dialogue = start_dialogue(item(y), seed)
        while not dialogue.ended:
            dialogue = advance(made, dialogue, turns_of(made, dialogue, confidence))
        ends[confidence] = dialogue
    for agent in made.protocol.agents:
        expected = share * ends[1.0].total(agent) + (1 - share) * ends[0.0].total(agent)
        assert ends[share].total(agent) == pytest.approx(expected, abs=1e-6)
    assert ends[share].confidence == share
    assert ends[share].verdict == (CONTINUE if percent == 50 else int(percent > 50))
    assert ends[share].ended


@pytest.mark.parametrize("scoring", ["linear", "brier", "log"])
@pytest.mark.parametrize("belief", [0.01, 0.2, 0.73, 0.99])
def test_under_a_proper_score_it_is_best_to_say_what_one_believes(scoring: str, belief: float) -> None:
    rules = rulebook(
        build("nip", verifier_scoring=scoring, verifier_reward=2.0, payoff={"prover": PayoffSettings(undecided=-1.0)})
    )

    def paid(agent: str, y: int, percent: int) -> float:
        return rules.settle(0, 0, y, percent / 100, (("prover", ACCEPT),)).rewards[agent]

    expected = {
        percent: belief * paid("verifier", 1, percent) + (1 - belief) * paid("verifier", 0, percent)
        for percent in range(101)
    }
    best = max(expected, key=lambda percent: expected[percent])
    assert best == ({"linear": 100 * (belief > 0.5)}.get(scoring, round(100 * belief)))
    assert [paid("verifier", 1, percent) for percent in (0, 100)] == pytest.approx([-1.0, 2.0])
    assert all(paid("prover", y, 30) == pytest.approx(0.3) for y in (0, 1)), "who wants a verdict is paid in proportion"


def brier(ends: Ends) -> dict[str, torch.Tensor]:
    return {"verifier": -((ends.y_B - ends.confidence_B) ** 2), "prover": ends.rounds_B.float()}


@pytest.mark.parametrize(("confidence", "pays"), [(1.0, -1.0), (0.75, -0.5625), (0.0, 0.0), (None, -0.25)])
def test_a_payment_function_is_given_the_confidence_and_the_rounds(confidence: float | None, pays: float) -> None:
    plain = scenario("nip", scale="percent")
    own = replace(plain, protocol=replace(plain.protocol, payment=replace(plain.protocol.payment, function=brier)))
    check(own.protocol)
    ends = []
    for made in (plain, own):
        dialogue = start_dialogue(item(0), 0)
        while not dialogue.ended:
            dialogue = advance(made, dialogue, turns_of(made, dialogue, confidence))
        ends.append(dialogue)
    rounds = len(ends[0].rounds)
    assert {agent: ends[1].total(agent) - ends[0].total(agent) for agent in ("prover", "verifier")} == {
        "prover": rounds,
        "verifier": pays,
    }
    if confidence in (None, 0.0, 1.0):
        state = replace(start(own.protocol, torch.tensor([0]), torch.tensor([0])), round_B=torch.tensor([rounds - 1]))
        _, outcome = step(
            own.protocol, state, torch.tensor([[CONTINUE, CONTINUE if confidence is None else int(confidence)]])
        )
        assert dict(zip(own.protocol.agents, outcome.reward_BA[0].tolist())) == ends[1].rewards[-1], "as in tensor play"


Script = Callable[[str, int, int], "Answer | None"]


def asking(script: Script, seen: list[tuple[str, int, int, Path]] | None = None) -> Callable[..., Awaitable[Answer]]:
    """An `ask` that answers (agent, round, attempt) by `script`, notes who asked, and gives way to others."""

    async def ask(dialogue: Dialogue, agent: str, chat: Chat, attempt: int, path: Path) -> Answer:
        if seen is not None:
            seen.append((agent, len(dialogue.rounds), attempt, path))
        await asyncio.sleep(0)
        answer = script(agent, len(dialogue.rounds), attempt)
        return answer

    return ask


def talk(made: CodeValidation, script: Script, about: CodeItem | None = None, seed: int = 0) -> Dialogue:
    return asyncio.run(play_dialogue(made, about or item(), seed, asking(script)))


def test_a_dialogue_of_nip() -> None:
    said = {0: "Question for Expert: why?", 1: "Answer: because.", 2: "I am convinced.\nDecision: accept"}
    dialogue = talk(scenario(), lambda agent, r, attempt: Answer(said[r]))
    assert [[turn.agent for turn in turns] for turns in dialogue.rounds] == [["verifier"], ["prover"], ["verifier"]]
    assert dialogue.rounds[0][0].messages == {"main": said[0]}
    assert dialogue.rounds[2][0].messages == {}
    assert (dialogue.verdict, dialogue.confidence, dialogue.ended) == (ACCEPT, 1.0, True)
    assert (dialogue.total("verifier"), dialogue.total("prover")) == (1.0, 1.0)
    with pytest.raises(ValueError, match="ended"):
        asyncio.run(play_round(scenario(), dialogue, asking(lambda *_: Answer("more"))))


def test_reasoning_is_private_and_kept() -> None:
    said = [
        "<think>Decision: reject?</think>Question for Expert: why?",
        "<think>I lie.</think>Answer: because.",
        "Decision: accept",
    ]
    made = scenario()
    dialogue = talk(made, lambda agent, r, attempt: Answer(said[r], reasoning="beside" if r == 2 else ""))
    assert dialogue.verdict == ACCEPT
    assert [turn.reasoning for (turn,) in dialogue.rounds] == ["Decision: reject?", "I lie.", "beside"]
    assert not any(
        "lie" in str(made.chat(replace(dialogue, rounds=dialogue.rounds[:2]), agent)) for agent in made.protocol.agents
    )
    assert dialogue_from_record(dialogue_record(made, dialogue), dialogue.item) == dialogue
    assert transcript_record(made, dialogue)["rounds"][1]["turns"][0]["reasoning"] == "I lie."
    assert dialogue_metrics([dialogue], made.protocol)["prover/reasoning_words"] == 2
    assert "prover/reasoning_words" not in dialogue_metrics(
        [replace(dialogue, rounds=dialogue.rounds[:1])], made.protocol
    )


def test_a_reply_that_is_cut_and_cannot_be_used_counts_as_both_and_not_as_asked_again() -> None:
    made = scenario(replies=1)
    dialogue = talk(made, lambda *_: Answer("<think>Decision: accept", "length"))
    figures = dialogue_metrics([dialogue], made.protocol)
    assert [figures[f"verifier/{name}_share"] for name in ("invalid", "truncated", "retry")] == [1.0, 1.0, 0.0]


def test_attempts_share_one_counter_and_have_their_own_numbers() -> None:
    """Filtered, without text, unknown, unreadable and empty: each is asked again, and counts."""
    bad = [
        Answer("Decision: accept", "content_filter"),
        Answer(None),
        Answer("x", "unknown"),
        Answer("Decision: maybe"),
        Answer("  "),
    ]
    seen: list[tuple[str, int, int, Path]] = []
    made = scenario(replies=6)
    ask = asking(lambda agent, r, attempt: bad[attempt] if attempt < 5 else Answer("Decision: reject", "length"), seen)
    dialogue = asyncio.run(play_dialogue(made, item(), 0, ask, path=(1, 0)))
    assert seen == [("verifier", 0, attempt, (1, 0)) for attempt in range(6)]
    (turn,) = dialogue.rounds[0]
    assert (turn.retries, turn.truncated, turn.invalid, turn.decision) == (5, True, False, REJECT)


def test_a_request_that_is_refused_is_not_made_again() -> None:
    """An empty message stands for the turn, and play continues."""
    seen: list[tuple[str, int, int, Path]] = []
    made = scenario()
    said = {0: Answer("Question for Expert: why?"), 1: Answer(None, "refused"), 2: Answer("Decision: reject")}
    dialogue = asyncio.run(play_dialogue(made, item(), 0, asking(lambda agent, r, attempt: said[r], seen)))
    assert [(agent, attempt) for agent, _, attempt, _ in seen] == [("verifier", 0), ("prover", 0), ("verifier", 0)]
    (turn,) = dialogue.rounds[1]
    assert (turn.invalid, turn.messages, turn.retries, dialogue.verdict) == (True, {"main": ""}, 1, REJECT)


@pytest.mark.parametrize("name", NAMES)
def test_dialogues_played_in_step_are_those_played_alone(name: str) -> None:
    """With replies of which some cannot be used, and dialogues of unlike lengths."""
    made = scenario(name, replies=2)

    def reply(dialogue: Dialogue, agent: str, attempt: int) -> Answer:
        seed = stable_seed(dialogue.seed, agent, len(dialogue.rounds), attempt)
        return Answer(
            "" if seed % 3 == 0 else made.invent(dialogue, agent, seed), "length" if seed % 5 == 0 else "stop"
        )

    async def ask(dialogue: Dialogue, agent: str, chat: Chat, attempt: int, path: Path) -> Answer:
        assert chat == made.fenced_chat(dialogue, agent)
        return reply(dialogue, agent, attempt)

    def answers(asked: list[Question]) -> list[Answer]:
        assert all(one.chat == made.fenced_chat(one.dialogue, one.agent) for one in asked)
        return [reply(one.dialogue, one.agent, one.attempt) for one in asked]

    beginnings = [start_dialogue(item(y=seed % 2, id=seed), seed) for seed in range(24)]
    alone = [asyncio.run(play_dialogue(made, dialogue.item, dialogue.seed, ask)) for dialogue in beginnings]
    assert play_in_step(made, beginnings, answers) == alone
    assert any(turn.retries for dialogue in alone for turns in dialogue.rounds for turn in turns)


def test_the_empty_message_stands_only_where_the_agent_speaks() -> None:
    """In debate the verifier could write to both channels, but has no turn when the provers speak; each prover has one
    channel."""
    made = scenario("debate", replies=2)

    def script(agent: str, r: int, attempt: int) -> Answer:
        return (
            Answer(BOTH)
            if agent == "verifier" and r == 0
            else Answer(None)
            if agent == "prover0"
            else Answer("Answer: so")
        )

    dialogue = start_dialogue(item(), 1)
    for _ in range(3):
        dialogue = asyncio.run(play_round(made, dialogue, asking(script)))
    first, second = dialogue.rounds[1]
    assert first == Turn("prover0", "", {"prover0_channel": ""}, retries=2, invalid=True)
    assert second == Turn("prover1", "Answer: so", {"prover1_channel": "Answer: so"})
    (lost,) = dialogue.rounds[2]
    assert lost.messages == {"prover0_channel": "", "prover1_channel": ""}
    assert (lost.raw, lost.decision, lost.confidence, lost.invalid) == ("Answer: so", CONTINUE, None, True)


def test_speakers_of_a_round_are_asked_at_once() -> None:
    """Each waits until the other was asked: one after the other would wait for ever."""
    made = scenario("mnip", verifier_first=False)
    both = asyncio.Barrier(2)

    async def ask(dialogue: Dialogue, agent: str, chat: Chat, attempt: int, path: Path) -> Answer:
        await asyncio.wait_for(both.wait(), 30)
        return Answer(f"Answer: of {agent}")

    dialogue = asyncio.run(play_round(made, start_dialogue(item(), 0), ask))
    assert [turn.messages for turn in dialogue.rounds[0]] == [
        {"prover0_channel": "Answer: of prover0"},
        {"prover1_channel": "Answer: of prover1"},
    ]


def test_an_error_is_raised_bare_and_the_other_call_is_cancelled() -> None:
    made = scenario("mnip", verifier_first=False)
    cancelled: list[str] = []

    async def ask(dialogue: Dialogue, agent: str, chat: Chat, attempt: int, path: Path) -> Answer:
        if agent == "prover0":
            await asyncio.sleep(0)
            raise TrainingError("the provider stays away")
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.append(agent)
            raise
        return Answer("never")

    with pytest.raises(TrainingError, match="stays away"):
        asyncio.run(play_round(made, start_dialogue(item(), 0), ask))
    assert cancelled == ["prover1"]


def test_text_that_no_file_can_hold_is_mended() -> None:
    dialogue = talk(scenario("solo_verifier"), lambda *_: Answer("a \ud800 half \U0001f600"))
    raw = dialogue.rounds[0][0].raw
    assert raw == "a \ufffd half \U0001f600"
    assert json.dumps(dialogue_record(scenario("solo_verifier"), dialogue), ensure_ascii=False).encode()


texts = st.text(max_size=30)
turns = st.builds(
    Turn,
    agent=st.sampled_from(("prover", "verifier")),
    raw=texts,
    messages=st.dictionaries(st.sampled_from(("main", "side")), texts, max_size=2),
    decision=st.sampled_from((0, 1, 2)),
    confidence=st.none() | st.floats(0, 1),
    retries=st.integers(0, 20),
    truncated=st.booleans(),
    invalid=st.booleans(),
)
rewards = st.dictionaries(
    st.sampled_from(("prover", "verifier")), st.floats(allow_nan=False, allow_infinity=False), max_size=2
)
dialogues = st.builds(
    Dialogue,
    item=st.just(item()),
    seed=st.integers(0, 65535),
    rounds=st.lists(st.lists(turns, max_size=3).map(tuple), max_size=4).map(tuple),
    rewards=st.lists(rewards, max_size=4).map(tuple),
    verdict=st.sampled_from((0, 1, 2)),
    confidence=st.none() | st.floats(0, 1),
    ended=st.booleans(),
)
NIP = scenario()


@SETTINGS
@given(dialogues)
def test_a_record_gives_the_dialogue_back(dialogue: Dialogue) -> None:
    record = dialogue_record(NIP, dialogue)
    assert dialogue_from_record(record, item()) == dialogue
    assert dialogue_from_record(json.loads(json.dumps(record)), item()) == dialogue


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"version": 2}, "version"),
        ({"item": 8}, "item 8"),
        ({"y": 0}, "label 0"),
        ({"seed": "3"}, "seed"),
        ({"verdict": 3}, "verdict"),
        ({"rounds": [[{"agent": "prover"}]]}, "messages"),
        ({"rewards": [{"prover": "much"}]}, "much"),
        ({"ended": 1}, "ended"),
    ],
)
def test_damaged_records_are_refused(change: dict[str, Any], word: str) -> None:
    record = dialogue_record(NIP, start_dialogue(item(), 1)) | change
    with pytest.raises(UserError, match=word):
        dialogue_from_record(record, item())


def test_a_transcript_is_what_a_report_shows() -> None:
    said: Sequence[str] = ("Question for Expert: is\u202e it?", "Answer: yes", "Decision: reject")
    made = scenario()
    record = transcript_record(made, talk(made, lambda agent, r, attempt: Answer(said[r]), seed=9))
    assert json.loads(json.dumps(record)) == record
    rounds = record.pop("rounds")
    told = {"instance": 7, "label": 1, "seed": 9, "length": 3, "verdict": "reject", "correct": False}
    assert record == {**told, "reward": {"prover": 0.0, "verifier": -1.0}}
    asked = {
        "agent": "verifier",
        "channel": "main",
        "message": "Question for Expert: is<U+202E> it?",
        "decision": "continue",
    }
    decided = {
        "agent": "verifier",
        "channel": "",
        "message": "Decision: reject",
        "decision": "reject",
        "confidence": 0.0,
    }
    assert [one["turns"] for one in rounds] == [
        [asked],
        [{"agent": "prover", "channel": "main", "message": "Answer: yes"}],
        [decided],
    ]
    shown = episodes.shown(record | {"rounds": rounds}, 1, {}, {}, {})
    assert (shown["label"], shown["verdict"], shown["correct"], shown["length"]) == ("accept", "reject", False, "3")


def test_a_transcript_says_what_went_wrong() -> None:
    made = scenario("solo_verifier", scale="one_to_seven", replies=2)
    lost = transcript_record(made, talk(made, lambda *_: Answer("Decision: 9")))
    assert lost["verdict"] == "undecided"
    assert lost["rounds"][0]["turns"] == [
        {
            "agent": "verifier",
            "channel": "main",
            "message": "",
            "decision": "continue",
            "retries": 2,
            "invalid": True,
            "written": "Decision: 9",
        }
    ]
    middle = transcript_record(made, talk(made, lambda *_: Answer("Decision: 4")))
    assert (middle["verdict"], middle["correct"], middle["reward"]) == ("undecided", False, {"verifier": 0.0})
    assert middle["rounds"][0]["turns"][0]["decision"] == "undecided"
