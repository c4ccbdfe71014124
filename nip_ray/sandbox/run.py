"""Run a program: `run_program`, and `run_program_async` for event loops.

Two levels, docs/sandbox.md has them in full:

- "trusted": a fresh interpreter under limits on time, memory, processes, files and output, without our environment,
  descriptors and packages. It is still a process of this user: it can read and change what this user can, the
  environment of our processes included, and use the network;
- "isolated": the same interpreter in bwrap, else in a container of Docker or Podman: without network, other processes
  or files. An error if none of them works.

Neither protects against kernel faults or side channels of shared hardware; for programs of determined attackers use a
virtual machine around everything.
"""

import asyncio
import os
import signal
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import cast

from nip_ray.sandbox.engines import check_started, engine_for, job_for
from nip_ray.sandbox.result import DEFAULTS, SandboxResult, Status
from nip_ray.sandbox.workers import Outcome, run_job
from nip_ray.settings.sandbox import SandboxSettings

_REASONS = ("processes", "memory", "disk")


def run_program(
    program: str, stdin: str = "", settings: SandboxSettings = DEFAULTS, files: Mapping[str, bytes] = {}
) -> SandboxResult:
    """Run Python source under `settings` and wait for its end, within `wall_s` and half a second.

    On a machine too busy to kill the program's processes that fast, it takes up to two seconds longer.

    program: the source. stdin: its whole standard input. files: plain names and contents, in its working folder.

    Raises UserError if programs cannot be isolated or a file has no plain name, SandboxFailure (a TrainingError) if the
    sandbox could not be started this time. The program's own failures do not raise.
    """
    return run_within(program, stdin, settings, files)


async def run_program_async(
    program: str, stdin: str = "", settings: SandboxSettings = DEFAULTS, files: Mapping[str, bytes] = {}
) -> SandboxResult:
    """`run_program` for event loops: at most as many at once as processors. Cancelling it ends the program."""
    wanted, cancel = os.pipe()
    waiting = threads().submit(run_within, program, stdin, settings, files, None, wanted)
    result = asyncio.wrap_future(waiting)
    try:
        return await asyncio.shield(result)
    except asyncio.CancelledError:
        if not waiting.cancel():  # already running
            os.write(cancel, b"x")
            await asyncio.wait([result])
        raise
    finally:
        os.close(cancel)
        os.close(wanted)


@cache
def threads() -> ThreadPoolExecutor:
    """Threads that wait for programs; more programs than processors would only slow each other down."""
    return ThreadPoolExecutor(max(1, len(os.sched_getaffinity(0))), thread_name_prefix="sandbox")


os.register_at_fork(after_in_child=threads.cache_clear)  # a fork has none of these threads


def run_within(
    program: str,
    stdin: str,
    settings: SandboxSettings,
    files: Mapping[str, bytes] = {},
    output_bytes: int | None = None,
    cancelled: int | None = None,
) -> SandboxResult:
    """`run_program` with its own limit on the output. cancelled: a descriptor that is readable when it must end."""
    start, engine = time.monotonic(), engine_for(settings)
    outcome = run_job(job_for(program, stdin, dict(files), settings, engine, output_bytes), cancelled)
    if engine is not None:
        check_started(outcome, engine, settings)
    return _result(outcome, settings.isolation, engine, time.monotonic() - start)


def _result(outcome: Outcome, isolation: str, engine: str | None, wall_s: float) -> SandboxResult:
    code = outcome.code
    if engine is not None and code is not None and code > 128:
        code = 128 - code  # engines report signals as shells do
    status: Status = "ok"
    if outcome.verdict in ("timeout", "output_limit"):
        status = cast(Status, outcome.verdict)
    elif outcome.verdict is not None or code is None:
        status = "killed"
    elif code == -signal.SIGXCPU:
        status = "timeout"
    elif code:
        status = "killed" if code < 0 else "error"
    return SandboxResult(
        status=status,
        exit_code=code,
        stdout=outcome.stdout.decode(errors="replace"),
        stderr=outcome.stderr.decode(errors="replace"),
        wall_s=wall_s,
        isolation=isolation,
        reason=outcome.verdict if outcome.verdict in _REASONS else "",
        engine=os.path.basename(engine or ""),
    )
