"""Wrong solutions written by a model: a chat client that answers by rule, and the real sandbox."""

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from nip_ray.errors import TrainingError, UserError
from nip_ray.sandbox.testing import TestReport
from nip_ray.scenarios.code_validation.files import read_items
from nip_ray.scenarios.code_validation.hub import Row
from nip_ray.settings.code_validation import CodeDataSettings
from nip_ray.settings.sandbox import SandboxSettings
from nip_ray.text.providers.interface import ChatReply, ChatRequest
from scripts.buggy import (
    BuggyOptions,
    Candidate,
    ProgrammingProblem,
    Sandbox,
    levenshtein,
    make_buggy,
    parse_candidate,
    problems_of,
    sandbox,
)

RIGHT = "n = int(input())\nprint(n + n)\n"
ALSO_RIGHT = "print(2 * int(input()))\n"
NOT_RIGHT = "print(3)\n"
TESTS = (("1\n", "2\n"), ("2\n", "4\n"), ("5\n", "10\n"))


def reply(solution: str, *inputs: str) -> str:
    """A reply in the form that is asked for."""
    blocks = "".join(f"\nPROBLEMATIC INPUT {i}:\n```\n{text}\n```\n" for i, text in enumerate(inputs, 1))
    return f"Here it is.\n\nMODIFIED SOLUTION:\n```python\n{solution}```\n{blocks}"


class Script:
    """A chat client: answers each request by a rule, and counts them."""

    def __init__(self, rule: Callable[[ChatRequest], str | None]) -> None:
        self.rule, self.requests = rule, []  # type: ignore[var-annotated]

    async def complete(self, request: ChatRequest) -> ChatReply:
        """The rule's answer, after others had their turn."""
        self.requests.append(request)
        await asyncio.sleep(0)
        return ChatReply(self.rule(request), "stop", 1, 1)

    async def close(self) -> None:
        """Nothing to give back."""


def problem(
    number: int = 1, solutions: Sequence[str] = (RIGHT, ALSO_RIGHT), tests: Sequence[tuple[str, str]] = TESTS
) -> ProgrammingProblem:
    return ProgrammingProblem(
        "train", number, "interview", "Read a number and print it doubled.", tuple(solutions), tuple(tests)
    )


def make(
    out: Path,
    rule: Callable[[ChatRequest], str | None] | Script,
    problems: Sequence[ProgrammingProblem],
    **options: Any,
) -> dict[str, int]:
    client = rule if isinstance(rule, Script) else Script(rule)
    chosen = BuggyOptions("m", **{"max_attempts": 1, **options})
    return asyncio.run(make_buggy(problems, client, out, chosen, sandbox(SandboxSettings())))


def rows(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.read_text().splitlines()]


def test_replies_are_parsed() -> None:
    assert parse_candidate(reply("a\nb\n", "1\n2", "3")) == Candidate("a\nb", ("1\n2", "3"))
    assert parse_candidate("modified solution:\n\n```\nx\n```") == Candidate("x", ())
    assert parse_candidate(
        "MODIFIED SOLUTION:\n```\nfirst\n```\nBetter:\nMODIFIED SOLUTION:\n```\nsecond\n```"
    ) == Candidate("second", ())


@pytest.mark.parametrize(
    "text", [None, "", "no idea", "```python\nx\n```", "MODIFIED SOLUTION:\nx = 1", "MODIFIED SOLUTION:\n```\n\n```"]
)
def test_replies_without_a_program(text: str | None) -> None:
    assert parse_candidate(text) is None


@pytest.mark.parametrize(
    "text", ["import os; os.system('x')", "import subprocess", "x = eval(input())", "__import__('x')"]
)
def test_dangerous_programs_are_thrown_away(text: str) -> None:
    assert parse_candidate(reply(text + "\n")) is None


