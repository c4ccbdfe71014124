"""Constrain a reply to a small JSON schema, token by token: an object of fields in a fixed order, each null, a text or
one of some values.

Decisions that matter here:
- one spelling is written: fields in the schema's order, ", " and ": " between, no other space. The possible
  continuations are a state of a deterministic automaton over characters: the part of the object, and its text so far;
- a token is allowed if all its characters are, one after the other. The allowed tokens are computed once for each
  state, so the distribution is the model's own, restricted to them. Tokens that are part of a character's bytes are
  never allowed: a reply only has characters that the vocabulary has whole. Inside a text an escape is one of two
  characters, never a code point;
- a reply ends when the object does. A reply near its limit of tokens is completed on the shortest way (text closed,
  null for missing fields), so that every reply is complete;
- if the template begins each reply with reasoning, that is free up to the mark that ends it, and may then use up the
  limit.
"""

import json
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch import Tensor

from nip_ray.errors import UserError
from nip_ray.play.dialogue import MARK

_MOST_FIELDS, _MOST_VALUES = 16, 512
_ESCAPES = frozenset('"\\/bfnrt')


class Part(NamedTuple):
    """A piece of the object: one of `literals`, or if `free` any text in quotation marks (no literal begins with
    one)."""

    literals: tuple[str, ...]
    free: bool = False


class State(NamedTuple):
    """part: of the next character. written: text of that part so far; of a free text its opening mark, and a trailing
    backslash."""

    part: int
    written: str = ""


def parts_of(schema: Mapping[str, Any]) -> tuple[Part, ...]:
    """The object piece by piece. Raises ValueError, with the supported forms, for any other schema."""
    wrong = ValueError(
        'expected {"type": "object", "properties": {...}, "required": [all of them], "additionalProperties": false}'
        ' whose properties are {"type": "string"}, {"enum": [texts or whole numbers]}, or {"anyOf": [{"type": "null"},'
        " one of these]}"
    )
    fields = schema.get("properties")
    named = schema.keys() <= {"type", "properties", "required", "additionalProperties"}
    if not (
        named
        and schema.get("type") == "object"
        and schema.get("additionalProperties") is False
        and isinstance(fields, dict)
    ):
        raise wrong
    required = schema.get("required")
    if not (
        0 < len(fields) <= _MOST_FIELDS and isinstance(required, list) and sorted(map(str, required)) == sorted(fields)
    ):
        raise wrong
    parts: list[Part] = []
    for number, (name, field) in enumerate(fields.items()):
        parts += [Part(((", " if number else "{") + json.dumps(name) + ": ",)), _value(field, wrong)]
    return (*parts, Part(("}",)))


def _value(field: Any, wrong: ValueError) -> Part:
    kinds = field["anyOf"] if isinstance(field, dict) and field.keys() == {"anyOf"} else [field]
    if not isinstance(kinds, list) or not all(isinstance(kind, dict) for kind in kinds):
        raise wrong
    others = [kind for kind in kinds if kind != {"type": "null"}]
    if len(others) != 1:
        raise wrong
    null = ("null",) if len(others) < len(kinds) else ()
    if others[0] == {"type": "string"}:
        return Part(null, free=True)
    values = others[0].get("enum")
    if others[0].keys() - {"type", "enum"} or not isinstance(values, list) or not 0 < len(values) <= _MOST_VALUES:
        raise wrong
    kind: Any = {"string": str, "integer": int}.get(
        others[0].get("type", "string" if isinstance(values[0], str) else "integer")
    )
    if kind is None or not all(type(value) is kind for value in values):
        raise wrong
    return Part((*null, *dict.fromkeys(map(json.dumps, values))))


