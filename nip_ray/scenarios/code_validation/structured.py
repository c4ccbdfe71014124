"""Replies of the verifier as JSON: the schema that they are held to, how they are read, and how a decision is written.

Decisions that matter here:
- a reply is one object with a field for each channel in which the agent ever writes ("message" where that is one, else the words of the
  channel's header, as "question_for_expert_1") and the field "decision". The schema asks for text in the first, which may be empty, and
  lets the decision be null: were both null the reply would say nothing. Reading takes null, or no field, for empty text;
- messages stand before the decision, so that a model may give its reasons first. A decision counts whatever stands beside it: as after a
  decision in text, nothing is then written to any channel;
- others are shown what they would be shown in text: the message behind its header;
- reading is strict: one object and nothing around it, known fields, none twice, entries of the scale as the schema spells them. No
  decision needs text in each channel where the agent has its turn, and none elsewhere.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from nip_ray.play.dialogue import InvalidReply, Parsed, verdict_of
from nip_ray.scenarios.code_validation.parse import MAX_CHARACTERS
from nip_ray.scenarios.code_validation.scales import Scale

DECISION = "decision"


def field_names(channels: Sequence[str], headers: Mapping[str, str]) -> dict[str, str]:
    """Channel -> the field of its message, for all channels in which an agent ever writes."""
    if len(channels) == 1:
        return {channels[0]: "message"}
    names = {channel: re.sub(r"\W+", "_", headers[channel]).strip("_").lower() for channel in channels}
    if len({DECISION, *names.values()}) <= len(names):  # headers that differ in signs or case alone
        names = {channel: f"message_{number}" for number, channel in enumerate(channels, 1)}
    return names


def reply_schema(fields: Mapping[str, str], scale: Scale) -> dict[str, Any]:
    """The JSON schema of a reply, in the subset that strict modes of services accept: every field required, a decision of null for none."""
    values = list(map(_value, scale.confidences))
    decision = {"type": "string" if isinstance(values[0], str) else "integer", "enum": values}
    kinds = {**{name: {"type": "string"} for name in fields.values()}, DECISION: {"anyOf": [{"type": "null"}, decision]}}
    return {
        "type": "object",
        "properties": kinds,
        "required": list(kinds),
        "additionalProperties": False,
    }


def write_reply(fields: Mapping[str, str], messages: Mapping[str, str], scale: Scale, confidence: float | None = None) -> str:
    """A reply with these messages, or with the decision nearest to `confidence`."""
    said = {name: messages.get(channel, "") for channel, name in fields.items()}
    return json.dumps({**said, DECISION: None if confidence is None else _value(scale.nearest(confidence))}, ensure_ascii=False)


def read_json_reply(reply: str, channels: Sequence[str], fields: Mapping[str, str], headers: Mapping[str, str], scale: Scale) -> Parsed:
    """What `reply` says. channels: where the agent writes in this round. Raises InvalidReply, with the reason, as the module says."""
    if len(reply) > MAX_CHARACTERS:
        raise InvalidReply(f"the reply has {len(reply)} characters; at most {MAX_CHARACTERS} are read")
    try:
        found = json.loads(reply, object_pairs_hook=_without_repetition)
        json.dumps(found, ensure_ascii=False).encode()  # escapes can write halves of surrogate pairs, which no file can hold
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
            raise InvalidReply(f"a decision is null or one of {', '.join(map(str, entries))}, not {str(decision)[:60]!r}")
        return Parsed({}, verdict_of(entries[decision]), entries[decision])
    said = {channel: text for channel, name in fields.items() if (text := (found.get(name) or "").strip())}
    if set(said) != set(channels):
        wanted = ", ".join(fields[channel] for channel in channels)
        raise InvalidReply(f"without a decision there must be text in {wanted} and nowhere else")
    return Parsed({channel: f"{headers[channel]} {said[channel]}" if channel in headers else said[channel] for channel in channels})


def _value(stated: str) -> str | int:
    """An entry of a scale as JSON has it."""
    return int(stated) if stated.isdecimal() else stated


def _without_repetition(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(found := dict(pairs)) < len(pairs):
        raise ValueError("a field stands in it twice")
    return found
