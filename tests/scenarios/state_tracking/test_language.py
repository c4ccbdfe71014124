"""State tracking in words: what chats say, which replies count, and that models which read the words well are right."""

import asyncio
import re
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import pytest
import torch

from nip_ray.errors import UserError
from nip_ray.play.dialogue import Chat, Dialogue, InvalidReply, LanguageScenario, Turn
from nip_ray.play.dialogues import Answer, play_dialogue
from nip_ray.play.rollout import Dialogue as SaidInSymbols
from nip_ray.protocols import build
from nip_ray.scenarios.language_conformance import check_language_scenario
from nip_ray.scenarios.state_tracking.chains import GENERATORS
from nip_ray.scenarios.state_tracking.items import STATES, ChainItem, Dispute, chain_items, read_chain_item
from nip_ray.scenarios.state_tracking.language import _needed, build_language_state_tracking
from nip_ray.scenarios.state_tracking.scenario import build_state_tracking
from nip_ray.settings.language_agents import LanguageAgentSettings
from nip_ray.settings.state_tracking import LanguageStateTrackingSettings, StateTrackingSettings
from nip_ray.settings.text_training import ExpertIterationSettings
from nip_ray.text.training.expert_iteration import LearningAgent
from tests.scenarios.state_tracking.test_scenario import PLAYED

SIZES: dict[str, Any] = {"length": 4, "num_train": 40, "num_test": 12}
ITEMS = chain_items(LanguageStateTrackingSettings(**SIZES), 0)


def scenario(name: str = "bisection", wording: Any = "words", **params: Any) -> Any:
    params = {"max_rounds": 5, **params} if name == "bisection" else params
    return build_language_state_tracking(build(name, **params), LanguageStateTrackingSettings(wording=wording, **SIZES))


def invented(made: LanguageScenario, item: ChainItem, seed: int = 0) -> tuple[Dialogue, list[tuple[str, Chat]]]:
    """A dialogue of random replies, and all that was shown."""
    shown = []

    async def ask(dialogue: Dialogue, agent: str, chat: Chat, attempt: int, path: tuple[int, ...]) -> Answer:
        shown.append((agent, chat))
        return Answer(made.invent(dialogue, agent, seed))

    return asyncio.run(play_dialogue(made, item, seed, ask)), shown


@pytest.mark.parametrize(("name", "params"), PLAYED, ids=str)
def test_random_replies_play_to_an_end_in_the_words_of_the_list(name: str, params: dict[str, Any]) -> None:
    made = scenario(name, **params)
    words, ends = set(made.words), set()
    assert len(words) == len(made.words) <= 64
    for item in ITEMS["test"]:
        dialogue, shown = invented(made, item, item.id)
        ends.add(dialogue.verdict)
        for _, chat in shown:
            assert [message["role"] for message in chat] == ["user"]
            assert set(chat[0]["content"].split()) <= words
        assert {word for turns in dialogue.rounds for turn in turns for word in turn.raw.split()} <= words
        assert not any(turn.retries or turn.invalid for turns in dialogue.rounds for turn in turns)
    assert {0, 1} <= ends


@pytest.mark.parametrize("chooser", ["opponent", "verifier"])
def test_both_media_come_down_to_the_same_move(chooser: str) -> None:
    params = {"max_rounds": 5, "half_chosen_by": chooser}
    made, tensors = (
        scenario(**params),
        build_state_tracking(build("bisection", **params), StateTrackingSettings(**SIZES)),
    )
    agents = made.protocol.agents
    for item in ITEMS["test"]:
        dialogue, shown = invented(made, item, item.id)
        main = torch.full((1, 5, len(agents), 1, 1), -1)
        for r, (turn,) in enumerate(dialogue.rounds[:-1]):
            main[0, r, agents.index(turn.agent), 0, 0] = (
                STATES.index(turn.raw) if r % 2 == 0 else int(turn.raw == "right")
            )
        last = torch.tensor([4])
        obs = tensors.observe("verifier", torch.tensor([item.id]), SaidInSymbols(main), last, last * 0)
        low, high, *_, move = obs["token"][0].tolist()
        assert shown[-1] == (
            "verifier",
            [{"role": "user", "content": f"move m{move - 5} {STATES[low]} {STATES[high]}"}],
        )