class Grammar:
    """A schema for one vocabulary; all replies under it share its caches. Its methods are thread-safe."""

    def __init__(self, schema: Mapping[str, Any], pieces: Sequence[str]) -> None:
        """pieces: see `ChatFormat.pieces`. Raises UserError for a schema that is unknown or beyond these pieces."""
        try:
            self._parts = parts_of(schema)
        except ValueError as error:
            raise UserError(f"response_format: {error}") from None
        self._by_first: dict[str, list[tuple[int, str]]] = defaultdict(list)
        self._token: dict[str, int] = {}
        for token, piece in enumerate(pieces):
            if piece:
                self._by_first[piece[0]].append((token, piece))
                self._token.setdefault(piece, token)
        self._pieces, self._longest = pieces, max(map(len, self._token), default=0)
        self._allowed: dict[State, Tensor] = {}

    def after(self, state: State, token: int) -> State | None:
        """The state after a token, None if that is not allowed."""
        return self._after(state, self._pieces[token]) if token < len(self._pieces) and self._pieces[token] else None

    def is_end(self, state: State) -> bool:
        """True if the object is complete."""
        return state.part == len(self._parts)

    def allowed(self, state: State) -> Tensor:
        """The numbers of the tokens that may come next (any order)."""
        found = self._allowed.get(state)
        if found is None:
            firsts = [char for char in self._by_first if self._after(state, char) is not None]
            numbers = [
                token
                for char in firsts
                for token, piece in self._by_first[char]
                if self._after(state, piece) is not None
            ]
            found = self._allowed[state] = torch.tensor(numbers)
        return found

    def way_out(self, state: State) -> list[int]:
        """Tokens that complete the object from here, on a short way."""
        text = ""
        while not self.is_end(state):
            rest = self._shortest(state)
            text, state = text + rest, State(state.part + 1)
        tokens = []
        while text:
            size = next((n for n in range(min(self._longest, len(text)), 0, -1) if text[:n] in self._token), 0)
            if not size:
                raise UserError(
                    f"response_format: the model's vocabulary cannot write {text[0]!r}, which the schema needs"
                )
            tokens.append(self._token[text[:size]])
            text = text[size:]
        return tokens

    @cached_property
    def reserve(self) -> int:
        """The maximum length of a way out from any state."""
        states = []
        for number, part in enumerate(self._parts):
            starts = {beginning for literal in part.literals for beginning in accumulate(literal[:-1], initial="")}
            states += [State(number, written) for written in (*starts, *(('"', '"\\') if part.free else ()))]
        return max(len(self.way_out(state)) for state in states)

    def _shortest(self, state: State) -> str:
        """The shortest completion of the state's part."""
        part = self._parts[state.part]
        if part.free and state.written.startswith('"'):
            return '"' if state.written == '"' else 'n"'
        ends = [literal[len(state.written) :] for literal in part.literals if literal.startswith(state.written)]
        return "null" if "null" in ends else min(ends or ['""'], key=len)

    def _after(self, state: State | None, text: str) -> State | None:
        for char in text:
            state = None if state is None else self._step(state, char)
        return state

    def _step(self, state: State, char: str) -> State | None:
        if self.is_end(state):
            return None
        part = self._parts[state.part]
        if part.free and state.written.startswith('"'):
            if state.written == '"\\':
                return State(state.part, '"') if char in _ESCAPES else None
            if char in '"\\':
                return State(state.part + 1) if char == '"' else State(state.part, '"\\')
            return state if char >= " " and not "\ud800" <= char <= "\udfff" else None
        written = state.written + char
        if part.free and written == '"':
            return State(state.part, written)
        longer = [literal for literal in part.literals if literal.startswith(written)]
        if longer == [written]:  # nothing longer has this prefix
            return State(state.part + 1)
        if longer:
            return State(state.part, written)
        if state.written in part.literals:  # 1, where 10 was possible
            return self._step(State(state.part + 1), char)
        return None


class Writer:
    """One reply under a grammar. hurried: completed early because of its limit. complete: the object is complete."""

    def __init__(self, grammar: Grammar, max_tokens: int, reasons: bool = False) -> None:
        """reasons: it begins inside reasoning. Raises UserError if the limit is too small for the shortest object."""
        if max_tokens < grammar.reserve:
            raise UserError(f"max_tokens: {max_tokens}, but the schema needs up to {grammar.reserve}")
        self._grammar, self._left, self._state = grammar, max_tokens, None if reasons else State(0)
        self.hurried = self.complete = False

    def allowed(self) -> Tensor | None:
        """The tokens that may come next, None for any."""
        if self._state is None:
            return None
        if self._left <= self._grammar.reserve:
            self.hurried = True
            return torch.tensor(self._grammar.way_out(self._state)[:1])
        return self._grammar.allowed(self._state)

    def add(self, token: int, text: Callable[[], str]) -> None:
        """Add a sampled token. text: returns the reply so far."""
        self._left -= 1
        if self._state is None:
            if any(mark[1] for mark in MARK.finditer(text())):
                self._state = State(0)
            return
        self._state = self._grammar.after(self._state, token)
        assert self._state is not None, "a token was drawn that is not allowed"
        self.complete = self._grammar.is_end(self._state)
