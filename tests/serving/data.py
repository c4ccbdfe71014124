"""Training data with a rule, for tests of learning: the answer depends on a word of the question."""

import json
from random import Random

from nip_ray.play.dialogue import Chat

ANSWERS = {"red": "Decision: accept", "blue": "Decision: reject"}


def chat(draw: Random) -> tuple[Chat, str, str]:
    """A question, the answer by the rule, and the other one."""
    colour = draw.choice(sorted(ANSWERS))
    other = next(name for name in ANSWERS if name != colour)
    noise = " ".join(draw.choice(["item", "value", "list", "number"]) for _ in range(draw.randint(1, 4)))
    messages = [
        {"role": "system", "content": "Answer by the colour."},
        {"role": "user", "name": "Expert_1", "content": f"{noise} {draw.randint(0, 99)} is {colour}"},
    ]
    return messages, ANSWERS[colour], ANSWERS[other]


def chats(seed: int, count: int) -> list[tuple[Chat, str, str]]:
    draw = Random(seed)
    return [chat(draw) for _ in range(count)]


def supervised(examples: list[tuple[Chat, str, str]]) -> bytes:
    return _lines([{"messages": [*messages, _said(right)]} for messages, right, _ in examples])


def preferences(examples: list[tuple[Chat, str, str]]) -> bytes:
    rows = [
        {"input": {"messages": messages}, "preferred_output": [_said(right)], "non_preferred_output": [_said(wrong)]}
        for messages, right, wrong in examples
    ]
    return _lines(rows)


def _said(content: str) -> dict[str, str]:
    return {"role": "assistant", "content": content}


def _lines(rows: list[dict]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()
