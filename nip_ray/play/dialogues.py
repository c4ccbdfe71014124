"""The text core: dialogues of language agents, played under the same protocols as networks.

Decisions that matter here:
- a dialogue is a value; playing a round makes a new one. A tree of continuations is `play_round` called several times
  on one dialogue, with different `path`s;
- the caller reaches the model: the core awaits `ask`, and passes everything that a stable name of the call needs (the
  dialogue's item and seed, the round, the agent, the attempt and the path);
- all speakers of a round are queried at once, without each other's messages of that round; when one call fails for
  good, the others are cancelled and the error is raised unchanged;
- in a game without a verifier the scenario determines the pay of a round and the end (`judge`); there is no verdict;
- an unusable reply (filtered, empty, unreadable) is retried. One counter serves all reasons; when it is used up, or at
  once if the request itself was refused, empty messages marked invalid take its place, and play continues.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import count
from typing import Any, TypeVar

import torch

from nip_ray.errors import UserError
from nip_ray.play.dialogue import (
    Chat,
    Dialogue,
    InvalidReply,
    LanguageScenario,
    Parsed,
    Turn,
    split_reasoning,
    stance_in,
)
from nip_ray.protocols import ACCEPT, CONTINUE, NUM_SEEDS, REJECT, Ends, Panel, Protocol, start, step
from nip_ray.protocols.batched_step import certainty, function_pays

# A protocol for language agents: speakers, pay and end of each round, as plain Python values.
# - payment and endings come from the one step function (`nip_ray.protocols.batched_step`), called once over every
#   round, seed class, label and decision; its results are cached as plain floats, so that a round of a dialogue costs
#   microseconds. For a graded verdict it is called again, with a panel of one;
# - the agents that a decision pays are part of the key: an item may give a prover another stance than the protocol's
#   goal;
# - a verdict with confidence c in (0, 1) pays c times the pay of acceptance plus (1 - c) times that of rejection: the
#   expected payment of a verdict drawn with that probability, for verifier and provers alike. Another `Payment.scoring`
#   changes the share of agents that are paid for being right. A payment function receives the confidence itself.

Stances = tuple[tuple[str, int], ...]
"""Pairs of a prover and the decision that it is paid for."""
_MOST_KEPT = 256


@dataclass(frozen=True)
class Outcome:
    """The outcome of a round. rewards: agent -> amount. verdict: if one counted, else `Protocol.undecided`. confidence:
    of the verdict, None without one. ended: with a verdict, or because the rounds ran out."""

    rewards: Mapping[str, float]
    verdict: int
    confidence: float | None
    ended: bool


class Rulebook:
    """The turns and payments of one protocol, from `rulebook`."""

    def __init__(self, protocol: Protocol) -> None:
        self.protocol = protocol
        self._speakers = [
            [_speakers(protocol, table[r % len(table)]) for r in range(protocol.max_rounds)] for table in protocol.turns
        ]
        self._outcomes: dict[Stances, list[Outcome]] = {}
        self._arguing: dict[Stances, Protocol] = {}

    def speakers(self, round: int, seed: int) -> Mapping[str, tuple[str, ...]]:
        """Agent -> its channels for writing, for those with a turn in `round` (below max_rounds), in order."""
        return self._speakers[seed % len(self._speakers)][round]

    def speaking(self, y: int, rounds: Sequence[Sequence[Turn]], seed: int) -> Mapping[str, tuple[str, ...]]:
        """`speakers` of the next round, without members of a panel that have voted."""
        speakers = self.speakers(len(rounds), seed)
        if self.protocol.panel is None:
            return speakers
        voted = {agent for agent, grade in self.votes(y, rounds).items() if grade is not None}
        return {agent: channels for agent, channels in speakers.items() if agent not in voted}

    def rounds_of(self, agent: str, seed: int) -> list[int]:
        """The rounds in which `agent` has a turn under this episode seed."""
        return [r for r, speakers in enumerate(self._speakers[seed % len(self._speakers)]) if agent in speakers]

    def writes(self, agent: str) -> tuple[str, ...]:
        """The channels that `agent` ever writes to."""
        return tuple(self.protocol.channels[c] for c in self.protocol.writes[agent])

    def seed_after(self, round: int, seed: int, turns: Iterable[Turn]) -> int:
        """The episode seed after a round; it changes if an agent chose a role."""
        made = [turn.decision for turn in turns if turn.agent == self.protocol.chooser]
        return int(self.protocol.chosen(*torch.tensor([[round], [seed], made]))) if made else seed

    def votes(self, y: int, rounds: Sequence[Sequence[Turn]]) -> dict[str, float | None]:
        """Member of a panel -> the probability of acceptance in its vote so far, None without one; {} without a panel.

        The first vote from round ``min_rounds - 1`` on counts, or its replacement by `force_guess`.
        """
        protocol, found = (
            self.protocol,
            dict[str, float | None].fromkeys(self.protocol.verifiers if self.protocol.panel else ()),
        )
        forced = {"zero": 0.0, "one": 1.0, "y": float(y), None: None}[protocol.force_guess]
        for turn in (turn for turns in rounds[protocol.min_rounds - 1 :] for turn in turns if turn.agent in found):
            if found[turn.agent] is None:
                found[turn.agent] = turn.confidence if forced is None else forced
        return found

    def settle_votes(
        self,
        round: int,
        seed: int,
        y: int,
        before: Mapping[str, float | None],
        now: Mapping[str, float | None],
        stances: Stances,
    ) -> Outcome:
        """The outcome of `round` for a panel, or for a graded verifier as a panel of one. before, now: the `votes`
        before the round and after it."""
        if stances not in self._arguing:
            panel = self.protocol.panel or Panel(self.protocol.verifiers, "mean")
            self._arguing[stances] = replace(
                self.protocol, payment=self.protocol.payment.arguing(dict(stances)), panel=panel
            )
        protocol = self._arguing[stances]
        grades = [
            [torch.nan if votes[agent] is None else votes[agent] for agent in protocol.verifiers]
            for votes in (before, now)
        ]
        before_1M, now_1M = torch.tensor(grades, dtype=torch.float32)[:, None]
        decision_1A = torch.full((1, len(protocol.agents)), CONTINUE)
        decision_1A[:, protocol.verifier_indices] = torch.where(now_1M.isnan(), CONTINUE, ACCEPT)
        state = start(protocol, torch.tensor([y]), torch.tensor([seed]))
        state.agent_done_BA[:, protocol.verifier_indices] = ~before_1M.isnan()
        state = replace(state, round_B=torch.tensor([round]), vote_BM=before_1M, grade_BM=before_1M)
        after, outcome = step(protocol, state, decision_1A, grade_BM=now_1M)
        ended = bool(after.ended_B)
        confidence = (
            float(protocol.panel.confidence(after.grade_BM)) if protocol.panel is not None and ended else math.nan
        )
        rewards = dict(zip(protocol.agents, outcome.reward_BA[0].tolist()))
        return Outcome(rewards, int(outcome.decision_B), None if math.isnan(confidence) else confidence, ended)

    def outcome(self, round: int, seed: int, y: int, decision: int, stances: Stances) -> Outcome:
        """The outcome of `round` by the step function for label `y` and the verifier's `decision`, by the tables."""
        if stances not in self._outcomes:
            self._outcomes[stances] = _all_outcomes(self.protocol, stances)
        seeds, count = self.protocol.seed_classes, self.protocol.undecided
        return self._outcomes[stances][((round * seeds + seed % seeds) * count + y) * (count + 1) + decision]

    def settle(
        self, round: int, seed: int, y: int, confidence: float | None, stances: Stances, decision: int | None = None
    ) -> Outcome:
        """The outcome of `round` with this probability of acceptance by the verifier (None: no decision); with more
        than two verdicts, with this decision."""
        if self.protocol.two_verdicts:
            decision = None if confidence is None else verdict_of(confidence)
            if confidence is not None and 0 < confidence < 1:
                decision = ACCEPT  # if the decision does not count, or is forced, all decisions are the same
                accepted, rejected = (
                    self.outcome(round, seed, y, verdict, stances).verdict for verdict in (ACCEPT, REJECT)
                )
                if accepted != rejected:
                    (own,) = self.protocol.verifiers
                    found = self.settle_votes(round, seed, y, {own: None}, {own: confidence}, stances)
                    return replace(found, verdict=verdict_of(confidence), confidence=confidence)
        outcome = self.outcome(round, seed, y, self.protocol.undecided if decision is None else decision, stances)
        if self.protocol.payment.function is None or not outcome.ended:
            return outcome
        verdict_B = torch.tensor([outcome.verdict])
        given = (
            certainty(self.protocol, verdict_B) if outcome.confidence is None else torch.tensor([outcome.confidence])
        )
        role_B = self.protocol.role_B(torch.tensor([seed]))
        ends = Ends(torch.tensor([y]), verdict_B, given, torch.tensor([round + 1]), role_B)
        more = function_pays(self.protocol, ends)[0].tolist()
        return replace(
            outcome, rewards={agent: paid + extra for (agent, paid), extra in zip(outcome.rewards.items(), more)}
        )