def test_what_each_is_shown() -> None:
    item = ChainItem(7, (0, 1, 2, 3), (0, 1, 3, 2, 0), 4, 0)
    rounds = (
        (Turn("prover1", "d", {"main": "d"}),),
        (Turn("prover0", "right", {"main": "right"}),),
        (Turn("prover1", "b", {"main": "b"}),),
    )
    shown = [
        scenario().chat(Dialogue(item, 0, rounds[:r]), agent)[0]["content"]
        for r, agent in enumerate(["prover1", "prover0", "prover1", "prover0"])
    ]
    needed = [_needed(item, Dispute(0, 4, 0, 4)), _needed(item, Dispute(2, 4, 3, 4))]
    assert GENERATORS[3][needed[1]] == 4
    assert GENERATORS[2][needed[0]] == needed[1]
    assert shown == [
        f"true a a claim a e moves 4 needed {STATES[needed[0]]} true d",
        "claim a e moves 4 true d committed d",
        f"true d a claim d e moves 2 needed {STATES[needed[1]]} true c",
        "claim d e moves 2 true c committed b",
    ]
    # once it has lied and the half behind the lie is kept, it is told that it stands by a lie
    needed = _needed(item, Dispute(2, 4, 1, 4))
    lied = ((Turn("prover1", "b", {"main": "b"}),), (Turn("prover0", "right", {"main": "right"}),))
    assert (
        scenario().chat(Dialogue(item, 0, lied), "prover1")[0]["content"]
        == f"true d a committed b e moves 2 needed {STATES[needed]} true c"
    )
    assert scenario().chat(Dialogue(item, 0, lied), "prover0")[0]["content"].startswith("claim b e moves 2 true c")
    assert (
        scenario("solo_verifier").chat(Dialogue(item, 0), "verifier")[0]["content"]
        == "start a moves m0 m1 m2 m3 claim e"
    )
    chain = (Turn("prover", "b c a", {"main": "b c a"}),)
    asked = (Turn("verifier", "1", {"main": "1"}),)
    assert (
        scenario("adp").chat(Dialogue(item, 0, (chain,)), "verifier")[0]["content"]
        == "start a moves m0 b m1 c m2 a m3 e claim e"
    )
    nip = scenario("nip", min_rounds=3, max_rounds=3)
    assert nip.chat(Dialogue(item, 0, (asked,)), "prover") == nip.chat(Dialogue(item, 0), "prover"), (
        "it is not told the question"
    )
    assert (
        nip.chat(Dialogue(item, 0, (asked, chain)), "verifier")[0]["content"]
        == "start a moves m0 m1 m2 m3 claim e 1 move m1 b c"
    )


@pytest.mark.parametrize(
    ("agent", "round", "reply"),
    [
        ("prover1", 0, "left"),
        ("prover1", 0, "a b"),
        ("prover0", 1, "a"),
        ("verifier", 4, "left"),
        ("verifier", 4, ""),
        ("prover1", 0, "A"),
    ],
)
def test_other_replies_are_invalid_and_count_as_the_first_choice(agent: str, round: int, reply: str) -> None:
    made = scenario()
    silent = tuple(
        (Turn(name, "", {"main": ""}, invalid=True),) for name in ("prover1", "prover0", "prover1", "prover0")
    )
    dialogue = Dialogue(ITEMS["test"][0], 0, silent[:round])
    with pytest.raises(InvalidReply, match="expected a word out of"):
        made.parse(dialogue, agent, reply)
    item = dialogue.item
    expected = f"move m{item.moves[0]} {STATES[item.states[0]]} a"
    assert made.chat(Dialogue(item, 0, silent), "verifier")[0]["content"] == expected


