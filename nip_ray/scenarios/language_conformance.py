"""A check that a scenario of language models meets the requirements of runs, in one call.

Decisions that matter here:

- It plays dialogues as runs do, with the scenario's own random replies (`invent`); no model is queried.
- It checks what runs rely on: the same seed gives the same items; a chat is a pure function of the dialogue, so that
  learning and resuming use the chat that was shown; an unreadable reply is InvalidReply and never another error.
- An agent must not see what it may not know: a verifier the label, any agent the messages in channels that it cannot
  read.
"""

import copy
import json
import pickle
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from nip_ray.errors import UserError, refuse_faults
from nip_ray.play.dialogue import Chat, Dialogue, InvalidReply, LanguageScenario, Turn, beginning
from nip_ray.play.dialogues import advance, read_turn, rulebook, start_dialogue
from nip_ray.play.fences import is_fenced
from nip_ray.protocols import Protocol
from nip_ray.scenarios.language import SPLITS, LanguageScenarioKind, language_kind
from nip_ray.seeding import stable_seed

_DIALOGUES = 16
_UNREADABLE = ("", " \n", "?!", "{", '{"decision": ', "\x00", "so " * 500, "\U0001f0a1")
_SECRET, _GARBAGE = "(what only some may read)", "(a reply that could not be used)"
_ROLES = ("system", "user", "assistant")


def check_language_scenario(settings: Any, protocol: Protocol) -> None:
    """Raise one UserError that lists the faults of the scenario of `settings` under `protocol`, if any.

    settings: an instance of the registered settings class. Checked: items (splits, labels, seeds, records), chats
    (form, purity, privacy), replies (invented ones can be read, unreadable ones are refused, verdicts have the right
    code), and for a game without a verifier its payments. Takes a second or two; errors while building and making items
    pass through.
    """
    kind = language_kind(settings)
    scenario = kind.build(protocol, settings)
    if not isinstance(scenario, LanguageScenario):
        raise UserError(f"scenario {settings.name!r}: build gives {scenario!r:.60}, expected a LanguageScenario")
    items = kind.items(settings, 0)
    refuse_faults(
        f"scenario {settings.name!r}",
        lambda: _item_faults(kind, settings, protocol, items),
        lambda: _play_faults(scenario, items["train"]),
        lambda: _copy_faults(scenario, items["train"][0]),
    )


# ---------------------------------------------------------------------------------------------------------------- items


def _item_faults(
    kind: LanguageScenarioKind, settings: Any, protocol: Protocol, items: dict[str, list[Any]]
) -> Iterator[str]:
    """Splits, labels, seeds, records."""
    if not isinstance(items, dict):
        yield f"items(settings, seed) gives {items!r:.60}, expected a mapping of {' and '.join(SPLITS)} to items"
        return
    if set(items) != set(SPLITS) or not all(items.values()):
        found = ", ".join(f"{len(of)} for {split}" for split, of in items.items())
        yield f"items(settings, seed) must give items for {' and '.join(SPLITS)} (got {found})"
        return
    if kind.items(settings, 0) != items:
        yield (
            "items(settings, seed) returns other items when it is called again; draw from"
            " Random(nip_ray.seeding.stable_seed(seed, ...))"
        )
    for split, found in items.items():
        if len({item.id for item in found}) < len(found) or not all(type(item.id) is int for item in found):
            yield f"the ids of {split} items must be integers, each once"
        if not {item.y for item in found} <= set(range(len(protocol.verdicts))):
            yield f"the labels y of {split} items must be {' or '.join(map(str, range(len(protocol.verdicts))))}"
        elif protocol.verifier is not None and len({item.y for item in found}) < 2:
            yield f"the {split} items all have one label, so there is nothing to decide"
    subjects = [{kind.subject_of(item) for item in items[split]} for split in ("train", "test")]
    if kind.held_out and (both := subjects[0] & subjects[1]):
        yield f"{len(both)} items are in train and in test; hold others out, or set held_out=False"
    for item in (found[0] for found in items.values()):
        if kind.read_item(json.loads(json.dumps(kind.write_item(item)))) != item:
            yield "read_item does not give back what write_item wrote (lists for tuples?)"
        for name, value_of in kind.groups.items():
            if not isinstance(value_of(item), str | int):
                yield f"groups[{name!r}] must give text or an integer (got {value_of(item)!r})"


# ---------------------------------------------------------------------------------------------------------------- plays