def test_a_wrong_program_makes_a_row(tmp_path: Path) -> None:
    wrong = "n = int(input())\nprint(n * n)\n"  # right for 2, wrong for 1 and 5
    client = Script(lambda request: reply(wrong))
    assert make(tmp_path / "x.jsonl", client, [problem()]) == {"made": 1, "without_row": 0, "done_before": 0}
    (row,) = rows(tmp_path / "x.jsonl")
    (bug,) = row["buggy_solutions"]
    original = (RIGHT, ALSO_RIGHT)[bug["solution_number"]]
    assert row["solutions"] == [(RIGHT, ALSO_RIGHT)[1 - bug["solution_number"]]], (
        "the one that was changed is not kept as well"
    )
    assert {key: row[key] for key in ("apps_split", "apps_problem_id", "difficulty")} == {
        "apps_split": "train",
        "apps_problem_id": 1,
        "difficulty": "interview",
    }
    assert bug["solution"] == wrong.strip()
    assert bug["levenshtein_distance"] == levenshtein(original, wrong.strip())
    assert bug["normalised_distance"] == bug["levenshtein_distance"] / max(len(original), len(wrong.strip()))
    assert (bug["passed"], bug["failed"], bug["crashed"], bug["timed_out"], bug["attempts"]) == (1, 2, 0, 0, 1)
    (request,) = client.requests
    assert original in request.messages[-1]["content"]
    assert "Read a number and print it doubled." in request.messages[-1]["content"]
    assert "PROBLEMATIC" not in request.messages[-1]["content"]
    items = read_items(tmp_path / "x.jsonl", CodeDataSettings(difficulties=("interview",)))
    assert [item.y for item in items] == [1, 0], "the rows are those of buggy-APPS"


IN_A_THREAD = "import threading\ndef main(): print(2 * int(input()))\nthreading.Thread(target=main).start()\n"
AT_EXIT = (
    "import atexit, io, sys\nsys.stdout = io.StringIO()\natexit.register(lambda:"
    " sys.__stdout__.write(sys.stdout.getvalue()))\n"
)
AT_EXIT += "print(2 * int(input()))\n"


@pytest.mark.parametrize(
    "candidate",
    [
        RIGHT,
        "print(int(input()) * 2)\n",
        "raise SystemExit(3)\n",
        "n = int(input())\nprint(n + n if n < 5 else 1 // 0)\n",
        "print('a'\n",
        IN_A_THREAD,
        AT_EXIT,
    ],
    ids=["the same", "right", "crashes always", "crashes sometimes", "no Python", "right in a thread", "right at exit"],
)
def test_what_is_no_bug(tmp_path: Path, candidate: str) -> None:
    client = Script(lambda request: reply(candidate))
    assert make(tmp_path / "x.jsonl", client, [problem()])["without_row"] == 1
    assert not (tmp_path / "x.jsonl").exists()
    assert len(client.requests) == 2, "both solutions are tried"


def test_only_solutions_that_pass_are_used(tmp_path: Path) -> None:
    wrong = "print(1)\n"
    client = Script(lambda request: reply(wrong))
    assert (
        make(tmp_path / "x.jsonl", client, [problem(solutions=(NOT_RIGHT, RIGHT, ALSO_RIGHT, NOT_RIGHT))])["made"] == 1
    )
    assert all(NOT_RIGHT not in request.messages[-1]["content"] for request in client.requests)
    row = rows(tmp_path / "x.jsonl")[0]
    assert NOT_RIGHT not in row["solutions"]
    assert make(tmp_path / "y.jsonl", client, [problem(solutions=(NOT_RIGHT, RIGHT))])["made"] == 0, (
        "nothing is left to be kept"
    )


def test_solutions_that_end_by_exit_are_used(tmp_path: Path) -> None:
    solutions = (f"{RIGHT}exit()\n", f"import __main__\n{ALSO_RIGHT}quit()\n")
    assert make(tmp_path / "x.jsonl", lambda request: reply("print(1)\n"), [problem(solutions=solutions)])["made"] == 1


def test_programs_of_a_model_are_isolated_or_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    client = Script(lambda request: reply(NOT_RIGHT))
    with pytest.raises(UserError, match="isolation: isolated needs bwrap"):
        asyncio.run(make_buggy([problem()], client, tmp_path / "x.jsonl", BuggyOptions("m", max_attempts=1)))
    assert client.requests == [], "nothing is paid for"


def judge(solution: str, tests: Sequence[tuple[str, str]]) -> TestReport:
    """A runner in the sandbox's place where nothing depends on it: "bad" programs fail."""
    status = "failed" if "bad" in solution else "passed"
    return TestReport(*((len(tests), 0) if status == "passed" else (0, len(tests))), 0, 0, (status,) * len(tests))