@pytest.mark.parametrize("agent", ["prover1", "prover0", "verifier"])
def test_every_turn_is_an_example(agent: str) -> None:
    """Chats do not hold the earlier ones."""
    made = scenario()
    dialogue, shown = invented(made, ITEMS["train"][0])
    said = [turn.raw for turns in dialogue.rounds for turn in turns if turn.agent == agent]
    found = LearningAgent(agent, made, ExpertIterationSettings(), 0, 0).examples(dialogue)
    assert [(one.chat, one.completion) for one in found] == list(
        zip([chat for who, chat in shown if who == agent], said, strict=True)
    )
    assert len(found) == (1 if agent == "verifier" else 2)


def read(agent: str, chats: Sequence[Chat], replies: Sequence[str]) -> list[list[float]]:
    """Perfect agents that know nothing but what the words say; a tenth of their weight is on other words."""
    right = []
    for chat in chats:
        said = chat[0]["content"].split()
        if agent == "verifier":
            if "move" not in said:
                return [[0.25] * len(replies)] * len(chats)  # which move to see
            move, before, after = said[said.index("move") + 1 :]
            right.append(("reject", "accept")[GENERATORS[int(move[1:])][STATES.index(before)] == STATES.index(after)])
        else:
            truth = said[-1 if agent == "prover1" else said.index("true") + 1]
            right.append(truth if agent == "prover1" else "right" if truth == said[-1] else "left")
    return [[0.9 * (reply == one) for reply in replies] for one in right]


def test_readers_of_the_words_catch_every_lie() -> None:
    figures = scenario().exact_figures(ITEMS["test"], read)
    assert figures == {"worst_case/soundness": pytest.approx(1), "worst_case/completeness": pytest.approx(1)}
    coin = scenario().exact_figures(
        ITEMS["test"],
        lambda agent, chats, replies: [[0.5, 0.5]] * len(chats) if agent == "prover0" else read(agent, chats, replies),
    )
    assert coin["worst_case/soundness"] == pytest.approx(1 / 4), "a random half shows one wrong move in n"
    asked = scenario("nip", min_rounds=3, max_rounds=3).exact_figures(ITEMS["test"], read)
    assert asked == {"worst_case/soundness": pytest.approx(1 / 4), "worst_case/completeness": pytest.approx(1)}
    assert scenario("adp").exact_figures(ITEMS["test"], read) == {}

    def asks(agent: str, chats: Sequence[Chat], replies: Sequence[str]) -> list[list[float]]:
        return [[0.15] * 4] * len(chats) if replies[0] == "0" else read(agent, chats, replies)

    once = {"_default": LanguageAgentSettings(max_invalid_replies=1)}
    settings = LanguageStateTrackingSettings(agents=once, **SIZES)
    made = build_language_state_tracking(build("nip", min_rounds=3, max_rounds=3), settings)
    found = made.exact_figures(ITEMS["test"], asks)["worst_case/soundness"]
    assert found == pytest.approx(0.15 * 0.9), "an unusable question is about the first move, so the lie is in another"


def worked_out(agent: str, chats: Sequence[Chat], replies: Sequence[str]) -> list[list[float]]:
    """Agents that follow the moves as the English describes them."""
    shares = []
    for chat in chats:
        text = chat[0]["content"]
        moves = {
            move: dict(re.findall(r"(\w) to (\w)", ways))
            for move, ways in re.findall(r"Move (m\d) takes it from ([^.]*)\.", text)
        }
        if agent == "verifier":
            (move, before, after), *_ = re.findall(r"right that (m\d) takes it from (\w) to (\w)\?", text)
            right = "accept" if moves[move][before] == after else "reject"
        else:
            (state,) = re.findall(r"starts in box (\w)", text)
            place, halfway = 0, int(re.findall(r"before step (\d+)", text)[-1])
            for place, move in re.findall(r"(\d) (m\d)", text):
                state = state if int(place) >= halfway else moves[move][state]
            said = re.findall(r"prover says that before step \d+ it is in box (\w)", text)
            right = state if not said else "right" if said == [state] else "left"
        shares.append([float(reply == right) for reply in replies])
    return shares