def verdict_of(confidence: float) -> int:
    """ACCEPT above one half, REJECT below, CONTINUE at exactly one half: the dialogue ends undecided."""
    return CONTINUE if confidence == 0.5 else ACCEPT if confidence > 0.5 else REJECT


def rulebook(protocol: Protocol) -> Rulebook:
    """The rulebook of `protocol`, cached by object. No zero knowledge; without a verifier it has no outcomes."""
    found = _RULEBOOKS.get(id(protocol))
    if found is None:
        if len(_RULEBOOKS) >= _MOST_KEPT:
            _RULEBOOKS.clear()
        found = _RULEBOOKS[id(protocol)] = Rulebook(protocol)
    return found


_RULEBOOKS: dict[int, Rulebook] = {}  # by id: a rulebook keeps its protocol alive, so ids here are never reused


def _speakers(protocol: Protocol, turns: tuple[tuple[str, str], ...]) -> dict[str, tuple[str, ...]]:
    spoken = {
        agent: tuple(channel for channel in protocol.channels if (agent, channel) in turns) for agent in protocol.agents
    }
    return {agent: channels for agent, channels in spoken.items() if channels}


def _all_outcomes(protocol: Protocol, stances: Stances) -> list[Outcome]:
    """Outcomes over (round, seed class, label, decision), the last varying fastest."""
    paid = replace(protocol, payment=replace(protocol.payment.arguing(dict(stances)), function=None))
    none = protocol.undecided
    axes = (range(protocol.max_rounds), range(protocol.seed_classes), range(none), range(none + 1))
    round_B, seed_B, y_B, decision_B = torch.cartesian_prod(*(torch.tensor(list(axis)) for axis in axes)).T
    state = replace(start(paid, y_B, seed_B), round_B=round_B)
    after, outcome = step(paid, state, decision_B[:, None].expand(-1, len(paid.agents)))
    rows = zip(outcome.reward_BA.tolist(), outcome.decision_B.tolist(), after.ended_B.tolist())
    sure = [float(verdict) if protocol.two_verdicts else 1.0 for verdict in range(none)]
    return [
        Outcome(dict(zip(paid.agents, rewards)), verdict, None if verdict == none else sure[verdict], ended)
        for rewards, verdict, ended in rows
    ]


