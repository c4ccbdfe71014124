"""Run an untrusted program: `run_program`, and `run_program_async` for event loops.

What is covered and what is not is a table, `nip_ray.sandbox.coverage`, and in words docs/sandbox.md. In short:

- every level: a fresh interpreter without our environment, descriptors and packages; limits on time, memory, processes, files and
  output; an end on time, of all descendants; nothing left on the disk;
- "process": Landlock and a filter of system calls, where the kernel has them, keep it from files, processes and the network. Where it
  has not (`SandboxResult.guards` says so), the program can read what its user can, write there, and talk to the network;
- "namespaces": no network, no other processes, and a root folder with the interpreter alone, whatever else the kernel has;
- "container": as strong as the container engine and its image.

None of the first two covers a fault in the kernel, or what can be read off shared hardware; for programs of determined attackers
use a virtual machine around it all.
"""

import asyncio
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache

from nip_ray.sandbox.container import execute_in_container
from nip_ray.sandbox.launch import Outcome, execute
from nip_ray.sandbox.plans import job, plan_for
from nip_ray.sandbox.result import DEFAULTS, SandboxResult
from nip_ray.settings.sandbox import SandboxSettings


def run_program(program: str, stdin: str = "", settings: SandboxSettings = DEFAULTS, files: Mapping[str, bytes] = {}) -> SandboxResult:
    """Run Python source under `settings` and wait for its end, which comes within `wall_s` and half a second.

    On a machine too busy to end what the program started so soon, it comes up to two seconds later, and leaves nothing either.

    program: the source. stdin: all that it can read from standard input. files: plain names and contents that lie in its working folder.

    Raises UserError when the level of isolation does not work here or a file has no plain name, SandboxFailure (a TrainingError) when
    the sandbox could not be started this time. Nothing that the program does raises.
    """
    return _run(program, stdin, settings, files, None)


async def run_program_async(
    program: str, stdin: str = "", settings: SandboxSettings = DEFAULTS, files: Mapping[str, bytes] = {}
) -> SandboxResult:
    """`run_program` for event loops: at most as many at once as there are processors. Cancelling it ends the program."""
    wanted, cancel = os.pipe()
    waiting = _threads().submit(_run, program, stdin, settings, files, wanted)
    result = asyncio.wrap_future(waiting)
    try:
        return await asyncio.shield(result)
    except asyncio.CancelledError:
        if not waiting.cancel():  # it runs already
            os.write(cancel, b"x")
            await asyncio.wait([result])
        raise
    finally:
        os.close(cancel)
        os.close(wanted)


@cache
def _threads() -> ThreadPoolExecutor:
    """Threads that wait for programs; more programs than processors at once would only take each other's time."""
    return ThreadPoolExecutor(max(1, len(os.sched_getaffinity(0))), thread_name_prefix="sandbox")


def _run(program: str, stdin: str, settings: SandboxSettings, files: Mapping[str, bytes], cancelled: int | None) -> SandboxResult:
    if settings.isolation == "container":
        return _result(execute_in_container(program, stdin, settings, dict(files), cancelled), "container")
    plan = plan_for(settings.isolation)
    return _result(execute(job(program, stdin, dict(files), plan, settings), cancelled), plan.isolation)


def _result(outcome: Outcome, isolation: str) -> SandboxResult:
    return SandboxResult(
        status=outcome.status,
        exit_code=outcome.exit_code,
        stdout=outcome.stdout.decode(errors="replace"),
        stderr=outcome.stderr.decode(errors="replace"),
        wall_s=outcome.wall_s,
        isolation=isolation,
        guards=outcome.guards,
        reason=outcome.reason,
    )
