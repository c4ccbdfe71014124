"""Batches of candidates: results in order, whatever some candidates do."""

import pytest

from scripts.code_validation.batch import run_batch

GOOD = "def f(x):\n    return x * 2"

BAD = {
    "loop": ("def f(x):\n    while True: pass", ("timeout", None)),
    "swallowing loop": ("def f(x):\n    while True:\n        try: x += 1\n        except: pass", ("timeout", None)),
    "one long operation": ("def f(x): return 7 ** 7 ** 9", ("timeout", None)),
    "sleep": ("import time\ndef f(x): time.sleep(100)", ("timeout", None)),
    "recursion": ("def f(x): return f(x)", ("error", "RecursionError")),
    "death": ("import os\ndef f(x): os._exit(0)", ("error", "ProcessDied")),
    "crash": ("import ctypes\ndef f(x): ctypes.string_at(0)", ("error", "ProcessDied")),
    "syntax": ("def f(x) return", ("error", "SyntaxError")),
    "name": ("def g(x): pass", ("error", "NameError")),
    "exception": ("def f(x): raise KeyError(x)", ("error", "KeyError")),
    "exit": ("def f(x): raise SystemExit", ("error", "SystemExit")),
    "memory": ("def f(x): return [0] * 10 ** 10", ("error", "MemoryError")),
    "set": ("def f(x): return {x}", ("error", "NotJSON")),
    "long value": ("def f(x): return 'a' * 10 ** 6", ("error", "ValueTooLarge")),
    "many digits": ("import sys\nsys.set_int_max_str_digits(0)\ndef f(x): return 10 ** 5000", ("error", "NotJSON")),
    "deep value": ("def f(x):\n    for _ in range(50_000): x = [x]\n    return x", ("error", "NotJSON")),
    "value too deep": ("def f(x):\n    for _ in range(501): x = [{1: x}]\n    return x[0][1]", ("error", "NotJSON")),
    "input": ("def f(x): return input()", ("error", "EOFError")),
    "long number": ("import sys\nsys.set_int_max_str_digits(0)\ndef f(x): return 10 ** 5000", ("error", "NotJSON")),
    "deep list": (
        (
            "import sys\nsys.setrecursionlimit(10 ** 6)\ndef f(x):\n    a = []\n    for _ in range(20_000): a = [a]\n  "
            "  return a"
        ),
        ("error", "NotJSON"),
    ),
    "arity": ("def f(): return 1", ("error", "TypeError")),
    "loop at loading": ("while True: pass", ("timeout", None)),
    "error at loading": ("1 / 0\ndef f(x): return x", ("error", "ZeroDivisionError")),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_candidates_between_good_ones(name: str) -> None:
    source, expected = BAD[name]
    results = run_batch([GOOD, source, GOOD], "f", [[1], [2]], per_call_s=0.1)
    assert results == [[("value", 2), ("value", 4)], [expected, expected], [("value", 2), ("value", 4)]]


def test_only_some_calls_are_bad() -> None:
    source = (
        "import os\ndef f(x):\n    if x == 2: os._exit(1)\n    if x == 3:\n        while True: pass\n    return 1 // x"
    )
    results = run_batch([source, GOOD], "f", [[0], [1], [2], [3], [4]], per_call_s=0.1)
    assert [result.kind for result in results[0]] == [
        "error",
        "value",
        "error",
        "timeout",
        "timeout",
    ], "time-outs are final"
    assert results[0][2] == ("error", "ProcessDied")
    assert [result.value for result in results[1]] == [0, 2, 4, 6, 8]


def test_functions_live_in_a_module() -> None:
    source = """
from __future__ import annotations
import pickle, typing
from dataclasses import dataclass
@dataclass
class Pair:
    n: int
    other: Pair | None = None
def f(n):
    if n == 3: exit()
    return pickle.loads(pickle.dumps(Pair(n))).n + len(typing.get_type_hints(Pair))
"""
    expected = [("value", 3), ("value", 4), ("error", "SystemExit")]
    assert run_batch([source, GOOD, source], "f", [[1], [2], [3]]) == [
        expected,
        [("value", 2), ("value", 4), ("value", 6)],
        expected,
    ]


def test_values_are_those_of_json_and_arguments_are_fresh() -> None:
    source = "def f(x, y):\n    x.append(y)\n    print('noise')\n    return {'x': x, 'y': (1, None, True, 2.5, 'é')}"
    results = run_batch([source], "f", [[[1], 2], [[1], 2]])
    assert results[0] == [("value", {"x": [1, 2], "y": [1, None, True, 2.5, "é"]})] * 2