# Playing.

Path = tuple[int, ...]
"""The branch taken at each node of a tree of continuations; () without a tree."""


@dataclass(frozen=True)
class Answer:
    """The answer of a language model. content: None without text; reasoning in it is found by its marks. finish_reason:
    stop, length, content_filter, refused (the request was, and would be again) or unknown. reasoning: if separate from
    the content."""

    content: str | None
    finish_reason: str = "stop"
    reasoning: str = ""


Ask = Callable[[Dialogue, str, Chat, int, Path], Awaitable[Answer]]
"""``await ask(dialogue, agent, chat, attempt, path)``: attempts of one turn count from 0. The chat is read-only."""


@dataclass(frozen=True)
class Question:
    """A turn to take in `play_in_step`. place: of the dialogue among all. chat: for the agent. attempt: from 0."""

    place: int
    dialogue: Dialogue
    agent: str
    chat: Chat
    attempt: int = 0


AnswerAll = Callable[[list[Question]], Sequence[Answer]]
"""Answers to questions, in order. Chats must not be changed."""
UNUSABLE = ("content_filter", "refused", "unknown")
"""Finish reasons of answers that are never used."""


def start_dialogue(item: Any, seed: int) -> Dialogue:
    """A new dialogue about `item`. seed: any integer, taken modulo 65536 as in tensor play."""
    return Dialogue(item, seed % NUM_SEEDS)


