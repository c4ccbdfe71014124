"""Dialogues as JSON: a full record, from which the dialogue can be rebuilt exactly, and a transcript for readers.

Decisions that matter here:
- a record holds the item's id and label, not its text: the data set has that. Rebuilding checks both;
- a transcript has the shape of those of tensor play (`nip_ray.evaluation.transcripts`), with text for symbols, so that one report shows
  both. Characters that a page should not obey (controls, changes of writing direction) are made visible in it; a record keeps them.
"""

import re
from collections.abc import Mapping
from typing import Any

from nip_ray.errors import UserError
from nip_ray.play.dialogue import Dialogue, TextScenario, Turn
from nip_ray.play.dialogues import rulebook, verdict_of
from nip_ray.protocols import CONTINUE, VERDICTS

FORMAT, VERSION = "nip_ray.dialogue", 1


def dialogue_record(scenario: TextScenario, dialogue: Dialogue) -> dict[str, Any]:
    """All of `dialogue` but its item's text, in plain JSON values; see `dialogue_from_record`."""
    return {
        "format": FORMAT,
        "version": VERSION,
        "protocol": scenario.protocol.name,
        "item": dialogue.item.id,
        "y": dialogue.item.y,
        "seed": dialogue.seed,
        "rounds": [[_turn_record(turn) for turn in turns] for turns in dialogue.rounds],
        "rewards": [dict(paid) for paid in dialogue.rewards],
        "verdict": dialogue.verdict,
        "confidence": dialogue.confidence,
        "ended": dialogue.ended,
    } | ({} if scenario.protocol.two_verdicts else {"verdicts": scenario.protocol.undecided})


def dialogue_from_record(record: Mapping[str, Any], item: Any) -> Dialogue:
    """The dialogue about `item` that `record` was made of.

    Raises UserError when it is damaged, of another format, or about another item.
    """
    found = (record.get("format"), record.get("version"))
    if found != (FORMAT, VERSION):
        raise UserError(f"dialogue record: expected format {FORMAT!r} version {VERSION}, got {found[0]!r} {found[1]!r}")
    about = (record.get("item"), record.get("y"))
    if about != (item.id, item.y):
        raise UserError(
            f"dialogue record: it is about item {about[0]!r} with label {about[1]!r}, not item {item.id} with label {item.y}; "
            "read it with the data set that it was made with"
        )
    try:
        most = _typed(record, "verdicts", int) if "verdicts" in record else CONTINUE
        return Dialogue(
            item=item,
            seed=_typed(record, "seed", int),
            rounds=tuple(tuple(_turn(turn, most) for turn in turns) for turns in record["rounds"]),
            rewards=tuple({str(agent): float(amount) for agent, amount in paid.items()} for paid in record["rewards"]),
            verdict=_code(record, "verdict", most),
            confidence=_optional_float(record, "confidence"),
            ended=_typed(record, "ended", bool),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UserError(f"dialogue record of item {item.id}: damaged ({type(error).__name__}: {error}); leave it out") from None


def transcript_record(scenario: TextScenario, dialogue: Dialogue) -> dict[str, Any]:
    """`dialogue` for readers: instance, label, seed, role (where roles are drawn), length (rounds), verdict, correct, votes (of a
    panel: member -> its own verdict),
    reward (agent -> sum) and rounds, a list of {round, turns}. A game without a verifier has no label, verdict and correct. A turn
    has agent, channel ("" where nothing was written), message, and for the verifier decision; further confidence (of a verdict),
    reasoning, retries, truncated and invalid where there is something to say.
    """
    label, verdict, words = dialogue.item.y, dialogue.verdict, scenario.protocol.verdict_words
    judged: dict[str, Any] = {} if scenario.protocol.verifier is None else {"verdict": words[verdict], "correct": verdict == label}
    if votes := rulebook(scenario.protocol).votes(label, dialogue.rounds):
        judged["votes"] = {agent: VERDICTS[CONTINUE if grade is None else verdict_of(grade)] for agent, grade in votes.items()}
    return {
        "instance": dialogue.item.id,
        **({"label": label} if judged else {}),
        "seed": dialogue.seed,
        **({"role": scenario.protocol.role_of(dialogue.seed)} if scenario.protocol.roles else {}),
        "length": len(dialogue.rounds),
        **judged,
        "reward": {agent: round(dialogue.total(agent), 6) for agent in scenario.protocol.agents},
        "rounds": [
            {"round": r, "turns": [row for turn in turns for row in _transcript_turns(scenario, turn)]}
            for r, turns in enumerate(dialogue.rounds)
        ],
    }


def _transcript_turns(scenario: TextScenario, turn: Turn) -> list[dict[str, Any]]:
    """One row a channel; a single row with the reply itself where nothing was written."""
    said = [(c, turn.messages[c]) for c in scenario.protocol.channels if c in turn.messages] or [("", turn.raw)]
    rows: list[dict[str, Any]] = [{"agent": turn.agent, "channel": channel, "message": visible(text)} for channel, text in said]
    if turn.agent in scenario.protocol.deciders:
        rows[0]["decision"] = VERDICTS[CONTINUE] if turn.confidence == 0.5 else scenario.protocol.decision_words[turn.decision]
    if turn.confidence is not None:
        rows[0]["confidence"] = round(turn.confidence, 6)
    if turn.reasoning:
        rows[0]["reasoning"] = visible(turn.reasoning)
    for flag in ("retries", "truncated", "invalid"):
        if getattr(turn, flag):
            rows[0][flag] = getattr(turn, flag)
    return rows


def _turn_record(turn: Turn) -> dict[str, Any]:
    return {
        "agent": turn.agent,
        "raw": turn.raw,
        "messages": dict(turn.messages),
        "decision": turn.decision,
        "confidence": turn.confidence,
        "retries": turn.retries,
        "truncated": turn.truncated,
        "invalid": turn.invalid,
    } | ({"reasoning": turn.reasoning} if turn.reasoning else {})


def _turn(record: Mapping[str, Any], most: int) -> Turn:
    messages = {str(channel): _text(message, "messages") for channel, message in record["messages"].items()}
    return Turn(
        agent=_typed(record, "agent", str),
        raw=_typed(record, "raw", str),
        messages=messages,
        decision=_code(record, "decision", most),
        confidence=_optional_float(record, "confidence"),
        retries=_typed(record, "retries", int),
        truncated=_typed(record, "truncated", bool),
        invalid=_typed(record, "invalid", bool),
        reasoning=_text(record.get("reasoning", ""), "reasoning"),
    )


def _typed(record: Mapping[str, Any], key: str, kind: type) -> Any:
    value = record[key]
    if type(value) is not kind:
        raise TypeError(f"{key} must be {kind.__name__}, got {value!r:.60}")
    return value


def _text(value: Any, key: str) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{key} must hold text, got {value!r:.60}")
    return value


def _code(record: Mapping[str, Any], key: str, most: int) -> int:
    value = _typed(record, key, int)
    if not 0 <= value <= most:
        raise ValueError(f"{key} must be one of {', '.join(map(str, range(most + 1)))}, got {value}")
    return value


def _optional_float(record: Mapping[str, Any], key: str) -> float | None:
    return None if record[key] is None else float(record[key])


_UNSEEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\U000e0000-\U000e007f]")


def visible(text: str) -> str:
    """`text` with control characters and those that change the writing direction spelled out, as in ``<U+202E>``."""
    return _UNSEEN.sub(lambda found: f"<U+{ord(found[0]):04X}>", text)
