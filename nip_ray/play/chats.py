"""The form of chats: what providers and chat templates accept, and the reasoning that models write before a reply.

Decisions that matter here:
- scenarios write a chat as it happened: the system prompt, replies, what others said, notices as system messages wherever they fall.
  Templates of open-weight models refuse such chats (no user message, a system message that is not the first, two users in a row, no
  system role at all), so every chat is shaped before it is sent, and in the same way before it is learned from;
- shaping a chat up to one of the agent's replies gives the beginning of the shaped whole, so a model learns in the form in which it
  is asked;
- reasoning that stands in a reply is private to its agent: nobody is shown it and nothing is read from it.
"""

import re
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:  # configs know the shapes, and that needs no torch
    from nip_ray.play.dialogue import Chat, Message

Shape = Literal["openai", "alternating", "no_system"]
"""openai: one system message at most, and that first; a user message before each reply. alternating: besides, what stands between two
replies is one user message, and names of speakers stand in its text. no_system: besides, the system prompt begins the first user message.
"""
SHAPES: tuple[Shape, ...] = ("openai", "alternating", "no_system")
START, GO_ON = "Please begin.", "Please go on."
"""The user message before a reply where nobody has said anything: before the first one, and later."""

MARK = re.compile(r"(?:<|[\[◁](?=/?think[\]▷]))(/?)(?:think|thinking|thought|reasoning)[>\]▷]", re.IGNORECASE)
"""Of reasoning; "[Reasoning]" may be a heading. The group is a slash where it ends."""
OPENED = re.compile(r"(?:<(?:think|thinking|thought|reasoning)>|[\[◁]think[\]▷])(?=\s*\Z)", re.IGNORECASE)
"""A mark that begins reasoning, at the end of a text."""


def shape_chat(messages: "Chat", shape: Shape = "openai") -> "Chat":
    """`messages`, to which the assistant is about to reply, in this shape; see `Shape`. The last message is a user's."""
    shaped: Chat = []
    for message in messages:
        if message["role"] == "assistant":
            _before_reply(shaped)
        role = "user" if message["role"] == "system" and shaped else message["role"]
        shaped.append({**message, "role": role})
    _before_reply(shaped)
    if shape == "openai":
        return shaped
    merged: Chat = []
    for message in map(_with_name_in_text, shaped):
        if merged and _joins(merged[-1]["role"], message["role"], shape):
            merged[-1] = {"role": "user", "content": f"{merged[-1]['content']}\n\n{message['content']}"}
        else:
            merged.append(message)
    return merged


def split_reasoning(reply: str) -> tuple[str, str]:
    """(reasoning, the rest of `reply`). Reasoning is what stands between marks such as <think> and </think>, in any case; before a
    closing mark without an opening one (templates may open it in the prompt); and behind an opening mark that is never closed.
    """
    reasoning, rest, inside, start = [], [], False, 0
    for mark in MARK.finditer(reply):
        piece, start = reply[start : mark.start()], mark.end()
        closes = bool(mark[1])
        if closes and not inside:  # all before it is reasoning
            reasoning, rest = [*reasoning, *rest, piece], []
        else:
            (reasoning if inside else rest).append(piece)
        inside = not closes
    (reasoning if inside else rest).append(reply[start:])
    if not reasoning:
        return "", reply
    return "\n".join(filter(None, (piece.strip() for piece in reasoning))), "".join(rest).strip()


def _before_reply(shaped: "Chat") -> None:
    """See that a user spoke last."""
    if not shaped or shaped[-1]["role"] != "user":
        shaped.append({"role": "user", "content": GO_ON if any(message["role"] == "assistant" for message in shaped) else START})


def _joins(before: str, role: str, shape: Shape) -> bool:
    return role == "user" and (before == "user" or (before == "system" and shape == "no_system"))


def _with_name_in_text(message: "Message") -> "Message":
    name = message.get("name")
    return {"role": message["role"], "content": f"{name}: {message['content']}" if name else message["content"]}
