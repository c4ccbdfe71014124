"""The text core: dialogues of language agents, played under the same protocols as tensor agents are.

Decisions that matter here:
- a dialogue is a value; playing a round makes a new one. A tree of continuations is `play_round` called several times on one dialogue,
  with different `path`s;
- how a language model is reached is the caller's business: the core awaits `ask`, and gives it all that a stable name of the call is
  made of (the dialogue's item and seed, the round, the agent, the attempt and the path);
- those who speak in one round are asked at once, and nobody sees what the others say in it; when one call fails for good, the others are
  cancelled and the error is raised as it is;
- in a game without a verifier the scenario says what a round pays and whether it was the last (`Judges`); there is no verdict;
- a reply that cannot be used (filtered, empty, unreadable) is asked for again. One counter serves all reasons; when it is used up, an
  empty message stands in the channels where the agent has its turn, marked invalid, and play continues.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import count
from typing import Any, Protocol, TypeVar, runtime_checkable

from nip_ray.errors import UserError
from nip_ray.play.chats import split_reasoning
from nip_ray.play.dialogue import Chat, Dialogue, InvalidReply, Parsed, TextScenario, Turn, stance_in
from nip_ray.play.dialogue_records import dialogue_from_record, dialogue_record, transcript_record
from nip_ray.play.dialogue_rules import Stances, rulebook
from nip_ray.protocols import NUM_SEEDS

__all__ = [
    "MAX_INVALID_REPLIES",
    "Answer",
    "Ask",
    "Path",
    "Patient",
    "Question",
    "advance",
    "dialogue_from_record",
    "dialogue_record",
    "play_dialogue",
    "play_in_step",
    "play_round",
    "read_answer",
    "read_turn",
    "start_dialogue",
    "transcript_record",
]

Path = tuple[int, ...]
"""Which branch was taken at each node of a tree of continuations; () where there is no tree."""


@dataclass(frozen=True)
class Answer:
    """What a language model answered. content: None where it gave no text; reasoning in it is told apart by its marks. finish_reason:
    stop, length, content_filter or unknown. reasoning: what came beside the content.
    """

    content: str | None
    finish_reason: str = "stop"
    reasoning: str = ""


Ask = Callable[[Dialogue, str, Chat, int, Path], Awaitable[Answer]]
"""``await ask(dialogue, agent, chat, attempt, path)``: attempts of one turn are counted from 0. The chat must not be changed."""


@dataclass(frozen=True)
class Question:
    """A turn to be taken in `play_in_step`. place: of the dialogue among all. chat: what the agent is shown. attempt: from 0."""

    place: int
    dialogue: Dialogue
    agent: str
    chat: Chat
    attempt: int = 0


AnswerAll = Callable[[list[Question]], Sequence[Answer]]
"""Answers to questions, in order. Chats must not be changed."""
MAX_INVALID_REPLIES = 20
_UNUSABLE = ("content_filter", "unknown")


@runtime_checkable
class Patient(Protocol):
    """What a text scenario may have besides: its own limit of unusable replies. Without it the limit is `MAX_INVALID_REPLIES`."""

    def max_invalid_replies(self, agent: str) -> int:
        """Replies of `agent` in one turn that cannot be used, after which an empty message stands for it (at least 1)."""
        ...


@runtime_checkable
class Judges(Protocol):
    """What the scenario of a game without a verifier has besides: its rules."""

    def judge(self, dialogue: Dialogue, turns: tuple[Turn, ...]) -> tuple[Mapping[str, float], bool]:
        """What these turns of the dialogue's next round pay each agent, and whether the game is over."""
        ...


def start_dialogue(item: Any, seed: int) -> Dialogue:
    """A dialogue about `item` in which nothing was said yet. seed: any integer, taken modulo 65536 as in tensor play."""
    return Dialogue(item, seed % NUM_SEEDS)


async def play_dialogue(scenario: TextScenario, item: Any, seed: int, ask: Ask, path: Path = ()) -> Dialogue:
    """A whole dialogue about `item`, ended. Raises what `ask` raises."""
    dialogue = start_dialogue(item, seed)
    while not dialogue.ended:
        dialogue = await play_round(scenario, dialogue, ask, path)
    return dialogue


