"""Reading replies: a decision, or a message for each channel in which the agent has its turn.

How ambiguity is treated:
- only deciding agents decide. What a prover writes is its message, whatever it says, "Decision: accept" included;
- a decision is a line of its own, "Decision:" and one entry of the verdict scale, in any case. Markdown emphasis, a leading "#" or
  "-", quotation marks or brackets around the line, and a full stop or exclamation mark at its end are overlooked, and so are
  characters without width and marks of writing direction, which could make a line look like another. A full-width colon is a colon.
  Other lines may give reasons;
- a reply is refused where its decision is in doubt: a line that starts with "Decision:" and does not continue with an entry of the scale
  and nothing else; two different decisions, on lines of their own or inside text; a decision inside a line of text or a quotation (">")
  alone; a decision beside a question under one of the agent's headers. The same decision may be repeated;
- who chooses a side says so on a line of its own in its first message, "Side: accept" or "Side: reject", as a decision is written, and
  names no other side on such a line; its message is the whole reply;
- after a decision nothing is written to any channel;
- an agent that writes to one channel writes its whole reply there. One that writes to several needs the header of each exactly once, at
  the start of a line (markdown marks before it are overlooked), with text after it. A channel's message runs from its header, which
  stays, to the next header; what stands before the first header is read by nobody;
- an empty reply, and one of more than `MAX_CHARACTERS`, is refused.
Everything takes time linear in the length of the reply.
"""

import re
from collections.abc import Mapping, Sequence

from nip_ray.play.dialogue import InvalidReply, Parsed, verdict_of
from nip_ray.protocols import DECISIONS
from nip_ray.scenarios.code_validation.scales import Scale

MAX_CHARACTERS = 100_000
"""The longest reply that is read."""

_INVISIBLE = (
    *range(0x09), *range(0x0E, 0x1C), 0x1F, *range(0x7F, 0x85), *range(0x86, 0xA0), 0xAD, 0x61C, 0x180E, *range(0x200B, 0x2010),
    *range(0x202A, 0x202F), *range(0x2060, 0x2070), 0xFEFF, *range(0xE0000, 0xE0080),
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
"""What the line starts with in which an agent chooses its side."""
_MENTION = re.compile(r"\bdecision\s*:\s*(\w+)")


def read_reply(reply: str, channels: Sequence[str], headers: Mapping[str, str], scale: Scale | None) -> Parsed:
    """What `reply` says.

    channels: where the agent writes in this round. headers: channel -> what must stand before its message where there are several.
    scale: of the agent's decisions, None for one that does not decide. Raises InvalidReply, with the reason, as the module says.
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
    """The confidence that `reply` states, None where it states no decision. Raises InvalidReply where that is in doubt."""
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
    """REJECT or ACCEPT, the side that the agent chooses. Raises InvalidReply where it names none, or both."""
    lines = (line.lstrip(_BEFORE).rstrip(_AFTER) for line in reply.translate(_OVERLOOKED).lower().splitlines())
    chosen = {found[1] for line in lines if (found := _SIDE.fullmatch(line))}
    if len(chosen) != 1:
        raise InvalidReply("the first message must choose one side, on a line of its own: 'Side: accept' or 'Side: reject'")
    return DECISIONS.index(chosen.pop())


def read_messages(reply: str, channels: Sequence[str], headers: Mapping[str, str]) -> dict[str, str]:
    """Channel -> message. Raises InvalidReply where there are several channels, and a header is missing, repeated or without text."""
    if len(channels) == 1:
        return {channels[0]: reply.strip()}
    found = _header_lines(reply, {channel: headers[channel] for channel in channels})
    for channel, places in found.items():
        if len(places) != 1:
            raise InvalidReply(f"{headers[channel]!r} must stand exactly once at the start of a line (found {len(places)} times)")
    starts = sorted((places[0], channel) for channel, places in found.items())
    ends = [start for start, _ in starts[1:]] + [len(reply)]
    messages = {channel: reply[start:end].strip() for (start, channel), end in zip(starts, ends)}
    for channel, message in messages.items():
        if not message.lstrip(_BEFORE_HEADER).replace("\\_", "_")[len(headers[channel]) :].translate(_OVERLOOKED).strip():
            raise InvalidReply(f"nothing stands after {headers[channel]!r}")
    return {channel: messages[channel] for channel in channels}


def _header_lines(reply: str, headers: Mapping[str, str]) -> dict[str, list[int]]:
    """Channel -> where the lines start that its header begins."""
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
