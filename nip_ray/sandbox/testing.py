"""Tests of solutions: programs that read and write, and functions that are called.

Decisions that matter here:
- expected outputs never enter the sandbox: outputs are compared outside, so a solution can only spoil its own report;
- every test and every call is a program of its own: a fresh interpreter, judged as `python` would run it, to the end of
  its threads, its exit handlers and its buffers.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, NamedTuple

from nip_ray.sandbox.result import DEFAULTS, SandboxResult
from nip_ray.sandbox.run import run_within, threads
from nip_ray.sandbox.workers import INSIDE
from nip_ray.settings.sandbox import SandboxSettings

TestStatus = Literal["passed", "failed", "crashed", "timeout"]
BLANKS = " \t\r"
"""Ignored at the end of a line. A line ends only at a newline: other separators are ordinary output."""
MAX_DEPTH = 500
"""Maximum nesting of a returned value: every version of Python reads it back."""


class CallResult(NamedTuple):
    """The result of one call.

    kind: "value" (it returned), "error" (it raised, or something else went wrong), "timeout". value: the returned value
    in JSON's form (tuples are lists, keys are strings); the exception's class name, or "NotJSON", "ValueTooLarge",
    "ProcessDied"; None.
    """

    kind: Literal["value", "error", "timeout"]
    value: Any


@dataclass(frozen=True)
class TestReport:
    """The tests of one solution: how many passed, failed (another output), crashed (an exception, a signal, too much
    output) or took too long; `statuses` has them in order."""

    __test__ = False  # not a test for pytest

    passed: int
    failed: int
    crashed: int
    timed_out: int
    statuses: tuple[TestStatus, ...]

    @property
    def all_passed(self) -> bool:
        """True if every test passed."""
        return self.passed == len(self.statuses)


def run_tests(
    solution: str, tests: Sequence[tuple[str, str]], settings: SandboxSettings = DEFAULTS, isolate_tests: bool = True
) -> TestReport:
    """Run a program on each test's input and compare its output. As many tests run at once as there are processors.

    tests: (standard input, expected standard output); blanks at the end of lines, and blank lines at the end of the
    output, are ignored. settings: the limits of each test; if twice the expected output is more than `output_kb`, that
    much is kept. isolate_tests: without effect, since every test has an interpreter of its own; callers of older
    versions may pass it. Raises the errors of `run_program`.
    """
    limits = [max(settings.output_kb * 1000, 2 * len(expected.encode(errors="replace"))) for _, expected in tests]
    results = threads().map(
        lambda test, most: run_within(solution, test[0], settings, output_bytes=most), tests, limits
    )
    statuses: tuple[TestStatus, ...] = tuple(
        _judge(result, expected) for result, (_, expected) in zip(results, tests, strict=True)
    )
    count = statuses.count
    return TestReport(count("passed"), count("failed"), count("crashed"), count("timeout"), statuses)


def run_calls(
    solution: str, function_name: str, calls: Sequence[list[Any]], settings: SandboxSettings = DEFAULTS
) -> list[CallResult]:
    """The results of `function_name(*arguments)` of a solution for each list of arguments, each in its own interpreter.

    calls: arguments, in JSON's form. Raises the errors of `run_program`.
    """
    source = solution.encode(errors="surrogatepass")

    def call(arguments: list[Any]) -> CallResult:
        files = {"solution.py": source, "call.json": json.dumps([function_name, arguments]).encode()}
        result = run_within(_caller(), "", settings, files)
        if result.status == "timeout":
            return CallResult("timeout", None)
        if result.status == "output_limit":
            return CallResult("error", "ValueTooLarge")
        if result.status != "ok" or not result.stdout:
            return CallResult("error", "ProcessDied")
        return decoded(result.stdout)

    return list(threads().map(call, calls))


def _judge(result: SandboxResult, expected: str) -> TestStatus:
    if result.status == "timeout":
        return "timeout"
    if result.status != "ok":
        return "crashed"
    return "passed" if _plain(result.stdout) == _plain(expected) else "failed"


def _plain(text: str) -> list[str]:
    return [line.rstrip(BLANKS) for line in text.rstrip(BLANKS + "\n").split("\n")]


def decoded(text: str | bytes) -> CallResult:
    """The result that a call wrote. A candidate can write anything there, or return a value that JSON does not restore,
    or one nested deeper than `MAX_DEPTH`: that is ("error", "NotJSON")."""
    try:
        kind, value = json.loads(text)
    except (ValueError, TypeError, RecursionError):
        return CallResult("error", "NotJSON")
    if _is_deep(value):
        return CallResult("error", "NotJSON")
    if kind == "value" or (kind == "error" and isinstance(value, str)):
        return CallResult(kind, value)
    return CallResult("timeout", None) if kind == "timeout" else CallResult("error", "NotJSON")


def _is_deep(value: Any) -> bool:
    """True if lists and dicts are nested deeper than `MAX_DEPTH`. Without recursion, whose limits depend on Python's
    version."""
    level = [value]
    for _ in range(MAX_DEPTH + 1):
        level = [
            inner
            for outer in level
            if isinstance(outer, list | dict)
            for inner in (outer.values() if isinstance(outer, dict) else outer)
        ]
        if not level:
            return False
    return True


@cache
def _caller() -> str:
    return (INSIDE / "call.py").read_text(encoding="utf-8")