async def play_dialogue(scenario: LanguageScenario, item: Any, seed: int, ask: Ask, path: Path = ()) -> Dialogue:
    """A finished dialogue about `item`. Raises the errors of `ask`."""
    dialogue = start_dialogue(item, seed)
    while not dialogue.ended:
        dialogue = await play_round(scenario, dialogue, ask, path)
    return dialogue


async def play_round(scenario: LanguageScenario, dialogue: Dialogue, ask: Ask, path: Path = ()) -> Dialogue:
    """`dialogue` after one more round. Raises ValueError when it has ended, and the errors of `ask`."""
    if dialogue.ended:
        raise ValueError(f"the dialogue about item {dialogue.item.id} has ended")
    speakers = rulebook(scenario.protocol).speaking(dialogue.item.y, dialogue.rounds, dialogue.seed)
    turns = await _together(_take_turn(scenario, dialogue, agent, ask, path) for agent in speakers)
    return advance(scenario, dialogue, turns)


def advance(scenario: LanguageScenario, dialogue: Dialogue, turns: Iterable[Turn]) -> Dialogue:
    """`dialogue` after these turns of its next round, with rewards and its end."""
    turns = tuple(turns)
    protocol = scenario.protocol
    if protocol.verifier is None:
        rewards, over = scenario.judge(dialogue, turns)
        return replace(
            dialogue,
            rounds=(*dialogue.rounds, turns),
            rewards=(*dialogue.rewards, dict(rewards)),
            ended=over or len(dialogue.rounds) + 1 >= protocol.max_rounds,
        )
    rules, where = rulebook(protocol), (len(dialogue.rounds), dialogue.seed, dialogue.item.y)
    argued = ((agent, stance_in(scenario, dialogue, agent)) for agent in protocol.provers)
    stances: Stances = tuple((agent, stance) for agent, stance in argued if stance is not None)
    if protocol.panel is None:
        decided = next((turn for turn in turns if turn.agent == protocol.verifier), None)
        given = (None, protocol.undecided) if decided is None else (decided.confidence, decided.decision)
        outcome = rules.settle(*where, given[0], stances, given[1])
    else:
        before, now = (rules.votes(dialogue.item.y, rounds) for rounds in (dialogue.rounds, (*dialogue.rounds, turns)))
        outcome = rules.settle_votes(*where, before, now, stances)
    rewards = dict(outcome.rewards)
    if outcome.ended and protocol.payment.per_error:
        error = scenario.estimate_error(replace(dialogue, rounds=(*dialogue.rounds, turns)))
        rewards |= {agent: rewards[agent] + amount * error for agent, amount in protocol.payment.per_error.items()}
    return replace(
        dialogue,
        seed=rules.seed_after(len(dialogue.rounds), dialogue.seed, turns),
        rounds=(*dialogue.rounds, turns),
        rewards=(*dialogue.rewards, rewards),
        verdict=outcome.verdict,
        confidence=outcome.confidence,
        ended=outcome.ended,
    )


def play_in_step(scenario: LanguageScenario, dialogues: Iterable[Dialogue], answer: AnswerAll) -> list[Dialogue]:
    """Play all these dialogues to their ends, round by round together: all agents with a turn are queried at once.

    Each dialogue develops as under `play_round`. Raises the errors of `answer`.
    """
    held = list(dialogues)
    while any(not dialogue.ended for dialogue in held):
        asked: list[Question] = []
        for place, dialogue in enumerate(held):
            if not dialogue.ended:
                speakers = rulebook(scenario.protocol).speaking(dialogue.item.y, dialogue.rounds, dialogue.seed)
                asked += [Question(place, dialogue, agent, scenario.fenced_chat(dialogue, agent)) for agent in speakers]
        spoken: dict[int, list[Turn]] = {}
        for one, turn in zip(asked, _ask_until_used(scenario, asked, answer), strict=True):
            spoken.setdefault(one.place, []).append(turn)
        for place, said in spoken.items():
            held[place] = advance(scenario, held[place], said)
    return held