async def play_round(scenario: TextScenario, dialogue: Dialogue, ask: Ask, path: Path = ()) -> Dialogue:
    """`dialogue` one round on. Raises ValueError when it has ended, and what `ask` raises."""
    if dialogue.ended:
        raise ValueError(f"the dialogue about item {dialogue.item.id} has ended")
    speakers = rulebook(scenario.protocol).speaking(dialogue.item.y, dialogue.rounds, dialogue.seed)
    turns = await _together(_take_turn(scenario, dialogue, agent, ask, path) for agent in speakers)
    return advance(scenario, dialogue, turns)


def advance(scenario: TextScenario, dialogue: Dialogue, turns: Iterable[Turn]) -> Dialogue:
    """`dialogue` after these turns of its next round: who is paid, and whether it is over."""
    turns = tuple(turns)
    protocol = scenario.protocol
    if protocol.verifier is None:
        if not isinstance(scenario, Judges):
            raise TypeError(f"protocol {protocol.name!r} has no verifier, so its scenario must judge every round")
        rewards, over = scenario.judge(dialogue, turns)
        return replace(
            dialogue,
            rounds=(*dialogue.rounds, turns),
            rewards=(*dialogue.rewards, dict(rewards)),
            ended=over or len(dialogue.rounds) + 1 >= protocol.max_rounds,
        )
    rules, stances, where = rulebook(protocol), _stances(scenario, dialogue), (len(dialogue.rounds), dialogue.seed, dialogue.item.y)
    if protocol.panel is None:
        decided = next((turn for turn in turns if turn.agent == protocol.verifier), None)
        given = (None, protocol.undecided) if decided is None else (decided.confidence, decided.decision)
        outcome = rules.settle(*where, given[0], stances, given[1])
    else:
        before, now = (rules.votes(dialogue.item.y, rounds) for rounds in (dialogue.rounds, (*dialogue.rounds, turns)))
        outcome = rules.settle_votes(*where, before, now, stances)
    return replace(
        dialogue,
        seed=rules.seed_after(len(dialogue.rounds), dialogue.seed, turns),
        rounds=(*dialogue.rounds, turns),
        rewards=(*dialogue.rewards, dict(outcome.rewards)),
        verdict=outcome.verdict,
        confidence=outcome.confidence,
        ended=outcome.ended,
    )


def play_in_step(scenario: TextScenario, dialogues: Iterable[Dialogue], answer: AnswerAll) -> list[Dialogue]:
    """All these dialogues to their ends, round by round together: whoever has a turn in any of them is asked at once.

    What happens in a dialogue is what `play_round` makes of it. Raises what `answer` raises.
    """
    held = list(dialogues)
    while any(not dialogue.ended for dialogue in held):
        asked = [one for place, dialogue in enumerate(held) if not dialogue.ended for one in _questions(scenario, place, dialogue)]
        spoken: dict[int, list[Turn]] = {}
        for one, turn in zip(asked, _ask_until_used(scenario, asked, answer), strict=True):
            spoken.setdefault(one.place, []).append(turn)
        for place, said in spoken.items():
            held[place] = advance(scenario, held[place], said)
    return held


def _questions(scenario: TextScenario, place: int, dialogue: Dialogue) -> list[Question]:
    speakers = rulebook(scenario.protocol).speaking(dialogue.item.y, dialogue.rounds, dialogue.seed)
    return [Question(place, dialogue, agent, scenario.chat(dialogue, agent)) for agent in speakers]


def _ask_until_used(scenario: TextScenario, asked: list[Question], answer: AnswerAll) -> list[Turn]:
    """The turn of each question; those whose replies cannot be used are asked again, together."""
    turns: dict[int, Turn] = {}
    waiting = list(range(len(asked)))
    while waiting:
        replies = answer([asked[number] for number in waiting])
        left = []
        for number, reply in zip(waiting, replies, strict=True):
            one = asked[number]
            turn = _settled(scenario, one.dialogue, one.agent, reply, one.attempt)
            if turn is not None:
                turns[number] = turn
            else:
                asked[number] = replace(one, attempt=one.attempt + 1)
                left.append(number)
        waiting = left
    return [turns[number] for number in range(len(asked))]


