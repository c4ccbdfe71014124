"""Families of problems, and the way from a draft to a problem: wording, names, hidden tests, results.

Decisions that matter here:
- a family is data: plain text and plain Python. In both, `$name` is a fact of the draft; in the text, `<one|another>`
  is a choice of words. All other variation is made here;
- the solutions define `solve`, and use names of `names.py`. Function, parameters and variables are renamed at random,
  those of the signature alike in all solutions and between the question's backticks;
- the first solution defines the right results. It is run in this process, like the expressions that draw calls: both
  are programs of this repository, never a user's.
"""

import ast
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from string import Template, ascii_lowercase
from textwrap import dedent
from typing import Any

from nip_ray.settings.code_validation import Difficulty

from .names import POOLS

NUM_CALLS = 18
_MOST_EXAMPLE_CHARACTERS = 90
_CHOICE = re.compile(r"<([^<>|]*(?:\|[^<>|]*)+)>")
_CODE = re.compile(r"`[^`]*`")
_NAME = re.compile(r"[A-Za-z_]\w*")


@dataclass(frozen=True)
class Problem:
    """A problem.

    question: the statement, with an example. solutions: correct programs. function_name: defined by them. calls: hidden
    tests, lists of arguments in JSON's form. results: the function's return value for each, in JSON's form.
    """

    question: str
    solutions: tuple[str, ...]
    function_name: str
    calls: tuple[list[Any], ...]
    results: tuple[Any, ...]


@dataclass(frozen=True)
class Draft:
    """A problem before names and words are chosen. See the module for the form of its texts.

    names: names that the function may have, separated by spaces. solutions: correct programs that define `solve`.
    sample: draws a call. edges: calls that are always among the tests. facts: values of `$name`.
    """

    names: str
    question: str
    solutions: Sequence[str]
    sample: Callable[[], list[Any]]
    edges: Sequence[list[Any]] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)


class Draw:
    """Random values, from one seeded generator."""

    def __init__(self, rng: Random) -> None:
        """rng: their source."""
        self.rng = rng

    def pick(self, *options: Any) -> Any:
        """One of the options."""
        return self.rng.choice(options)

    def number(self, low: int, high: int) -> int:
        """A number from `low` to `high`, both included."""
        return self.rng.randint(low, high)

    def coin(self) -> bool:
        """Heads or tails."""
        return self.rng.random() < 0.5

    def numbers(self, shortest: int, longest: int, low: int, high: int) -> list[int]:
        """A list of numbers, of random length."""
        return [self.rng.randint(low, high) for _ in range(self.rng.randint(shortest, longest))]

    def distinct(self, count: int, low: int, high: int) -> list[int]:
        """`count` different numbers, in random order."""
        return self.rng.sample(range(low, high + 1), count)

    def text(self, shortest: int, longest: int, alphabet: str = ascii_lowercase) -> str:
        """Random letters."""
        return "".join(self.rng.choice(alphabet) for _ in range(self.rng.randint(shortest, longest)))

    def texts(
        self, shortest: int, longest: int, alphabet: str = "abcdef", letters: tuple[int, int] = (1, 6)
    ) -> list[str]:
        """A list of words of `letters` letters."""
        return [self.text(*letters, alphabet) for _ in range(self.rng.randint(shortest, longest))]

    def spans(self, most: int) -> list[list[int]]:
        """Up to `most` pairs of a start and an end after it."""
        starts = self.numbers(1, most, 0, 14)
        return [[start, start + self.number(1, 6)] for start in starts]

    def grid(self, rows: int, columns: int, cells: str | Sequence[Any]) -> list[list[Any]]:
        """Rows of random cells."""
        return [[self.rng.choice(cells) for _ in range(columns)] for _ in range(rows)]


@dataclass(frozen=True)
class Family:
    """Problems of one kind. draft: draws one of them, before names and words are chosen."""

    name: str
    difficulty: Difficulty
    draft: Callable[[Draw], Draft]

    def make(self, rng: Random) -> Problem:
        """A problem; the same state of `rng` gives the same one."""
        return finish(self.draft(Draw(rng)), rng)


def family_of(name: str, difficulty: Difficulty, entry: Mapping[str, Any]) -> Family:
    """The family of an entry of the tables beside this file (see `__init__.py` for their keys)."""
    begin = compile(entry.get("draw", ""), f"<{name}: draw>", "exec")
    facts = compile(entry.get("facts", "{}"), f"<{name}: facts>", "eval")
    edges = compile(entry.get("edges", "[]"), f"<{name}: edges>", "eval")
    call = compile(entry["call"], f"<{name}: call>", "eval")

    def draft(draw: Draw) -> Draft:
        space: dict[str, Any] = {"draw": draw}
        exec(begin, space)
        return Draft(
            entry["names"],
            entry["question"],
            entry["solutions"],
            lambda: eval(call, space),
            eval(edges, space),
            eval(facts, space),
        )

    return Family(name, difficulty, draft)


