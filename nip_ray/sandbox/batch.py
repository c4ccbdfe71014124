"""Many candidate programs under the same calls, fast: thousands of calls a second on one core.

Decisions that matter here:
- for candidates that mean no harm: mutants of programs of our own, which may loop for ever, recurse, allocate or crash. They share
  one interpreter, so one of them could falsify the results of the next; programs of strangers belong into `run_calls`;
- a call's limit is processor time, so that results do not depend on what else the machine does. Where that cannot end a call (a
  sleep, one long operation in C) the interpreter is killed after a while without a result, and the call counts as a time-out;
- a candidate whose time was up once is not tried again: its remaining calls count as time-outs, too;
- a call in which the interpreter dies is ("error", "ProcessDied"); the calls after it run in a new interpreter.
"""

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any, Literal, NamedTuple

from nip_ray.sandbox.launch import INSIDE, execute
from nip_ray.sandbox.plans import job, plan_for
from nip_ray.sandbox.result import DEFAULTS
from nip_ray.settings.sandbox import SandboxSettings

START_S = 10.0
"""Seconds that the interpreter may take to start, on a busy machine."""
PATIENCE_S = 1.0
"""Seconds, with ten times the limit of a call, without a result: then the call cannot be interrupted and its interpreter is killed."""
NO_CPU_LIMIT_S = 1 << 20
"""The interpreter as a whole may take long; each call of it may not."""


class CallResult(NamedTuple):
    """What came of one call.

    kind: "value" (it returned), "error" (it raised, or something else went wrong), "timeout".
    value: the returned value as JSON carries it (tuples are lists, keys are strings); the exception's class name, or "NotJSON",
    "ValueTooLarge", "ProcessDied"; None.
    """

    kind: Literal["value", "error", "timeout"]
    value: Any


def run_batch(
    solutions: Sequence[str],
    function_name: str,
    calls: Sequence[list[Any]],
    per_call_s: float = 0.2,
    settings: SandboxSettings = DEFAULTS,
) -> list[list[CallResult]]:
    """What `function_name(*call)` returns, for every candidate program and call, (candidates, calls).

    solutions: sources that define the function; each is loaded once, and its calls share its globals. calls: lists of arguments, as
    JSON carries them. per_call_s: seconds of processor time for each call and for loading. settings: of these, the memory counts.
    """
    results: list[CallResult] = []
    total = len(solutions) * len(calls)
    work = {"solutions": list(solutions), "function": function_name, "calls": [json.dumps(call) for call in calls]}
    work |= {"per_call_s": per_call_s, "value_limit": settings.output_kb * 1000}
    while len(results) < total:
        start = divmod(len(results), len(calls))
        results += _until_death({**work, "start": start}, total - len(results), PATIENCE_S + 10 * per_call_s, settings)
    return [results[i * len(calls) : (i + 1) * len(calls)] for i in range(len(solutions))]


def _until_death(work: dict[str, Any], wanted: int, patience_s: float, settings: SandboxSettings) -> list[CallResult]:
    """Results from one interpreter, in order: all that are wanted, or the last of them says how it died."""
    found: list[CallResult] = []
    rest = bytearray()

    def take(data: bytes) -> float | None:
        nonlocal rest
        *lines, rest = (rest + data).split(b"\n")
        found.extend(_read(line) for line in lines if line)
        return patience_s if lines else None

    limits = replace(settings, wall_s=patience_s + START_S, cpu_s=NO_CPU_LIMIT_S)
    plan = plan_for("auto" if settings.isolation == "container" else settings.isolation)
    outcome = execute(replace(job(_worker(), json.dumps(work), {}, plan, limits), on_stdout=take))
    if len(found) < wanted:
        found.append(CallResult("timeout", None) if outcome.status == "timeout" else CallResult("error", "ProcessDied"))
    return found


def _read(line: bytes) -> CallResult:
    """What the worker wrote; a value that this interpreter refuses to read (too many digits, too deep) is no JSON."""
    try:
        return CallResult(*json.loads(line))
    except (ValueError, RecursionError):
        return CallResult("error", "NotJSON")


@cache
def _worker() -> str:
    return (INSIDE / "batch_worker.py").read_text(encoding="utf-8")