FAST = Sandbox(judge, lambda solution, stdin: None)


def test_problems_that_are_done_are_not_paid_for_again(tmp_path: Path) -> None:
    out = tmp_path / "x.jsonl"
    problems = [problem(i, ("a", "b")) for i in range(6)]
    rule = lambda request: reply("bad\n") if int(request.key.split("/")[2]) % 2 else "no"  # noqa: E731
    first = Script(rule)
    options = BuggyOptions("m", max_attempts=1)
    assert asyncio.run(make_buggy(problems[:4], first, out, options, FAST)) == {
        "made": 2,
        "without_row": 2,
        "done_before": 0,
    }
    second = Script(rule)
    seen: list[tuple[int, int]] = []
    counts = asyncio.run(
        make_buggy(problems, second, out, options, FAST, lambda done, total: seen.append((done, total)))
    )
    assert counts == {"made": 1, "without_row": 1, "done_before": 4}
    assert {request.key.split("/")[2] for request in second.requests} == {"4", "5"}
    assert seen == [(5, 6), (6, 6)]
    assert Counter(row["apps_problem_id"] for row in rows(out)) == {1: 1, 3: 1, 5: 1}


def test_a_torn_line_is_made_again(tmp_path: Path) -> None:
    out = tmp_path / "x.jsonl"
    problems = [problem(i, ("a", "b")) for i in range(3)]
    options = BuggyOptions("m", max_attempts=1)
    asyncio.run(make_buggy(problems, Script(lambda request: reply("bad\n")), out, options, FAST))
    whole = sorted(row["apps_problem_id"] for row in rows(out))
    out.write_bytes(out.read_bytes()[:-20])
    again = Script(lambda request: reply("bad\n"))
    assert asyncio.run(make_buggy(problems, again, out, options, FAST))["made"] == 1
    assert sorted(row["apps_problem_id"] for row in rows(out)) == whole


def test_what_was_finished_stays_when_the_client_gives_up(tmp_path: Path) -> None:
    out = tmp_path / "x.jsonl"

    def rule(request: ChatRequest) -> str:
        if "/7/" in request.key:
            raise TrainingError("out of money")
        return reply("bad\n")

    problems = [problem(i, ("a", "b")) for i in (1, 2, 7, 8)]
    with pytest.raises(TrainingError, match="out of money"):
        asyncio.run(
            make_buggy(problems, Script(rule), out, BuggyOptions("m", max_attempts=1, problems_at_once=1), FAST)
        )
    assert [row["apps_problem_id"] for row in rows(out)] == [1, 2]


def test_damaged_files(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text('{"apps_split": "train", "apps_problem_id": 1}\n{"a": 2}\n')
    with pytest.raises(UserError, match=r"x.jsonl: line 2: is not a row of buggy-APPS"):
        make(tmp_path / "x.jsonl", lambda request: None, [])
    with pytest.raises(UserError, match=r"name a .jsonl file"):
        make(tmp_path / "x.parquet", lambda request: None, [])


def apps(number: Any = 1, tests: Any = None, **more: Any) -> Row:
    tests = {"inputs": ["1\n", ["2", "x"]], "outputs": ["2\n", ["4"]]} if tests is None else tests
    text = tests if isinstance(tests, str) else json.dumps(tests)
    values = {
        "problem_id": number,
        "question": "q",
        "difficulty": "interview",
        "solutions": json.dumps(["a", "b"]),
        "input_output": text,
    }
    return Row(f"line {number}", {**values, **more})


def test_problems_of_apps(tmp_path: Path) -> None:
    rows_in = [
        apps(1),
        apps(2, solutions=json.dumps(["a"])),
        apps(3, difficulty="competition"),
        apps(4, {"inputs": [[1]], "outputs": [[2]], "fn_name": "f"}),
        apps(5, ""),
    ]
    found = list(problems_of(rows_in, "apps.jsonl", "test", ("interview",)))
    assert found == [ProgrammingProblem("test", 1, "interview", "q", ("a", "b"), (("1\n", "2\n"), ("2\nx", "4")))]