def finish(draft: Draft, rng: Random) -> Problem:
    """The problem of a draft: words, names, tests and results."""
    sources = [dedent(Template(source).substitute(draft.facts)) for source in draft.solutions]
    calls = _calls(draft)
    results = run(sources[0], "solve", calls)
    shared = _signature_names(sources, draft.names.split(), rng)
    question = _worded(Template(draft.question).substitute(draft.facts), shared, rng)
    samples = [(call, result) for call, result in zip(calls, results) if call not in draft.edges]
    examples = _examples(shared["solve"], samples, rng)
    return Problem(
        f"{question}\n\n{examples}",
        tuple(_renamed(source, shared, rng) for source in sources),
        shared["solve"],
        tuple(calls),
        tuple(results),
    )


def run(source: str, name: str, calls: Sequence[list[Any]]) -> list[Any]:
    """The results of the function `name` of a solution of this repository for each call, in JSON's form."""
    space: dict[str, Any] = {}
    exec(compile(source, "<solution>", "exec"), space)
    return [json.loads(json.dumps(space[name](*json.loads(json.dumps(call))))) for call in calls]


def _calls(draft: Draft) -> list[list[Any]]:
    """The edges and then samples, all different while that is possible."""
    calls = [edge for i, edge in enumerate(draft.edges) if edge not in draft.edges[:i]]
    for _ in range(10 * NUM_CALLS):
        if len(calls) >= NUM_CALLS:
            break
        call = draft.sample()
        if call not in calls:
            calls.append(call)
    return calls


def _examples(name: str, samples: Sequence[tuple[list[Any], Any]], rng: Random) -> str:
    """A line with one or two calls and their results, short ones if there are any."""
    shown = [f"`{name}({', '.join(map(repr, call))})` returns `{result!r}`" for call, result in samples]
    short = [text for text in shown if len(text) <= _MOST_EXAMPLE_CHARACTERS]
    chosen = rng.sample(short, 2) if len(short) > 2 else sorted(shown, key=len)[:1]
    if len(chosen) == 1 or rng.random() < 0.5:
        return f"{rng.choice(('Example:', 'For example,', 'For instance,'))} {chosen[0]}."
    return f"Examples: {chosen[0]}; {chosen[1]}."


def _worded(text: str, shared: Mapping[str, str], rng: Random) -> str:
    """The question with its words chosen, and with the signature's new names between backticks."""
    while _CHOICE.search(text):
        text = _CHOICE.sub(lambda match: rng.choice(match[1].split("|")), text)
    text = re.sub(r"\s+", " ", text).strip()
    return _CODE.sub(lambda match: _NAME.sub(lambda name: shared.get(name[0], name[0]), match[0]), text)


# ---------------------------------------------------------------------------------------------------------------- names


def _names_in(tree: ast.AST) -> list[str]:
    """All names of a program, in order of appearance."""
    found: dict[str, None] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            found[node.id] = None
        elif isinstance(node, ast.arg):
            found[node.arg] = None
        elif isinstance(node, ast.FunctionDef):
            found[node.name] = None
    return list(found)


def _signature_names(sources: Sequence[str], function_names: Sequence[str], rng: Random) -> dict[str, str]:
    """New names of the function and of its parameters."""
    trees = [ast.parse(source) for source in sources]
    function = next(node for node in trees[0].body if isinstance(node, ast.FunctionDef) and node.name == "solve")
    taken = {name for tree in trees for name in _names_in(tree) if name not in POOLS}
    chosen = {"solve": rng.choice(function_names)}
    for argument in function.args.args:
        chosen[argument.arg] = _new_name(argument.arg, taken | set(chosen.values()), rng)
    return chosen


def _new_name(name: str, taken: set[str], rng: Random) -> str:
    """A free name of the pool of `name`; `name` itself if it has no pool, which no other variable then gets."""
    if name not in POOLS:
        return name
    return rng.choice([option for option in POOLS[name] if option not in taken] or [f"new_{name}"])


def _renamed(source: str, shared: Mapping[str, str], rng: Random) -> str:
    """A solution with new names, printed from its syntax tree. Names without a pool (built-in functions, too) are
    unchanged."""
    tree = ast.parse(source)
    names = _names_in(tree)
    chosen = dict(shared)
    taken = {*shared.values(), *(name for name in names if name not in POOLS)}
    for name in names:
        if name not in chosen:
            chosen[name] = _new_name(name, taken, rng)
            taken.add(chosen[name])
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            node.id = chosen[node.id]
        elif isinstance(node, ast.arg):
            node.arg = chosen[node.arg]
        elif isinstance(node, ast.FunctionDef):
            node.name = chosen[node.name]
    return ast.unparse(tree)
