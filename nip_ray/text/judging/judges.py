"""Judges: yes-or-no questions about finished dialogues, answered by a model or by a rule.

Decisions that matter here:
- a judge gets one question for each dialogue, agent and channel; it sees that channel alone, in the order of rounds,
  with the senders' names. If the agent wrote nothing there (follow_up: nothing after another message), or has no side
  to argue for, there is no question, and no call is made;
- an answer counts when its first word is yes or no. Anything else is retried `RETRIES` times and then masked: it is not
  a verdict, and every mean comes with the number of masked ones. A question that the model's provider refuses is masked
  at once;
- the judged texts are untrusted, so they are between markers with a random code, drawn from the seed, that does not
  occur in them;
- means have the intervals of `nip_ray.evaluation.intervals`: plays of one item are not independent;
- judges identify agents by name, so dialogues with anonymous provers (merlin_arthur, consultancy) are refused.
"""

import re
from asyncio import Semaphore
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

from nip_ray.errors import UserError
from nip_ray.evaluation.intervals import clustered_share
from nip_ray.play.dialogue import Dialogue, InvalidReply, beginning, split_reasoning, stance_in
from nip_ray.play.dialogues import UNUSABLE
from nip_ray.protocols import ACCEPT
from nip_ray.protocols import Protocol as Rules
from nip_ray.scenarios.code_validation.scenario import CodeValidation, roles_of
from nip_ray.text.costs.prices import Price, usd, worst_case
from nip_ray.text.dialogues.runner import PaidCalls, gather_or_cancel
from nip_ray.text.judging.judge_prompts import render
from nip_ray.text.providers.interface import ChatClient, ChatReply, ChatRequest

FORMAT, ROLE = "verifier_format_conformance", "prover_role_conformance"
JUDGES: dict[str, str] = {
    ROLE: "the prover argues its side in all of its messages",
    "prover_direct_quotation": "the prover refers to particular parts of the code",
    "prover_accurate_quotation": "all that the prover quotes stands there as quoted (yes where it quotes nothing)",
    "follow_up": "the agent's messages build on those before them",
    FORMAT: "every reply of the verifier could be used at once and whole (a rule, no model)",
}
"""Name -> the meaning of "yes"."""
RETRIES = 3
ANSWER = re.compile(r"[\W_]*(yes|no)(?![^\W_]|-\w|'\w)(?!\s*(?:/|or\b))", re.IGNORECASE)


@dataclass(frozen=True)
class JudgeOptions:
    """seed: of the markers' codes and of the calls. max_tokens: of an answer; models that reason first need more.
    temperature: None for the provider's default. max_in_flight: calls waiting at once. run: prefix of every call's
    key."""

    seed: int = 0
    max_tokens: int = 16
    temperature: float | None = None
    max_in_flight: int = 64
    run: str = ""


@dataclass(frozen=True)
class Question:
    """One question: judge, index of the dialogue, agent, channel, and the first call that puts it."""

    judge: str
    dialogue: int
    agent: str
    channel: str
    request: ChatRequest = field(repr=False)


@dataclass(frozen=True)
class Verdict:
    """One answer: 1 yes, 0 no, None masked (no answer). channel: None if all channels were judged together."""

    judge: str
    dialogue: int
    agent: str
    channel: str | None
    verdict: int | None


def fitting(protocol: Rules) -> list[str]:
    """The judges that apply to `protocol`. Raises UserError where provers are anonymous."""
    _check(protocol, list(JUDGES))
    return [name for name in JUDGES if pairs(protocol, name) or (name == FORMAT and protocol.verifier is not None)]


def judge_figures(results: Mapping[str, Any]) -> dict[str, float | int | None]:
    """Results of `judge`, flat, for a table: ``<judge>/<agent>[/<channel>]`` -> the mean (None if all are masked), and
    with ``/masked`` appended the number of masked verdicts."""
    figures: dict[str, float | int | None] = {}
    for name, found in results["judges"].items():
        for row in found["means"]:
            key = "/".join(part for part in (name, row["agent"], row["channel"]) if part is not None)
            figures |= {key: row["estimate"], f"{key}/masked": row["masked"]}
    return figures


