"""Run many trusted candidate programs on the same calls, fast: thousands of calls a second on one core.

Decisions that matter here:
- for mutants of our own programs, which may loop forever, recurse, allocate or crash, but are not malicious. They share
  one interpreter, so one of them could falsify the results of the next; untrusted programs need `run_calls`;
- a call's limit is processor time, so that results do not depend on other load. If that cannot end a call (a sleep, one
  long operation in C) the interpreter is killed after a while without a result, and the call counts as a time-out;
- a candidate that timed out once is not tried again: its remaining calls count as time-outs, too;
- a call in which the interpreter dies is ("error", "ProcessDied"); the calls after it run in a new interpreter.
"""

import json
import os
import select
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from nip_ray.sandbox.result import DEFAULTS, SandboxFailure
from nip_ray.sandbox.testing import CallResult, decoded
from nip_ray.sandbox.workers import executable
from nip_ray.settings.sandbox import SandboxSettings

START_S = 10.0
"""Maximum seconds to start the interpreter, on a busy machine."""
PATIENCE_S = 1.0
"""Seconds, in addition to ten times the limit of a call, without a result: then the call cannot be interrupted and its
interpreter is killed."""


def run_batch(
    solutions: Sequence[str],
    function_name: str,
    calls: Sequence[list[Any]],
    per_call_s: float = 0.2,
    settings: SandboxSettings = DEFAULTS,
) -> list[list[CallResult]]:
    """The results of `function_name(*call)` for every trusted candidate program and call, (candidates, calls).

    solutions: sources that define the function; each is loaded once, and its calls share its globals. calls: lists of
    arguments, in JSON's form. per_call_s: seconds of processor time for each call and for loading. settings: only
    memory, files and output apply.
    """
    results: list[CallResult] = []
    total = len(solutions) * len(calls)
    work = {"solutions": list(solutions), "function": function_name, "calls": [json.dumps(call) for call in calls]}
    work |= {"per_call_s": per_call_s, "value_limit": settings.output_kb * 1000}
    work |= {"memory_mb": settings.memory_mb, "file_mb": settings.file_mb}
    while len(results) < total:
        start = divmod(len(results), len(calls))
        results += _until_death({**work, "start": start}, total - len(results), PATIENCE_S + 10 * per_call_s)
    return [results[i * len(calls) : (i + 1) * len(calls)] for i in range(len(solutions))]


def _until_death(work: dict[str, Any], wanted: int, patience_s: float) -> list[CallResult]:
    """Results from one interpreter, in order: all of them, or up to the one in which it died."""
    found: list[CallResult] = []
    rest, late = b"", False
    process = _started(work)
    assert process.stdout is not None
    ready = select.poll()
    ready.register(process.stdout, select.POLLIN)
    deadline = time.monotonic() + START_S + patience_s
    try:
        while len(found) < wanted:
            late = not ready.poll(max(0.0, deadline - time.monotonic()) * 1000)
            data = b"" if late else os.read(process.stdout.fileno(), 1 << 16)
            if not data:
                break
            *lines, rest = (rest + data).split(b"\n")
            found.extend(decoded(line) for line in lines if line)
            if lines:
                deadline = time.monotonic() + patience_s
    finally:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.stdout.close()
        process.wait()
    if len(found) < wanted:
        found.append(CallResult("timeout", None) if late else CallResult("error", "ProcessDied"))
    return found[:wanted]


def _started(work: dict[str, Any]) -> "subprocess.Popen[bytes]":
    """The interpreter, with the work on its standard input."""
    command = [executable(), "-I", "-S", "-B", str(Path(__file__).with_name("batch_worker.py"))]
    with tempfile.TemporaryFile() as source:
        source.write(json.dumps(work).encode())
        source.seek(0)
        try:
            return subprocess.Popen(
                command,
                stdin=source,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={},
                cwd="/",
                start_new_session=True,
            )
        except OSError as error:
            raise SandboxFailure(f"the sandbox could not start an interpreter: {error}") from error
