"""Read fine-tuning data in the OpenAI form, and turn it into tokens.

    supervised: {"messages": [{"role", "content", "name"?, "weight"?}, ...]}
    dpo:        {"input": {"messages": [...]}, "preferred_output": [message], "non_preferred_output": [message]}

Decisions that matter here:
- supervised learning is only on assistant messages: each one, from the first token after its role marker to the token
  that ends it, unless its weight is 0;
- tokens are made by the same `ChatFormat` as in inference, so a model learns in the form in which it is used. If the
  template begins each reply with reasoning, it learns to end that at once and to reply; there only the last message of
  an example is learned, since templates show earlier ones without;
- a chat that is too long loses its middle, as a prompt does.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from nip_ray.errors import UserError
from nip_ray.learning.token_rows import common_beginning
from nip_ray.progress import say
from nip_ray.serving.chat_format import ChatFormat
from nip_ray.serving.fine_tuning_job import Method

IGNORED = -100
"""The label of a token that is not learned."""
_ROLES = ("system", "developer", "user", "assistant", "tool")


@dataclass(frozen=True)
class Example:
    """One line. supervised: `messages` alone. dpo: `messages` is the input, `preferred` and `rejected` are replies to
    it."""

    messages: list[dict[str, Any]]
    preferred: str = ""
    rejected: str = ""


def parse_examples(data: bytes, method: Method) -> list[Example]:
    """All examples. Raises UserError that names the line if the data does not have the form of `method`."""
    examples = []
    for number, line in enumerate(data.splitlines(), 1):
        if line.strip():
            try:
                read = json.loads(line)
                json.dumps(read, ensure_ascii=False).encode()  # half of a surrogate pair has no tokens
                examples.append(_example(read, method))
            except UnicodeEncodeError as error:
                half = ascii(error.object[error.start]).strip("'")
                raise UserError(
                    f"training data: line {number} holds {half}, half of a surrogate pair; write whole characters"
                ) from None
            except (ValueError, KeyError, TypeError, RecursionError) as error:
                reason = f"{error.args[0]!r} is missing" if isinstance(error, KeyError) else str(error)
                raise UserError(f"training data: line {number} is not of the form for {method}: {reason}") from None
    if not examples:
        raise UserError("training data: there is no example in it")
    return examples


def supervised_rows(examples: Sequence[Example], chat: ChatFormat) -> list[dict[str, list[int]]]:
    """For each example `input_ids` and `labels` (T,); labels are the ids where they are learned, else IGNORED."""
    rows, num_cut = [], 0
    for example in examples:
        ids, learned = _with_labels(example.messages, chat)
        labels = [token if wanted else IGNORED for token, wanted in zip(ids, learned)]
        num_cut += len(ids) > chat.context
        rows.append({"input_ids": chat.cut(ids, chat.context), "labels": chat.cut(labels, chat.context)})
    _warn_of_cut(num_cut, len(rows), chat)
    return rows


def preference_rows(examples: Sequence[Example], chat: ChatFormat) -> list[dict[str, list[int]]]:
    """For each example `prompt_ids`, `chosen_ids` and `rejected_ids`, each output with the token that ends it.

    Pairs whose outputs are the same, or became so by the cut, are left out. Raises UserError if none is left.
    """
    rows, num_cut = [], 0
    for example in examples:
        prompt = chat.prompt(example.messages)
        chosen, rejected = (chat.reply(example.messages, said) for said in (example.preferred, example.rejected))
        if chosen == rejected:
            continue
        room = chat.context - max(len(chosen), len(rejected))
        num_cut += len(prompt) > max(room, 1)
        rows.append({"prompt_ids": chat.cut(prompt, max(room, 1)), "chosen_ids": chosen, "rejected_ids": rejected})
    if not rows:
        raise UserError(
            f"training data: both outputs of every pair are the same in a context of {chat.context} tokens, raise"
            " max_length"
        )
    if equal := len(examples) - len(rows):
        say(
            f"warning: {equal} of {len(examples)} pairs are left out: both outputs are the same in a context of"
            f" {chat.context} tokens"
        )
    _warn_of_cut(num_cut, len(rows), chat)
    return rows


def _warn_of_cut(num_cut: int, count: int, chat: ChatFormat) -> None:
    """Warn of examples that lost their middle."""
    if num_cut:
        say(
            f"warning: {num_cut} of {count} examples are longer than the context of {chat.context} tokens and lose"
            " their middle"
        )


def _with_labels(messages: list[dict[str, Any]], chat: ChatFormat) -> tuple[list[int], list[bool]]:
    """All tokens of a chat, up to the end of its last learned message, and a mask of the learned ones."""
    own = [i for i, message in enumerate(messages) if message["role"] == "assistant" and message.get("weight", 1) != 0]
    before = messages[: own[-1]]
    if chat.opened:
        prompt, said = chat.prompt(before), chat.reply(before, messages[own[-1]]["content"])
        return [*prompt, *said], [False] * len(prompt) + [True] * len(said)
    ids = chat.completed(messages[: own[-1] + 1])
    starts = [common_beginning(chat.prompt(messages[:index]), ids) for index in own]
    ids = [*ids[: starts[-1]], *chat.up_to_end(ids[starts[-1] :])]
    learned = [False] * len(ids)
    for index, start, following in zip(own, starts, [*starts[1:], len(ids)]):
        end = next((at + 1 for at in range(start, following) if ids[at] in chat.ends), None)
        if end is None:  # a template that marks where a message begins, but not where it ends
            end = common_beginning(chat.completed(messages[: index + 1]), ids[:following])
        learned[start:end] = [True] * (end - start)
    return ids, learned


def _example(line: Any, method: Method) -> Example:
    if method == "supervised":
        messages = _messages(line["messages"])
        if not any(message["role"] == "assistant" and message.get("weight", 1) != 0 for message in messages):
            raise ValueError("no message in it is by an assistant (with a weight other than 0)")
        return Example(messages)
    return Example(
        _messages(line["input"]["messages"]), _output(line["preferred_output"]), _output(line["non_preferred_output"])
    )


def _messages(given: Any) -> list[dict[str, Any]]:
    if not isinstance(given, list) or not given:
        raise ValueError("messages are a list of at least one")
    for message in given:
        if message["role"] not in _ROLES:
            raise ValueError(f"the role of a message is one of {', '.join(_ROLES)}, not {message['role']!r}")
        if not isinstance(message["content"], str) or not isinstance(message.get("name") or "", str):
            raise ValueError("the content and the name of a message are text")
    return given


def _output(given: Any) -> str:
    if not isinstance(given, list) or len(given) != 1 or given[0]["role"] != "assistant":
        raise ValueError("an output is a list of one message by an assistant")
    return _messages(given)[0]["content"]