def _play_faults(scenario: LanguageScenario, items: list[Any]) -> Iterator[str]:
    """Dialogues of invented replies about the first items of all labels."""
    labels = range(len(scenario.protocol.verdicts))
    chosen = [item for y in labels for item in [one for one in items if one.y == y][: -(-_DIALOGUES // len(labels))]]
    said: dict[str, set[str]] = {agent: set() for agent in scenario.protocol.agents}
    for number in range(_DIALOGUES):
        dialogue = start_dialogue(chosen[number % len(chosen)], stable_seed(0, "conformance", number))
        while not dialogue.ended:
            speakers = rulebook(scenario.protocol).speaking(dialogue.item.y, dialogue.rounds, dialogue.seed)
            turns = []
            for agent, channels in speakers.items():
                if not _is_chat(chat := scenario.chat(dialogue, agent)):
                    form = (
                        f"a list of messages, each with a role ({', '.join(_ROLES)}), content and perhaps a name, none"
                        " empty"
                    )
                    yield f"chat({agent!r}) must be {form} (got {chat!r:.90})"
                    return
                yield from _chat_faults(scenario, dialogue, agent)
                if not isinstance(reply := scenario.invent(dialogue, agent, number), str):
                    yield f"invent({agent!r}) gives {reply!r:.60}, expected a reply as text"
                    return
                said[agent].add(reply)
                try:
                    turn = read_turn(scenario, dialogue, agent, reply)
                except InvalidReply as error:
                    yield f"parse refuses what invent made for {agent!r} ({reply!r:.60}): {error}"
                    return
                turns.append(turn)
                yield from _word_faults(scenario, dialogue, agent, reply)
                yield from _turn_faults(scenario, dialogue, turn, channels)
                yield from _reply_faults(scenario, dialogue, agent)
                yield from _verdict_faults(scenario, dialogue, agent)
            following = advance(scenario, dialogue, turns)
            yield from _payment_faults(scenario, following)
            yield from _record_faults(scenario, following)
            yield from _invalid_faults(scenario, dialogue, speakers)
            dialogue = following
    for agent, replies in said.items():
        if len(replies) == 1:
            yield f"invent makes the same reply of {agent!r} every time ({replies.pop()!r:.60}), whatever the seed"


def _chat_faults(scenario: LanguageScenario, dialogue: Dialogue, agent: str) -> Iterator[str]:
    """Form, purity, privacy."""
    before = copy.deepcopy(dialogue)
    chat = scenario.chat(dialogue, agent)
    if chat[0]["role"] == "assistant":
        yield f"chat({agent!r}) begins with the assistant; let a system message or a user's come first"
    if scenario.chat(dialogue, agent) != chat or dialogue != before:
        yield f"chat({agent!r}) returns another chat when it is called again, or changes the dialogue"
    if scenario.chat(_hidden(scenario, dialogue, agent), agent) != chat:
        yield (
            f"chat({agent!r}) reveals others' raw replies, or messages in channels that it cannot read (protocol.sees);"
            " show `turn.messages`"
        )
    if agent in scenario.protocol.verifiers:
        other = copy.copy(dialogue.item)
        object.__setattr__(other, "y", (other.y + 1) % len(scenario.protocol.verdicts))
        if scenario.chat(replace(dialogue, item=other), agent) != chat:
            yield f"chat({agent!r}) reveals the label to a verifier"


def _is_chat(chat: Any) -> bool:
    return isinstance(chat, list) and bool(chat) and all(map(_is_message, chat))


def _is_message(message: Any) -> bool:
    texts = isinstance(message, dict) and all(isinstance(text, str) and text.strip() for text in message.values())
    return texts and {"role", "content"} <= set(message) <= {"role", "content", "name"} and message["role"] in _ROLES


def _hidden(scenario: LanguageScenario, dialogue: Dialogue, agent: str) -> Dialogue:
    """`dialogue`, with everything hidden from `agent` changed."""

    def seen(turn: Turn) -> Turn:
        if turn.agent == agent:
            return turn
        messages = {c: text if c in scenario.protocol.sees[agent] else _SECRET for c, text in turn.messages.items()}
        return replace(turn, raw=_SECRET, messages=messages, reasoning=_SECRET)

    return replace(dialogue, rounds=tuple(tuple(map(seen, turns)) for turns in dialogue.rounds))


def _word_faults(scenario: LanguageScenario, dialogue: Dialogue, agent: str, reply: str) -> Iterator[str]:
    """Requirements of models whose tokens are words; warm-up examples."""
    known = set(scenario.words)
    example = scenario.warm_example(dialogue.item, agent, dialogue.seed)
    if example != scenario.warm_example(dialogue.item, agent, dialogue.seed):
        yield (
            f"warm_example({agent!r}) depends on more than its arguments; draw from"
            " Random(nip_ray.seeding.stable_seed(seed, ...))"
        )
    told, right = example or ([], "")
    shown = scenario.chat(dialogue, agent)
    if told and is_fenced(told) != is_fenced(scenario.fenced_chat(dialogue, agent)):
        yield f"warm_example({agent!r}) gives a chat of another form than that of play; return `fenced_chat`"
    texts = [message["content"] for message in (*shown, *told)] + [reply, right]
    missing = [word for text in texts for word in text.split() if word not in known]
    if known and missing:
        yield f"words lacks {', '.join(sorted(set(missing))[:5])}, which are in the chat or the replies of {agent!r}"


def _turn_faults(
    scenario: LanguageScenario, dialogue: Dialogue, turn: Turn, channels: tuple[str, ...]
) -> Iterator[str]:
    if set(turn.messages) - set(channels):
        yield (
            f"parse puts messages of {turn.agent!r} into {', '.join(turn.messages)}; its turn is in"
            f" {', '.join(channels)}"
        )
    if turn.agent not in scenario.protocol.deciders and turn.decision != scenario.protocol.undecided:
        yield f"parse reads a decision from {turn.agent!r}, who has none to make"
    if scenario.invent(dialogue, turn.agent, 0) != scenario.invent(dialogue, turn.agent, 0):
        yield (
            f"invent({turn.agent!r}) depends on more than its arguments; draw from"
            " Random(nip_ray.seeding.stable_seed(seed, ...))"
        )


def _reply_faults(scenario: LanguageScenario, dialogue: Dialogue, agent: str) -> Iterator[str]:
    """Every possible reply is read or refused."""
    for reply in _UNREADABLE:
        try:
            scenario.parse(dialogue, agent, reply)
        except InvalidReply:
            continue
        except Exception as error:
            yield f"parse raises {type(error).__name__} for the reply {reply!r:.30} of {agent!r}; raise InvalidReply"


def _verdict_faults(scenario: LanguageScenario, dialogue: Dialogue, agent: str) -> Iterator[str]:
    """Requirements of replaced guesses and schemas."""
    if (schema := scenario.reply_schema(agent)) is not None:
        json.dumps(schema)
    counts = agent in scenario.protocol.verifiers and len(dialogue.rounds) >= scenario.protocol.min_rounds - 1
    for label in range(len(scenario.protocol.verdicts)) if counts else ():
        text = scenario.verdict_text(label)
        try:
            turn = read_turn(scenario, dialogue, agent, text)
        except InvalidReply as error:
            yield f"parse refuses verdict_text({label}), {text!r:.60}: {error}"
            continue
        if (turn.decision, turn.confidence) != (label, label if scenario.protocol.two_verdicts else 1):
            yield (
                f"parse reads verdict_text({label}), {text!r:.60}, as decision {turn.decision} with confidence"
                f" {turn.confidence}"
            )


def _payment_faults(scenario: LanguageScenario, dialogue: Dialogue) -> Iterator[str]:
    agents = set(scenario.protocol.agents)
    if set(dialogue.rewards[-1]) != agents:
        yield f"judge must pay {', '.join(sorted(agents))}, each a number (got {dict(dialogue.rewards[-1])!r:.100})"


def _record_faults(scenario: LanguageScenario, dialogue: Dialogue) -> Iterator[str]:
    """Training chats equal the shown chats."""
    last = len(dialogue.rounds) - 1
    for turn in dialogue.rounds[last]:
        if last not in scenario.usable_rounds(dialogue, turn.agent):
            yield f"usable_rounds({turn.agent!r}) lacks a round in which it gave a usable reply"
        elif scenario.training_chat(dialogue, turn.agent, last) != (
            scenario.fenced_chat(beginning(dialogue, last), turn.agent),
            turn.raw,
        ):
            yield f"training_chat({turn.agent!r}) is not what the agent was shown, and its reply"


def _invalid_faults(scenario: LanguageScenario, dialogue: Dialogue, speakers: Any) -> Iterator[str]:
    """Play continues after a round without a usable reply, and nothing is learned from it."""
    going_on = scenario.protocol.undecided
    turns = [
        Turn(agent, _GARBAGE, dict.fromkeys(channels, ""), going_on, invalid=True)
        for agent, channels in speakers.items()
    ]
    following = advance(scenario, dialogue, turns)
    if following.ended:
        return
    for agent in rulebook(scenario.protocol).speaking(following.item.y, following.rounds, following.seed):
        chat: Chat = scenario.chat(following, agent)
        if any(_GARBAGE in message["content"] for message in chat):
            yield f"chat({agent!r}) shows a reply that could not be used (turn.invalid); leave it out"
        if any(not message["content"].strip() for message in chat):
            yield f"chat({agent!r}) has an empty message where a turn wrote nothing; say so in words, such as (nothing)"


def _copy_faults(scenario: LanguageScenario, item: Any) -> Iterator[str]:
    """Rollout workers get the scenario pickled."""
    try:
        again: LanguageScenario = pickle.loads(pickle.dumps(scenario))
    except Exception as error:
        yield f"cannot be pickled, which rollout workers need ({type(error).__name__}: {error})"
        return
    dialogue = start_dialogue(item, 0)
    for agent in rulebook(scenario.protocol).speakers(0, 0):
        if again.chat(dialogue, agent) != scenario.chat(dialogue, agent):
            yield f"chat({agent!r}) is another one after pickling"