def test_english_holds_all_that_a_prover_needs() -> None:
    figures = scenario(wording="english").exact_figures(ITEMS["test"], worked_out)
    assert figures == {"worst_case/soundness": pytest.approx(1), "worst_case/completeness": pytest.approx(1)}


@pytest.mark.parametrize(("name", "params"), [one for one in PLAYED if one[0] != "prover_estimator"], ids=str)
def test_english_is_a_scenario_under_every_protocol(name: str, params: dict[str, Any]) -> None:
    made = scenario(name, wording="english", **params)
    check_language_scenario(made.settings, made.protocol)
    for item in ITEMS["test"]:
        dialogue, shown = invented(made, item, item.id)
        assert not any(turn.retries or turn.invalid for turns in dialogue.rounds for turn in turns)
        states = "|".join(STATES[state] for state in item.states[1:-1])
        assert not any(re.search(f"(true|truth|needed).* ({states})\\b", chat[0]["content"]) for _, chat in shown)


@pytest.mark.parametrize(
    ("name", "params"),
    [
        ("nip", {"max_rounds": 3, "min_rounds": 3}),
        ("nip", {"max_rounds": 5}),
        ("debate", {}),
        ("debate", {"sequential": True, "max_rounds": 4, "min_rounds": 4}),
    ],
    ids=str,
)
def test_english_asks_the_verifier_for_replies_that_it_may_give_alone(name: str, params: dict[str, Any]) -> None:
    made, asked = scenario(name, wording="english", **params), 0

    async def ask(dialogue: Dialogue, agent: str, chat: Chat, attempt: int, path: tuple[int, ...]) -> Answer:
        nonlocal asked
        if agent == "verifier":
            asked += 1
            choices, text = made.choices(dialogue, agent), chat[-1]["content"].rpartition("Reply")[2]
            assert [word for word in ("pass", "accept", "reject") if word in text] == [
                word for word in ("pass", "accept", "reject") if word in choices
            ]
            assert ("number" in text) == any(choice.isdecimal() for choice in choices)
        return Answer(made.invent(dialogue, agent, 0))

    for item in ITEMS["test"][:4]:
        asyncio.run(play_dialogue(made, item, item.id, ask))
    assert asked


def test_the_estimator_knows_words_only() -> None:
    with pytest.raises(UserError, match=r"scenario.wording: got english, but prover_estimator"):
        scenario("prover_estimator", wording="english", max_rounds=7)


def test_warm_examples_are_chains_and_labels() -> None:
    made, seen, lies = scenario(), set(), 0
    for item in ITEMS["train"]:
        for agent in made.protocol.agents:
            chat, reply = made.warm_example(item, agent, 0)
            assert made.warm_example(item, agent, 0) == (chat, reply)
            seen.add((agent, len(chat[0]["content"].split())))
            if agent == "prover0":
                assert reply in ("left", "right")
                assert chat[0]["content"].split()[-2:][0] == "committed", "a state to compare with"
            elif agent == "verifier":
                assert reply == ("reject", "accept")[item.y]
            else:
                truth = chat[0]["content"].split()[-1]
                assert reply == truth or not item.y
                lies += reply != truth
    assert 0 < lies < len([item for item in ITEMS["train"] if not item.y])
    assert len(seen) == 3, "the chats of an agent have one form"


def test_items_are_held_out_and_survive_their_record() -> None:
    contents = {split: {(item.states[0], item.moves) for item in items} for split, items in ITEMS.items()}
    assert not contents["train"] & contents["test"]
    for item in ITEMS["test"]:
        assert read_chain_item(asdict(item)) == item
    with pytest.raises(UserError, match="item 40: its states or its label do not follow"):
        read_chain_item({**asdict(ITEMS["test"][0]), "y": 1 - ITEMS["test"][0].y})
