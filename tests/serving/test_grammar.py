"""Grammars of schemas: whatever is drawn among the tokens allowed is an object of the schema, whole within its
limit."""

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest
from jsonschema import validate

from nip_ray.errors import UserError
from nip_ray.scenarios.code_validation.parse import SCALES, reply_schema
from nip_ray.serving.chat_format import ChatFormat, load_format
from nip_ray.serving.grammar import Grammar, Writer

FIELD = {"type": "string"}


def schema_of(*fields: Any) -> dict[str, Any]:
    properties = {f"{number}": field for number, field in enumerate(fields)}
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


@pytest.fixture(scope="module")
def chat(default_dir: Path) -> ChatFormat:
    return load_format(default_dir, 8192)


@pytest.mark.parametrize(
    "schema",
    [
        *(reply_schema({"a": 'first "question"', "b": "second"}, scale) for scale in SCALES.values()),
        schema_of(FIELD, {"enum": [-1, 1, 10, 100]}, {"type": "string", "enum": ['"', "é\n"]}),
    ],
)
def test_random_tokens_make_objects_of_the_schema(schema: dict[str, Any], chat: ChatFormat) -> None:
    grammar, lengths = Grammar(schema, chat.pieces), set[int]()
    for seed in range(40):
        random, tokens = Random(seed), list[int]()
        limit = grammar.reserve + 2 * seed
        writer = Writer(grammar, limit)
        while not writer.complete:
            allowed = writer.allowed()
            tokens.append(random.choice(allowed.tolist()))
            writer.add(tokens[-1], str)
        validate(json.loads(chat.text(tokens)), schema)
        assert len(tokens) <= limit
        lengths.add(len(tokens))
    assert len(lengths) > 10


def test_reasoning_that_the_template_opened_is_free(chat: ChatFormat) -> None:
    writer = Writer(Grammar(schema_of(FIELD), chat.pieces), 100, reasons=True)
    writer.add(7, lambda: "Well.")
    assert writer.allowed() is None
    writer.add(7, lambda: "Well.</think>")
    allowed = writer.allowed()
    assert all(chat.pieces[token].startswith("{") for token in allowed.tolist())


@pytest.mark.parametrize(
    "schema",
    [
        {},
        schema_of(),
        schema_of({"type": "number"}),
        schema_of({"type": "string", "pattern": "a"}),
        schema_of({"enum": ["a", 1]}),
        schema_of(FIELD) | {"required": []},
        schema_of(FIELD) | {"additionalProperties": True},
        schema_of(FIELD) | {"$defs": {}},
    ],
)
def test_other_schemas_are_refused(schema: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="response_format: expected"):
        Grammar(schema, ["{"])


def test_what_cannot_be_written_is_refused(chat: ChatFormat) -> None:
    with pytest.raises(UserError, match=r"cannot write '\}'"):
        Writer(Grammar(schema_of(FIELD), [*'{"0: ']), 100)
    with pytest.raises(UserError, match="max_tokens: 3, but"):
        Writer(Grammar(schema_of(FIELD), chat.pieces), 3)