async def _take_turn(scenario: TextScenario, dialogue: Dialogue, agent: str, ask: Ask, path: Path) -> Turn:
    """What `agent` says in the next round, after as many attempts as it takes or may take."""
    chat, turn, attempts = scenario.chat(dialogue, agent), None, count()
    while turn is None:
        attempt = next(attempts)
        turn = _settled(scenario, dialogue, agent, await ask(dialogue, agent, chat, attempt, path), attempt)
    return turn


def _settled(scenario: TextScenario, dialogue: Dialogue, agent: str, answer: Answer, attempt: int) -> Turn | None:
    """The turn that an answer makes, None where the agent is asked again."""
    turn = read_answer(scenario, dialogue, agent, answer, attempt)
    patience = scenario.max_invalid_replies(agent) if isinstance(scenario, Patient) else MAX_INVALID_REPLIES
    return None if turn.invalid and turn.retries < patience else turn


def read_answer(scenario: TextScenario, dialogue: Dialogue, agent: str, answer: Answer, attempt: int = 0) -> Turn:
    """The turn that an answer makes of the agent's round about to be played: an invalid one, with empty messages, if it cannot be used.

    attempt: how many answers of this turn could not be used before.
    """
    channels, going_on = rulebook(scenario.protocol).speakers(len(dialogue.rounds), dialogue.seed)[agent], scenario.protocol.undecided
    raw, truncated = "", answer.finish_reason == "length"
    if answer.content is not None and answer.finish_reason not in _UNUSABLE:
        inside, raw = split_reasoning(encodable(answer.content))
        reasoning = "\n".join(filter(None, (encodable(answer.reasoning), inside)))
        with suppress(InvalidReply):
            turn = read_turn(scenario, dialogue, agent, raw)
            return replace(turn, retries=attempt, truncated=truncated, reasoning=reasoning)
    return Turn(agent, raw, dict.fromkeys(channels, ""), going_on, retries=attempt + 1, truncated=truncated, invalid=True)


def read_turn(scenario: TextScenario, dialogue: Dialogue, agent: str, raw: str) -> Turn:
    """What `agent` says in the next round by this reply; a decision without a confidence is a sure one.

    Raises InvalidReply, and UserError where the scenario's `parse` gives something else.
    """
    parsed = scenario.parse(dialogue, agent, raw)
    if not isinstance(parsed, Parsed):
        raise UserError(f"scenario: parse gives {parsed!r:.60} for a reply of {agent!r}, expected Parsed(...), or raise InvalidReply")
    protocol, confidence = scenario.protocol, parsed.confidence
    decision = protocol.undecided if parsed.decision is None else parsed.decision
    if not protocol.two_verdicts and confidence not in (None, 1.0):
        raise UserError(
            f"scenario: parse gives a verdict of {agent!r} the confidence {confidence:g}, which is for two verdicts, leave it out"
        )
    if confidence is None and decision != protocol.undecided:
        confidence = float(decision) if protocol.two_verdicts else 1.0
    return Turn(agent, raw, dict(parsed.messages), decision, confidence)


def encodable(text: str) -> str:
    """`text`, with what no file or request can hold (halves of surrogate pairs) replaced by U+FFFD."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def _stances(scenario: TextScenario, dialogue: Dialogue) -> Stances:
    stances = ((agent, stance_in(scenario, dialogue, agent)) for agent in scenario.protocol.provers)
    return tuple((agent, stance) for agent, stance in stances if stance is not None)


Result = TypeVar("Result")


async def _together(calls: Iterable[Coroutine[Any, Any, Result]]) -> list[Result]:
    """All results in order; the first error, bare, after the other calls were cancelled."""
    waiting = list(calls)
    if len(waiting) == 1:
        return [await waiting[0]]
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(call) for call in waiting]
    except BaseExceptionGroup as errors:
        raise _first(errors) from None
    return [task.result() for task in tasks]


def _first(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
