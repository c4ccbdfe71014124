"""Items and dialogues as Inspect has them: samples, conversations, scores. Needs the package inspect_ai.

Decisions that matter here:
- a conversation is what the verifier hears: its own turns (all of a panel's) are the assistant's, all others' the user's. Each begins with
  the agent's name, and says its round and channel in `metadata`, private channels included;
- scores are our definitions, one value each of accuracy, completeness, soundness and undecided. Completeness is of true claims alone, and
  soundness of false ones: the others have NaN there, which Inspect leaves out of means. So its own `mean` gives our figures.
"""

import math
from collections.abc import Mapping
from typing import Any

import yaml

from nip_ray.errors import require
from nip_ray.play.dialogue import Chat, Dialogue, Turn
from nip_ray.protocols import ACCEPT, CONTINUE, REJECT, VERDICTS, Protocol
from nip_ray.protocols.spec import TWO_VERDICTS
from nip_ray.scenarios.language import LanguageScenarioKind

require("inspect_ai", "inspect")

from inspect_ai.model import (  # noqa: E402
    ChatMessage,
    ChatMessageAssistant,
    ChatMessageSystem,
    ChatMessageUser,
    ContentReasoning,
    ContentText,
    ModelOutput,
)
from inspect_ai.scorer import Score  # noqa: E402

VERDICT, PAY = "verdict", "pay"
"""The names of the scores."""
FIGURES = ("accuracy", "completeness", "soundness", "undecided")
"""The values of a verdict's score; `verifier/...` in `evaluation.json`."""
GAME = "nip_ray"
"""Where a sample's metadata and store have what is ours."""


def sample_parts(kind: LanguageScenarioKind, protocol: Protocol, item: Any, number: int) -> dict[str, Any]:
    """Of a sample about `item`: id, input, target and metadata. number: its place among the items of its split."""
    record = kind.write_item(item)
    told = {key: value for key, value in record.items() if key not in ("id", "y")}
    return {
        "id": item.id,
        "input": yaml.safe_dump(told, sort_keys=False, allow_unicode=True, width=10_000).strip(),
        "target": "" if protocol.verifier is None else protocol.verdicts[item.y],
        "metadata": {GAME: {"item": record, "number": number}},
    }


def messages_of(dialogue: Dialogue, protocol: Protocol, models: Mapping[str, str]) -> list[ChatMessage]:
    """All turns, in order. models: agent -> what speaks for it, in Inspect's words."""
    return [
        _message(turn, number, protocol.verifiers, models.get(turn.agent))
        for number, turns in enumerate(dialogue.rounds, 1)
        for turn in turns
    ]


def chat_messages(chat: Chat) -> list[ChatMessage]:
    """A chat as a provider is sent it, names standing in the texts."""
    kinds = {"system": ChatMessageSystem, "user": ChatMessageUser, "assistant": ChatMessageAssistant}
    return [kinds[message["role"]](content=message["content"]) for message in chat]


def output_of(dialogue: Dialogue, protocol: Protocol, models: Mapping[str, str]) -> ModelOutput:
    """What it came to: the verdict, or in a game without a verifier who was paid what."""
    if protocol.verifier is None:
        paid = ", ".join(f"{agent} {dialogue.total(agent):g}" for agent in protocol.agents)
        return ModelOutput.from_content(models.get(protocol.agents[0], ""), paid)
    return ModelOutput.from_content(models.get(protocol.viewpoint, ""), protocol.verdict_words[dialogue.verdict])


def outcome_of(dialogue: Dialogue, protocol: Protocol) -> dict[str, Any]:
    """All that scores are made of, as plain JSON values: label, verdict, confidence (none in a game without a verifier) and pay; with more
    than two verdicts also their "verdicts", by name.
    """
    judged: dict[str, Any] = {"label": dialogue.item.y, "verdict": dialogue.verdict, "confidence": dialogue.confidence}
    if not protocol.two_verdicts:
        judged["verdicts"] = list(protocol.verdicts)
    return {**({} if protocol.verifier is None else judged), "pay": {agent: dialogue.total(agent) for agent in protocol.agents}}


def verdict_score(outcome: Mapping[str, Any]) -> Score:
    """Of a game with a verifier. With more than two verdicts completeness is told of each: of the items of its class."""
    label, verdict, confidence = outcome["label"], outcome["verdict"], outcome["confidence"]
    verdicts = outcome.get("verdicts", TWO_VERDICTS)
    words, right = (*verdicts, VERDICTS[CONTINUE]), float(verdict == label)
    sides = {"completeness": ACCEPT, "soundness": REJECT}
    if len(verdicts) > 2:
        sides = {f"completeness/{name}": code for code, name in enumerate(verdicts)}
    values = {"accuracy": right, **{name: right if label == code else math.nan for name, code in sides.items()}}
    values["undecided"] = float(verdict == len(verdicts))
    sure = "" if confidence is None or len(verdicts) > 2 else f", probability of acceptance {confidence:g}"
    return Score(value=values, answer=words[verdict], explanation=f"verdict {words[verdict]}{sure}; right is {words[label]}")


def pay_score(outcome: Mapping[str, Any]) -> Score:
    """What each agent was paid."""
    return Score(value=dict(outcome["pay"]))


def _message(turn: Turn, number: int, verifiers: tuple[str, ...], model: str | None) -> ChatMessage:
    said = "\n".join(turn.messages.values()) or turn.raw or "(no reply that can be used)"
    where: dict[str, Any] = {"agent": turn.agent, "round": number, "channels": ", ".join(turn.messages), "model": model}
    if turn.invalid:
        where["invalid"] = True
    content: Any = f"{turn.agent}: {said}"
    if turn.reasoning:
        content = [ContentReasoning(reasoning=turn.reasoning), ContentText(text=content)]
    if turn.agent in verifiers or not verifiers:
        return ChatMessageAssistant(content=content, metadata=where, model=model)
    return ChatMessageUser(content=content, metadata=where)