def _ask_until_used(scenario: LanguageScenario, asked: list[Question], answer: AnswerAll) -> list[Turn]:
    """The turn of each question; unusable replies are retried together."""
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


async def _take_turn(scenario: LanguageScenario, dialogue: Dialogue, agent: str, ask: Ask, path: Path) -> Turn:
    """The turn of `agent` in the next round, with retries."""
    chat, turn, attempts = scenario.fenced_chat(dialogue, agent), None, count()
    while turn is None:
        attempt = next(attempts)
        turn = _settled(scenario, dialogue, agent, await ask(dialogue, agent, chat, attempt, path), attempt)
    return turn


def _settled(scenario: LanguageScenario, dialogue: Dialogue, agent: str, answer: Answer, attempt: int) -> Turn | None:
    """The turn of an answer, None to query the agent again."""
    turn = read_answer(scenario, dialogue, agent, answer, attempt)
    is_last = answer.finish_reason == "refused" or turn.retries >= scenario.max_invalid_replies(agent)
    return turn if is_last or not turn.invalid else None


def read_answer(scenario: LanguageScenario, dialogue: Dialogue, agent: str, answer: Answer, attempt: int = 0) -> Turn:
    """The turn of an answer in the agent's next round: an invalid one, with empty messages, if it is unusable.

    attempt: number of earlier unusable answers of this turn.
    """
    channels, going_on = (
        rulebook(scenario.protocol).speakers(len(dialogue.rounds), dialogue.seed)[agent],
        scenario.protocol.undecided,
    )
    raw, truncated = "", answer.finish_reason == "length"
    if answer.content is not None and answer.finish_reason not in UNUSABLE:
        inside, raw = split_reasoning(encodable(answer.content))
        reasoning = "\n".join(filter(None, (encodable(answer.reasoning), inside)))
        with suppress(InvalidReply):
            turn = read_turn(scenario, dialogue, agent, raw)
            return replace(turn, retries=attempt, truncated=truncated, reasoning=reasoning)
    return Turn(
        agent, raw, dict.fromkeys(channels, ""), going_on, retries=attempt + 1, truncated=truncated, invalid=True
    )


def read_turn(scenario: LanguageScenario, dialogue: Dialogue, agent: str, raw: str) -> Turn:
    """The turn of `agent` in the next round with this reply; a decision without a confidence has full confidence.

    Raises InvalidReply, and UserError if the scenario's `parse` returns another type.
    """
    parsed = scenario.parse(dialogue, agent, raw)
    if not isinstance(parsed, Parsed):
        raise UserError(
            f"scenario: parse gives {parsed!r:.60} for a reply of {agent!r}, expected Parsed(...), or raise"
            " InvalidReply"
        )
    protocol, confidence = scenario.protocol, parsed.confidence
    decision = protocol.undecided if parsed.decision is None else parsed.decision
    if not protocol.two_verdicts and confidence not in (None, 1.0):
        raise UserError(
            f"scenario: parse gives a verdict of {agent!r} the confidence {confidence:g}, which is for two verdicts,"
            " leave it out"
        )
    if confidence is None and decision != protocol.undecided:
        confidence = float(decision) if protocol.two_verdicts else 1.0
    return Turn(agent, raw, dict(parsed.messages), decision, confidence)


def encodable(text: str) -> str:
    """`text`, with characters that no file or request can hold (halves of surrogate pairs) replaced by U+FFFD."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


Result = TypeVar("Result")


async def _together(calls: Iterable[Coroutine[Any, Any, Result]]) -> list[Result]:
    """All results in order; the first error, unwrapped, after the other calls were cancelled."""
    waiting = list(calls)
    if len(waiting) == 1:
        return [await waiting[0]]
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(call) for call in waiting]
    except BaseExceptionGroup as errors:
        first: BaseException = errors
        while isinstance(first, BaseExceptionGroup):
            first = first.exceptions[0]
        raise first from None
    return [task.result() for task in tasks]
