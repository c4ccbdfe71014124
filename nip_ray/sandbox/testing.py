"""Tests of solutions: programs that read and write, and functions that are called.

Decisions that matter here:
- what is expected never enters the sandbox: outputs come out and are compared here, so a solution can spoil its own report only;
- by default one interpreter runs all tests of a solution, each in a fork; with `isolate_tests` each test has an interpreter, and a
  sandbox, of its own;
- a test in which the harness itself is lost counts as crashed, and the tests after it run in a new one.
"""

import json
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Literal

from nip_ray.errors import UserError
from nip_ray.sandbox.batch import CallResult
from nip_ray.sandbox.launch import INSIDE, execute
from nip_ray.sandbox.plans import job, plan_for
from nip_ray.sandbox.result import DEFAULTS
from nip_ray.sandbox.run import run_program
from nip_ray.settings.sandbox import SandboxSettings

TestStatus = Literal["passed", "failed", "crashed", "timeout"]
NONCE_BYTES = 16
BLANKS = " \t\r"
"""What does not count at the end of a line. A line ends at a newline and nowhere else: other separators are output like any other."""
ESCAPES = 6
"""A byte of output takes at most as many in JSON."""


@dataclass(frozen=True)
class TestReport:
    """The tests of one solution: how many passed, failed (another output), crashed (an exception, a signal, too much output) or took too
    long; `statuses` has them in order."""

    __test__ = False  # no tests for pytest

    passed: int
    failed: int
    crashed: int
    timed_out: int
    statuses: tuple[TestStatus, ...]

    @property
    def all_passed(self) -> bool:
        """Whether every test passed."""
        return self.passed == len(self.statuses)


def run_tests(
    solution: str, tests: Sequence[tuple[str, str]], settings: SandboxSettings = DEFAULTS, isolate_tests: bool = False
) -> TestReport:
    """Run a program on each test's input and compare what it writes.

    tests: (standard input, expected standard output); blanks at the end of lines, and blank lines at the end of the output, do not count.
    settings: the times are those of each test. Raises what `run_program` raises, and UserError for the level "container" without
    `isolate_tests`.
    """
    if isolate_tests:
        results = [run_program(solution, stdin, settings) for stdin, _ in tests]
        outputs = [(None if r.status in ("ok", "error", "killed") else r.status, r.exit_code, r.stdout) for r in results]
    else:
        outputs = _outputs(solution, None, [stdin for stdin, _ in tests], settings)
    statuses: tuple[TestStatus, ...] = tuple(_judge(output, expected) for output, (_, expected) in zip(outputs, tests, strict=True))
    count = statuses.count
    return TestReport(count("passed"), count("failed"), count("crashed"), count("timeout"), statuses)


def run_calls(solution: str, function_name: str, calls: Sequence[list[Any]], settings: SandboxSettings = DEFAULTS) -> list[CallResult]:
    """What `function_name(*arguments)` of a strange solution returns for each list of arguments, each in a fork of its own.

    calls: arguments, as JSON carries them. The results are those of `run_batch`, which is faster for programs that mean no harm.
    Raises what `run_program` raises, and UserError for the level "container".
    """
    return [_call_result(*output) for output in _outputs(solution, function_name, list(calls), settings)]


def _judge(output: tuple[str | None, int | None, str], expected: str) -> TestStatus:
    status, code, text = output
    if status == "timeout":
        return "timeout"
    if status is not None or code != 0:
        return "crashed"
    return "passed" if _plain(text) == _plain(expected) else "failed"


def _plain(text: str) -> list[str]:
    return [line.rstrip(BLANKS) for line in text.rstrip(BLANKS + "\n").split("\n")]


def _call_result(status: str | None, code: int | None, text: str) -> CallResult:
    if status == "timeout":
        return CallResult("timeout", None)
    if status == "output_limit":
        return CallResult("error", "ValueTooLarge")
    if code != 0 or not text:
        return CallResult("error", "ProcessDied")
    try:
        kind, value = json.loads(text)
    except (ValueError, TypeError, RecursionError):  # whatever a solution wrote there instead
        return CallResult("error", "NotJSON")
    if kind == "value" or (kind == "error" and isinstance(value, str)):
        return CallResult(kind, value)
    return CallResult("error", "NotJSON")


def _outputs(solution: str, function: str | None, tests: list[Any], settings: SandboxSettings) -> list[tuple[str | None, int | None, str]]:
    """(None or why it was ended, exit code, output) of every test."""
    found: list[tuple[str | None, int | None, str]] = []
    work = {"solution": solution, "function": function, "wall_s": settings.wall_s, "output_bytes": settings.output_kb * 1000}
    while len(found) < len(tests):
        rest = tests[len(found) :]
        found += _one_harness({**work, "tests": rest}, len(rest), settings)
    return found


def _one_harness(work: dict[str, Any], wanted: int, settings: SandboxSettings) -> list[tuple[str | None, int | None, str]]:
    """Outcomes from one harness: of all tests, or up to the one in which it was lost."""
    nonce = secrets.token_hex(NONCE_BYTES)
    if settings.isolation == "container":  # never something weaker than was asked for
        raise UserError("isolation: container runs single programs and `isolate_tests=True`; take namespaces or auto")
    plan = plan_for(settings.isolation)
    limits = replace(settings, wall_s=(settings.wall_s + 1) * wanted + 5, processes=settings.processes + 1)
    request = job(_harness(), nonce + json.dumps(work), {}, plan, limits)
    outcome = execute(replace(request, output_bytes=wanted * (ESCAPES * settings.output_kb * 1000 + 200)))
    lines = outcome.stdout.decode(errors="replace").split("\n")[:-1]
    found = [json.loads(line[len(nonce) :]) for line in lines if line.startswith(nonce)]
    if len(found) < wanted and (not found or not _was_last(found[-1])):
        found.append(["timeout" if outcome.status == "timeout" else None, outcome.exit_code or 1, ""])
    return [(status, code, text) for status, code, text in found[:wanted]]


def _was_last(outcome: list[Any]) -> bool:
    """Whether the harness ended with this test because it could not kill it."""
    return outcome[1] is None


@cache
def _harness() -> str:
    return (INSIDE / "harness.py").read_text(encoding="utf-8")