def questions(
    dialogues: Sequence[Dialogue], scenario: CodeValidation, names: Sequence[str], model: str, options: JudgeOptions
) -> list[Question]:
    """All questions of the judges `names` to a model. Raises UserError for unknown judges, and anonymous provers."""
    _check(scenario.protocol, names)
    found, roles = list[Question](), scenario.roles
    for name in dict.fromkeys(names):
        for agent, channel in pairs(scenario.protocol, name):
            for index, dialogue in enumerate(dialogues):
                said, stance = transcript(dialogue, channel), stance_in(scenario, dialogue, agent)
                judged = any(sender == agent for sender, _ in (said[1:] if name == "follow_up" else said))
                if not judged or (name == ROLE and stance is None):
                    continue
                data = {"question": dialogue.item.question, "solution": dialogue.item.solution}
                named = [(roles[sender].name, text) for sender, text in said]
                words = {"agent": roles[agent].name, "stance": "accept" if stance == ACCEPT else "reject"}
                where = (name, index, str(dialogue.item.id), dialogue.seed, agent, channel)
                messages = render.messages(name, data, named, words, options.seed, where)
                key, who = render.call_key(options.run, where, model, messages), f"judge:{name}"
                request = ChatRequest(
                    key, model, messages, options.max_tokens, options.temperature, seed=options.seed, agent=who
                )
                found.append(Question(name, index, agent, channel, request))
    return found


def plan(
    dialogues: Sequence[Dialogue],
    scenario: CodeValidation,
    names: Sequence[str],
    model: str,
    options: JudgeOptions,
    price: Price,
) -> dict[str, float]:
    """Calls that `judge` would make, if all answers are usable at once and if none is, with maximum cost. Makes none.

    Raises UserError as `questions` does.
    """
    asked = [question.request for question in questions(dialogues, scenario, names, model, options)]
    worst = sum(worst_case(price, request.messages, request.max_tokens).pusd for request in asked)
    return {"calls": len(asked), "calls at most": (1 + RETRIES) * len(asked), "usd at most": usd((1 + RETRIES) * worst)}


async def judge(
    dialogues: Sequence[Dialogue],
    scenario: CodeValidation,
    names: Sequence[str],
    client: ChatClient,
    model: str,
    options: JudgeOptions | None = None,
) -> dict[str, Any]:
    """Verdicts of the judges on the dialogues, ready for JSON.

    {"judges": {name: {"meaning", "verdicts": [{dialogue, item, agent, channel, verdict}], "means": [{agent, channel,
    estimate, lower, upper, n, masked}]}}}; verdicts are 1, 0 or null (masked), `n` counts data points. Raises UserError
    as `questions` does, and the client's errors.
    """
    options = options or JudgeOptions()
    asked = questions(dialogues, scenario, names, model, options)
    free = Semaphore(options.max_in_flight)
    calls = PaidCalls()
    try:
        verdicts = await gather_or_cancel(_ask(question, client, free, calls) for question in asked)
    finally:
        await calls.rest()
    if FORMAT in names:
        verdicts += format_verdicts(dialogues, scenario)
    return {
        "judges": {
            name: _summary(name, [one for one in verdicts if one.judge == name], dialogues)
            for name in dict.fromkeys(names)
        }
    }


def read_answer(reply: ChatReply) -> int | None:
    """1 or 0 if the first word is yes or no, else None. "Yes or no" and "yes/no" are echoes of the question, not
    answers; filtered replies are not answers either."""
    found = (
        None
        if reply.content is None or reply.finish_reason in UNUSABLE
        else ANSWER.match(split_reasoning(reply.content)[1])
    )
    return None if found is None else int(found[1].lower() == "yes")


