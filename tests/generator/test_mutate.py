"""Mutants: what each operator does, and that they look like programs that nobody mutated."""

from random import Random

import pytest

from scripts.code_validation.batch import run_batch
from scripts.code_validation.families import FAMILIES, Family
from scripts.code_validation.mutate import Mutant, mutants, normalise

SOURCE = """
def f(values, limit):   # a comment
    total = 0
    for i in range(len(values)):
        if values[i] < limit and i != 2:
            total += values[i]
    return max(total, limit)
"""


def texts(source: str, operator: str) -> set[str]:
    """The mutants of one operator."""
    return {mutant.text for mutant in mutants(source, Random(0)) if mutant.operator == operator}


CASES = [
    ("x = a < b", "comparison", {"x = a <= b"}),
    ("x = a == b", "comparison", {"x = a <= b", "x = a >= b"}),
    ("x = 1 if a in b else 2", "negation", {"x = 1 if a not in b else 2"}),
    ("x = 1 if not a else 2", "negation", {"x = 1 if a else 2"}),
    ("x = a and b", "boolean", {"x = a or b", "x = a", "x = b"}),
    ("x = 3", "constant", {"x = 4", "x = 2"}),
    ("x = 0", "constant", {"x = 1"}),
    ("x = True", "constant", set()),
    ("x = a % b", "arithmetic", {"x = a // b"}),
    ("x = -a", "arithmetic", {"x = +a"}),
    ("def f():\n    x += a", "arithmetic", {"def f():\n    x -= a", "def f():\n    x = a"}),
    ("x = a[i]", "index", {"x = a[i + 1]", "x = a[i - 1]"}),
    ("x = a[i - 1]", "index", {"x = a[i]"}),
    ("x = a[:n]", "index", {"x = a[:n + 1]", "x = a[:n - 1]", "x = a[1:n]"}),
    ("x = range(n)", "range", {"x = range(n + 1)", "x = range(n - 1)", "x = range(1, n)"}),
    ("x = range(1, n + 1)", "range", {"x = range(1, n)"}),
    ("if a:\n    b()\nelse:\n    c()", "dropped", {"if a:\n    b()", "c()"}),
    ("x = [a for a in b if a]", "dropped", {"x = [a for a in b]"}),
    ("x = sorted(a, reverse=True)", "dropped", {"x = sorted(a)"}),
    ("a()\nb()", "dropped", {"a()", "b()"}),
    ("for a in b:\n    c()\nreturn_()", "indentation", {"for a in b:\n    c()\n    return_()"}),
    ("for a in b:\n    c()\n    d()", "indentation", {"for a in b:\n    c()\nd()"}),
    ("x = a - b", "exchange", {"x = b - a"}),
    ("x = a if b else c", "exchange", {"x = c if b else a"}),
    ("x = f(a, b)", "exchange", {"x = f(b, a)"}),
    ("x = min(a)", "function", {"x = max(a)"}),
    ("x = a.lower()", "function", {"x = a.upper()"}),
    ("x = a[0]", "start", {"x = 0"}),
    ("x = None", "start", {"x = 0"}),
    ("def f(a, b):\n    return a", "variable", {"def f(a, b):\n    return b"}),
    ("for a in b:\n    continue", "jump", {"for a in b:\n    break"}),
]


@pytest.mark.parametrize(("source", "operator", "expected"), CASES)
def test_operators(source: str, operator: str, expected: set[str]) -> None:
    assert texts(source, operator) == expected


def test_an_edit_is_taken_back() -> None:
    original = normalise(SOURCE).splitlines()
    for mutant in mutants(SOURCE, Random(3)):
        lines = mutant.text.splitlines()
        if len(lines) == len(original) and mutant.operator not in ("indentation", "dropped"):
            assert sum(a != b for a, b in zip(lines, original)) == 1, mutant


def test_mutants_are_deterministic_and_different() -> None:
    first = list(mutants(SOURCE, Random(1)))
    assert first == list(mutants(SOURCE, Random(1)))
    other = list(mutants(SOURCE, Random(2)))
    assert {mutant.text for mutant in first} == {mutant.text for mutant in other}
    assert first != other
    assert len({mutant.text for mutant in first}) == len(first)
    assert normalise(SOURCE) not in {mutant.text for mutant in first}


def test_operators_take_turns() -> None:
    """The first few are of different kinds, although most mutants are of one or two."""
    first: list[Mutant] = [mutant for mutant, _ in zip(mutants(SOURCE, Random(0)), range(8))]
    assert len({mutant.operator for mutant in first}) == 8


@pytest.mark.parametrize("family", FAMILIES[::5], ids=lambda family: family.name)
def test_layout_tells_nothing(family: Family) -> None:
    """Mutants and right programs are both as the normaliser prints them, and mutants can be compiled."""
    solution = family.make(Random(0)).solutions[-1]
    assert normalise(normalise(solution)) == normalise(solution)
    for mutant in mutants(solution, Random(0)):
        assert normalise(mutant.text) == mutant.text
        compile(mutant.text, "mutant", "exec")


def test_most_mutants_are_wrong_and_run() -> None:
    """The operators earn their place: a third of the mutants returns a wrong value in some test."""
    problem = next(family for family in FAMILIES if family.name == "longest_climb").make(Random(0))
    made = list(mutants(problem.solutions[0], Random(0)))
    rows = run_batch([mutant.text for mutant in made], problem.function_name, problem.calls, 0.02)
    wrong = [
        mutant
        for mutant, row in zip(made, rows)
        if any(r.kind == "value" and r.value != e for r, e in zip(row, problem.results))
    ]
    assert len(wrong) > len(made) / 3
    assert len({mutant.operator for mutant in wrong}) >= 6
