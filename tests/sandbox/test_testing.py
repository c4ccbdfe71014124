"""Tests of solutions: verdicts, crashes, and solutions that would like to be right."""

from dataclasses import replace

import pytest

from nip_ray.sandbox.testing import run_calls, run_tests
from nip_ray.settings.sandbox import SandboxSettings

from .idioms import IDIOMS, WRONG

SETTINGS = SandboxSettings(wall_s=20.0, output_kb=16)
SHORT = replace(SETTINGS, wall_s=1.0)
SQUARES = [(f"{n}\n", f"{n * n}\n") for n in range(6)]


@pytest.mark.parametrize("name", IDIOMS)
def test_correct_programs_of_every_idiom_pass(name: str) -> None:
    assert run_tests(IDIOMS[name], [("21\n", "42\n")], SETTINGS).statuses == ("passed",)


@pytest.mark.parametrize("name", WRONG)
def test_programs_that_are_not_right_by_their_end(name: str) -> None:
    source, status = WRONG[name]
    assert run_tests(source, [("21\n", "42\n")], SETTINGS).statuses == (status,)


def test_outputs_may_be_as_long_as_what_is_expected() -> None:
    assert run_tests("print('x' * 300_000)", [("", "x" * 300_000)], SETTINGS).all_passed


@pytest.mark.parametrize("isolate_tests", [False, True])
def test_verdicts(isolate_tests: bool) -> None:
    solution = (
        "n = int(input())\nif n == 2: n = 7\nif n == 3: 1 / 0\nif n == 4: raise SystemExit(0)\nprint(n * n, '"
        " ')\nprint()"
    )
    report = run_tests(solution, SQUARES, SETTINGS, isolate_tests)
    assert report.statuses == ("passed", "passed", "failed", "crashed", "failed", "passed")
    assert (report.passed, report.failed, report.crashed, report.timed_out) == (3, 2, 1, 0)
    assert not report.all_passed


def test_bad_ends_of_some_tests() -> None:
    solution = """
import os, signal, sys, time
n = int(input())
if n == 1: os.kill(os.getpid(), 9)
if n == 2: time.sleep(100)
if n == 3: print("x" * 100_000)
if n == 4:
    try: os.kill(os.getppid(), 9)
    except OSError: pass
    os._exit(1)
print(n * n)
"""
    report = run_tests(solution, SQUARES, SHORT)
    assert report.statuses == ("passed", "crashed", "timeout", "crashed", "crashed", "passed")


def test_lines_end_at_a_newline_only() -> None:
    solution = 'print(input() + "\\x0b2\\x1c3\\u20284 \\t")\nprint("5")\nprint()'
    assert run_tests(solution, [("1", "1\n2\n3\n4\n5"), ("1", "1\x0b2\x1c3\u20284\n5\n")], SETTINGS).statuses == (
        "failed",
        "passed",
    )


def test_long_input_and_programs_that_do_not_read_it() -> None:
    numbers = " ".join(map(str, range(100_000)))
    total = str(sum(range(100_000)))
    assert run_tests("print(sum(map(int, input().split())))", [(numbers, total)], SETTINGS).all_passed
    assert run_tests("print(1)", [(numbers, "1")] * 2, SETTINGS).all_passed


FORGERIES = {
    "frames": (
        """
import os
for handle in range(64):
    for text in (b'[null, 0, "0"]\\n', b'\\n[null, 0, "0"]\\n' * 6):
        try: os.write(handle, text)
        except OSError: pass
"""
    ),
    "equal to everything": "class Same(str):\n    def __eq__(self, other): return True\nprint(Same('anything'))",
}


@pytest.mark.parametrize("name", FORGERIES)
def test_verdicts_cannot_be_forged(name: str) -> None:
    report = run_tests(FORGERIES[name], [("1", "expected 1"), ("2", "expected 2")], SETTINGS)
    assert report.passed == 0
    assert len(report.statuses) == 2


def test_expected_outputs_are_not_in_the_sandbox() -> None:
    solution = (
        "import gc\nbackwards = 'ereh-keep'\nprint(any(backwards[::-1] in repr(thing) for thing in gc.get_objects() if"
        " isinstance(thing, (list, dict, tuple, set))))"
    )
    report = run_tests(solution, [("1", "peek-here"), ("", "False")], SETTINGS)
    assert report.statuses == ("failed", "passed")


def test_calls() -> None:
    solution = """
import os
def f(x, y):
    print("noise")
    if x == 1: os._exit(0)
    if x == 2: os.abort()
    if x == 3: return {y}
    if x == 4: raise KeyError
    return [x, {"y": y}]
"""
    results = run_calls(solution, "f", [[0, "a"], [1, 0], [2, 0], [3, 0], [4, 0], [5, None]], SETTINGS)
    assert results[0] == ("value", [0, {"y": "a"}])
    assert [result.value for result in results[1:5]] == ["ProcessDied", "ProcessDied", "NotJSON", "KeyError"]
    assert results[5] == ("value", [5, {"y": None}])


def test_calls_that_do_not_come_back_or_do_not_exist() -> None:
    assert run_calls("def f(x):\n    while x: pass\n    return 'x' * 10 ** 5", "f", [[1], [0]], SHORT) == [
        ("timeout", None),
        ("error", "ValueTooLarge"),
    ]
    assert run_calls("", "f", [[]], SETTINGS) == [("error", "NameError")]
    assert run_calls("def", "f", [[]], SETTINGS) == [("error", "SyntaxError")]
    assert run_calls("def f(): return 1", "f", [], SETTINGS) == []


def test_functions_live_in_a_module() -> None:
    solution = """
from __future__ import annotations
import atexit, pickle, threading, typing
from dataclasses import dataclass
@dataclass
class Pair:
    n: int
    other: Pair | None = None
def f(n):
    atexit.register(lambda: 1 / 0)
    threading.Thread(target=input).start()
    threading.Timer(60, print).start()
    return pickle.loads(pickle.dumps(Pair(n))).n + len(typing.get_type_hints(Pair))
"""
    assert run_calls(solution, "f", [[1], [2]], SETTINGS) == [("value", 3), ("value", 4)]


@pytest.mark.parametrize(
    "answer", ["[" * 50_000, "9" * 10_000, '["error", 5]', '["value"]', "{}", '["other", 1]', "\\xff"]
)
def test_answers_of_a_solution_that_writes_its_own(answer: str) -> None:
    solution = f"""
import os
def f():
    for handle in range(3, 64):
        try: os.write(handle, {answer!r}.encode())
        except OSError: pass
    os._exit(0)
"""
    assert run_calls(solution, "f", [[]], replace(SETTINGS, output_kb=256)) == [("error", "NotJSON")]