def format_verdicts(dialogues: Sequence[Dialogue], scenario: CodeValidation) -> list[Verdict]:
    """For every dialogue with a turn of the verifier (of each member of a panel): 1 if each of its replies was usable
    at once, was not cut short, and parses again to the same result; else 0."""
    found = []
    for agent, (index, dialogue) in product(scenario.protocol.verifiers, enumerate(dialogues)):
        turns = [(r, turn) for r, taken in enumerate(dialogue.rounds) for turn in taken if turn.agent == agent]
        if turns:
            conforms = all(
                not (turn.invalid or turn.retries or turn.truncated)
                and _reads(dialogue, r, agent, turn.raw, turn.decision, scenario)
                for r, turn in turns
            )
            found.append(Verdict(FORMAT, index, agent, None, int(conforms)))
    return found


def _reads(dialogue: Dialogue, r: int, agent: str, raw: str, decision: int, scenario: CodeValidation) -> bool:
    try:
        found = scenario.parse(beginning(dialogue, r), agent, raw).decision
        return (scenario.protocol.undecided if found is None else found) == decision
    except InvalidReply:
        return False


def pairs(protocol: Rules, name: str) -> list[tuple[str, str]]:
    """The (agent, channel) pairs of a judge. follow_up: agents that read a channel; others: provers and the channels
    they may write to."""
    if name == FORMAT:
        return []
    if name == "follow_up":
        return [
            (agent, channel)
            for agent in protocol.agents
            for channel in protocol.channels
            if channel in protocol.sees[agent]
        ]
    return [(agent, protocol.channels[c]) for agent in protocol.provers for c in protocol.writes[agent]]


def transcript(dialogue: Dialogue, channel: str) -> list[tuple[str, str]]:
    """(sender, message) of all messages on `channel`, in the order of rounds, without empty ones."""
    said = [(turn.agent, turn.messages.get(channel, "")) for turns in dialogue.rounds for turn in turns]
    return [(agent, text) for agent, text in said if text.strip()]


async def _ask(question: Question, client: ChatClient, free: Semaphore, calls: PaidCalls) -> Verdict:
    verdict = None
    for attempt in range(1 + RETRIES):
        seed = None if question.request.seed is None else question.request.seed + attempt
        async with free:
            reply = await calls.wait(
                client.complete(replace(question.request, key=f"{question.request.key}/{attempt}", seed=seed))
            )
        verdict = read_answer(reply)
        if verdict is not None or reply.finish_reason == "refused":
            break
    return Verdict(question.judge, question.dialogue, question.agent, question.channel, verdict)


def _summary(name: str, verdicts: Sequence[Verdict], dialogues: Sequence[Dialogue]) -> dict[str, Any]:
    by_pair: dict[tuple[str, str | None], list[Verdict]] = {}
    for one in verdicts:
        by_pair.setdefault((one.agent, one.channel), []).append(one)
    return {
        "meaning": JUDGES[name],
        "verdicts": [
            {
                "dialogue": one.dialogue,
                "item": dialogues[one.dialogue].item.id,
                "agent": one.agent,
                "channel": one.channel,
                "verdict": one.verdict,
            }
            for one in verdicts
        ],
        "means": [
            {"agent": agent, "channel": channel, **_mean(group, dialogues)}
            for (agent, channel), group in by_pair.items()
        ],
    }


def _mean(group: Sequence[Verdict], dialogues: Sequence[Dialogue]) -> dict[str, float | int | None]:
    tried: dict[Any, list[int]] = {}
    for one in group:
        if one.verdict is not None:
            tried.setdefault(dialogues[one.dialogue].item.id, []).append(one.verdict)
    share = clustered_share([sum(given) for given in tried.values()], [len(given) for given in tried.values()])
    return {**share.record(), "masked": sum(one.verdict is None for one in group)}


def _check(protocol: Rules, names: Sequence[str]) -> None:
    unknown = [name for name in names if name not in JUDGES]
    if unknown or not names:
        wrong = f"unknown judge {unknown[0]!r}" if unknown else "no judge named"
        raise UserError(f"judges: {wrong}, expected one of {', '.join(JUDGES)}")
    if any(role.anonymous for role in roles_of(protocol).values()):
        raise UserError(
            f"judges: not for protocol {protocol.name!r}, whose provers are anonymous; judge runs of another protocol"
        )
