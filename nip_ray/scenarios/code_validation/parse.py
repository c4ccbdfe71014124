"""Parse replies: a decision, or a message for each channel in which the agent has its turn; in text or as JSON, on the
scale of verdicts.

How ambiguity is treated:
- only deciding agents decide. A prover's reply is its message, even with "Decision: accept" in it;
- a decision is a line of its own, "Decision:" and one entry of the verdict scale, in any case. Markdown emphasis, a
  leading "#" or "-", quotation marks or brackets around the line, and a full stop or exclamation mark at its end are
  ignored, and so are characters without width and marks of writing direction, which could disguise a line. A full-width
  colon is a colon. Other lines may give reasons;
- a reply is refused where its decision is in doubt: a line that starts with "Decision:" and does not continue with an
  entry of the scale and nothing else; two different decisions, on lines of their own or inside text; a decision inside
  a line of text or a quotation (">") alone; a decision beside a question under one of the agent's headers. The same
  decision may be repeated;
- an agent that chooses a side does so on a line of its own in its first message, "Side: accept" or "Side: reject", in
  the form of a decision, and names no other side on such a line; its message is the whole reply;
- after a decision nothing is written to any channel;
- an agent that writes to one channel writes its whole reply there. One that writes to several needs the header of each
  exactly once, at the start of a line (markdown marks before it are ignored), with text after it. A channel's message
  runs from its header, which is kept, to the next header; text before the first header is dropped;
- an empty reply, and one of more than `MAX_CHARACTERS`, is refused.
Parsing takes time linear in the length of the reply.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nip_ray.play.dialogue import InvalidReply, Parsed
from nip_ray.play.dialogues import verdict_of
from nip_ray.protocols import DECISIONS

# ----------------------------------------------------------------------------------------------------------------------
# The verdict scales: accept or reject, a number from 1 to 7, or from 0 to 100.
# - a scale is a table from the text after "Decision:" to a confidence, the verifier's probability of acceptance in [0,
#   1]: (k - 1) / 6 on the scale of seven, k / 100 in per cent;
# - above one half is acceptance, below is rejection. Exactly the middle (4, and 50) ends the dialogue without a
#   verdict: calling it a rejection would make soundness look better and completeness worse by definition. It is paid
#   halfway between both, and counts as undecided (`nip_ray.play.dialogues.verdict_of`);
# - by default payments are linear in the confidence, so on a scale a verifier that maximises its pay states 7 or 1 (100
#   or 0); under `protocol.verifier_scoring` brier or log it states its true confidence.

MARK = "Decision:"
"""The start of every decision."""


@dataclass(frozen=True)
class Scale:
    """name: of the setting `verdict_scale`. confidences: entry (lower case) -> probability of acceptance. unit: may
    follow the entry."""

    name: str
    confidences: Mapping[str, float]
    unit: str = ""

    def confidence(self, stated: str) -> float | None:
        """The probability of acceptance of `stated` (in any case), None if it is not on the scale."""
        stated = stated.strip().lower()
        if self.unit and stated.endswith(self.unit):
            stated = stated[: -len(self.unit)].rstrip()
        return self.confidences.get(stated)

    def nearest(self, confidence: float) -> str:
        """The entry nearest to `confidence` (the lower of two)."""
        return min(self.confidences, key=lambda stated: abs(self.confidences[stated] - confidence))

    def decision(self, confidence: float) -> str:
        """The decision text of the entry nearest to `confidence`."""
        return f"{MARK} {self.nearest(confidence)}"


SCALES = {
    scale.name: scale
    for scale in (
        Scale("accept_reject", {"reject": 0.0, "accept": 1.0}),
        Scale("one_to_seven", {str(k): (k - 1) / 6 for k in range(1, 8)}),
        Scale("percent", {str(k): k / 100 for k in range(101)}, unit="%"),
    )
}
"""By name."""

# ----------------------------------------------------------------------------------------------------------------------
# Text.

MAX_CHARACTERS = 100_000
"""Maximum length of a reply."""

_INVISIBLE = (
    *range(0x09), *range(0x0E, 0x1C), 0x1F, *range(0x7F, 0x85), *range(0x86, 0xA0), 0xAD, 0x61C, 0x180E,
    *range(0x200B, 0x2010), *range(0x202A, 0x202F), *range(0x2060, 0x2070), 0xFEFF, *range(0xE0000, 0xE0080),
)  # fmt: skip
_COLON = {0xFF1A: ":"}
_OVERLOOKED = dict.fromkeys((*_INVISIBLE, *map(ord, "*_`~"))) | _COLON
_NO_WIDTH = dict.fromkeys(_INVISIBLE)
_BEFORE, _AFTER = " \t\u00a0#-•\"'“‘«([", " \t\u00a0.!\"'”’»)]"
_AROUND_VALUE = (_BEFORE + _AFTER).translate(dict.fromkeys(map(ord, "-#•")))  # -5 is not 5
_BEFORE_HEADER = f"{_BEFORE}*_`~"
_LINE = re.compile(r"decision\s*:(.*)", re.DOTALL)
_SIDE = re.compile(r"side\s*:\s*(reject|accept)")
SIDE = "Side:"
"""The start of the line in which an agent chooses its side."""
_MENTION = re.compile(r"\bdecision\s*:\s*(\w+)")


def read_reply(reply: str, channels: Sequence[str], headers: Mapping[str, str], scale: Scale | None) -> Parsed:
    """Parse `reply`.

    channels: where the agent writes in this round. headers: channel -> the header of its message if there are several.
    scale: of the agent's decisions, None for one that does not decide. Raises InvalidReply, with the reason, by the
    rules of the module.
    """
    if len(reply) > MAX_CHARACTERS:
        raise InvalidReply(f"the reply has {len(reply)} characters; at most {MAX_CHARACTERS} are read")
    if not reply.translate(_NO_WIDTH).strip():
        raise InvalidReply("the reply is empty")
    confidence = None if scale is None else read_decision(reply, scale)
    if confidence is None:
        return Parsed(read_messages(reply, channels, headers))
    if any(_header_lines(reply, {channel: headers[channel] for channel in channels if channel in headers}).values()):
        raise InvalidReply("the reply both decides and asks; it must do one of the two")
    return Parsed({}, verdict_of(confidence), confidence)


def read_decision(reply: str, scale: Scale) -> float | None:
    """The confidence in `reply`, None without a decision. Raises InvalidReply if that is in doubt."""
    text = reply.translate(_OVERLOOKED).lower()
    if "decision" not in text:
        return None
    stated, mentioned = set[float](), set[float]()
    for line in text.splitlines():
        found = _LINE.fullmatch(line.lstrip(_BEFORE).rstrip(_AFTER))
        if found is None:
            values = [scale.confidence(value) for value in _MENTION.findall(line)]
            mentioned.update(value for value in values if value is not None)
            continue
        confidence = scale.confidence(found[1].strip(_AROUND_VALUE))
        if confidence is None:
            raise InvalidReply(f"a decision is one of {_examples(scale)} and nothing else, not {found[0][:60]!r}")
        stated.add(confidence)
    if len(stated | mentioned) > 1:
        raise InvalidReply("the reply holds two different decisions")
    if mentioned and not stated:
        raise InvalidReply(f"a decision must stand on a line of its own ({_examples(scale)})")
    return next(iter(stated), None)


def read_side(reply: str) -> int:
    """REJECT or ACCEPT, the side that the agent chooses. Raises InvalidReply if it names none, or both."""
    lines = (line.lstrip(_BEFORE).rstrip(_AFTER) for line in reply.translate(_OVERLOOKED).lower().splitlines())
    chosen = {found[1] for line in lines if (found := _SIDE.fullmatch(line))}
    if len(chosen) != 1:
        raise InvalidReply(
            "the first message must choose one side, on a line of its own: 'Side: accept' or 'Side: reject'"
        )
    return DECISIONS.index(chosen.pop())


def read_messages(reply: str, channels: Sequence[str], headers: Mapping[str, str]) -> dict[str, str]:
    """Channel -> message. Raises InvalidReply if there are several channels, and a header is missing, repeated or
    without text."""
    if len(channels) == 1:
        return {channels[0]: reply.strip()}
    found = _header_lines(reply, {channel: headers[channel] for channel in channels})
    for channel, places in found.items():
        if len(places) != 1:
            raise InvalidReply(
                f"{headers[channel]!r} must stand exactly once at the start of a line (found {len(places)} times)"
            )
    starts = sorted((places[0], channel) for channel, places in found.items())
    ends = [start for start, _ in starts[1:]] + [len(reply)]
    messages = {channel: reply[start:end].strip() for (start, channel), end in zip(starts, ends)}
    for channel, message in messages.items():
        if (
            not message.lstrip(_BEFORE_HEADER)
            .replace("\\_", "_")[len(headers[channel]) :]
            .translate(_OVERLOOKED)
            .strip()
        ):
            raise InvalidReply(f"nothing stands after {headers[channel]!r}")
    return {channel: messages[channel] for channel in channels}


def _header_lines(reply: str, headers: Mapping[str, str]) -> dict[str, list[int]]:
    """Channel -> the starts of lines that begin with its header."""
    wanted = {channel: header.lower() for channel, header in headers.items()}
    found: dict[str, list[int]] = {channel: [] for channel in headers}
    start = 0
    for line in reply.splitlines(keepends=True):
        bare = line.lstrip(_BEFORE_HEADER)[:200].replace("\\_", "_").translate(_COLON).lower()
        for channel, header in wanted.items():
            if bare.startswith(header):
                found[channel].append(start)
        start += len(line)
    return found


def _examples(scale: Scale) -> str:
    first, *_, last = scale.confidences
    return f"'Decision: {first}' {'to' if len(scale.confidences) > 2 else 'or'} 'Decision: {last}'"


# ----------------------------------------------------------------------------------------------------------------------
# Replies of the verifier as JSON: their schema, parsing, and writing a decision.
# - a reply is one object with a field for each channel in which the agent ever writes ("message" if there is one, else
#   the words of the channel's header, as "question_for_expert_1") and the field "decision". The schema requires text in
#   the first, which may be empty, and allows a null decision. Null, or a missing field, is read as empty text;
# - messages come before the decision, so that a model may give its reasons first. A decision counts regardless of
#   messages beside it: as after a decision in text, nothing is then written to any channel;
# - other agents see what they would see in text: the message after its header;
# - parsing is strict: one object and nothing around it, known fields, none twice, entries of the scale as the schema
#   spells them. No decision needs text in each channel where the agent has its turn, and none elsewhere.

DECISION = "decision"


def field_names(channels: Sequence[str], headers: Mapping[str, str]) -> dict[str, str]:
    """Channel -> the field of its message, for all channels in which an agent ever writes."""
    if len(channels) == 1:
        return {channels[0]: "message"}
    names = {channel: re.sub(r"\W+", "_", headers[channel]).strip("_").lower() for channel in channels}
    if len({DECISION, *names.values()}) <= len(names):  # headers that differ in punctuation or case alone
        names = {channel: f"message_{number}" for number, channel in enumerate(channels, 1)}
    return names


def reply_schema(fields: Mapping[str, str], scale: Scale) -> dict[str, Any]:
    """The JSON schema of a reply, in the subset that services accept in strict mode: every field required, decision
    null for none."""
    values = list(map(_value, scale.confidences))
    decision = {"type": "string" if isinstance(values[0], str) else "integer", "enum": values}
    kinds = {
        **{name: {"type": "string"} for name in fields.values()},
        DECISION: {"anyOf": [{"type": "null"}, decision]},
    }
    return {
        "type": "object",
        "properties": kinds,
        "required": list(kinds),
        "additionalProperties": False,
    }


def write_reply(
    fields: Mapping[str, str], messages: Mapping[str, str], scale: Scale, confidence: float | None = None
) -> str:
    """A reply with these messages, or with the decision nearest to `confidence`."""
    said = {name: messages.get(channel, "") for channel, name in fields.items()}
    return json.dumps(
        {**said, DECISION: None if confidence is None else _value(scale.nearest(confidence))}, ensure_ascii=False
    )


_FENCE = re.compile(r"\s*```(?:json)?[ \t]*\n(.*)\n[ \t]*```\s*", re.IGNORECASE | re.DOTALL)
"""Around a whole reply: services that enforce a schema may add it."""


def read_json_reply(
    reply: str, channels: Sequence[str], fields: Mapping[str, str], headers: Mapping[str, str], scale: Scale
) -> Parsed:
    """Parse `reply`. channels: where the agent writes in this round. Raises InvalidReply, with the reason, by the rules
    of the module."""
    if len(reply) > MAX_CHARACTERS:
        raise InvalidReply(f"the reply has {len(reply)} characters; at most {MAX_CHARACTERS} are read")
    try:
        found = json.loads(
            fenced[1] if (fenced := _FENCE.fullmatch(reply)) else reply, object_pairs_hook=_without_repetition
        )
        # escapes can encode halves of surrogate pairs, which no file can hold
        json.dumps(found, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise InvalidReply(f"the reply is no JSON ({error})") from None
    if not isinstance(found, dict):
        raise InvalidReply("the reply is no JSON object")
    known = (*fields.values(), DECISION)
    if unknown := found.keys() - set(known):
        raise InvalidReply(f"unknown field {min(unknown)!r}; there are {', '.join(known)}")
    for name in fields.values():
        if not isinstance(found.get(name), str | None):
            raise InvalidReply(f"{name!r} is text or null")
    decision = found.get(DECISION)
    if decision is not None:
        entries = {_value(stated): confidence for stated, confidence in scale.confidences.items()}
        if type(decision) not in (str, int) or decision not in entries:
            raise InvalidReply(
                f"a decision is null or one of {', '.join(map(str, entries))}, not {str(decision)[:60]!r}"
            )
        return Parsed({}, verdict_of(entries[decision]), entries[decision])
    said = {channel: text for channel, name in fields.items() if (text := (found.get(name) or "").strip())}
    if set(said) != set(channels):
        wanted = ", ".join(fields[channel] for channel in channels)
        raise InvalidReply(f"without a decision there must be text in {wanted} and nowhere else")
    return Parsed(
        {
            channel: f"{headers[channel]} {said[channel]}" if channel in headers else said[channel]
            for channel in channels
        }
    )


def _value(stated: str) -> str | int:
    """An entry of a scale in JSON."""
    return int(stated) if stated.isdecimal() else stated


def _without_repetition(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(found := dict(pairs)) < len(pairs):
        raise ValueError("a field stands in it twice")
    return found
