"""A pool of workers: small processes that run programs for this one, each one program at a time.

Decisions that matter here:
- a worker forks in a millisecond and has one thread. This process may hold gigabytes and many threads, which makes
  forks slow and unsafe;
- workers are kept for the next program, as many as there are processors;
- a worker that dies, stops or is cancelled is not reused, and its program is killed.
"""

import atexit
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from multiprocessing import Pipe
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from nip_ray.sandbox.inside.folder import remove
from nip_ray.sandbox.result import SandboxFailure

INSIDE = Path(__file__).parent / "inside"
START_S = 30.0
"""Seconds that a worker may take to start a program, on a busy machine."""
PATIENCE_S = 2.0
"""Seconds that a worker may take, after a program's time is up, to kill and reap it and to remove its folder."""


@dataclass(frozen=True)
class Job:
    """One program. request: command and limits, as JSON (see `engines.job_for`). stdin: input. files: in its folder."""

    request: dict[str, Any]
    stdin: bytes
    files: dict[str, bytes]


@dataclass(frozen=True)
class Outcome:
    """The end of a program. verdict: why the worker killed it ("timeout", "output_limit", "processes", "memory",
    "disk", "cancelled", or "lost" with the worker itself), None if it ended by itself. code: as in `subprocess`, None
    if unknown."""

    verdict: str | None
    code: int | None = None
    stdout: bytes = b""
    stderr: bytes = b""


def run_job(job: Job, cancelled: int | None = None) -> Outcome:
    """Run a program to its end. cancelled: a descriptor that becomes readable when the outcome is no longer needed.

    Raises SandboxFailure when the program could not be started.
    """
    worker = _taken()
    try:
        return worker.ask(job, cancelled)
    except BaseException:
        worker.close()
        raise
    finally:
        if not worker.closed:
            if len(_idle) < (os.cpu_count() or 1):
                _idle.append(worker)
            else:
                worker.close()


@cache
def executable() -> str:
    """The interpreter itself; that of a virtual environment is a link to it and finds more packages."""
    return os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)


class _Worker:
    """A worker's process and the connection to it."""

    def __init__(self) -> None:
        command = [executable(), "-S", "-E", "-s", "-B", str(INSIDE / "worker.py")]
        self.connection, theirs = Pipe()
        self.closed = False
        try:
            no = subprocess.DEVNULL
            self.process = subprocess.Popen(
                command, stdin=theirs.fileno(), stdout=no, stderr=no, env={}, cwd="/", start_new_session=True
            )
        except OSError as error:
            self.connection.close()
            raise SandboxFailure(f"the sandbox could not start a worker: {error}") from error
        finally:
            theirs.close()

    def ask(self, job: Job, cancelled: int | None) -> Outcome:
        """Run a program. A worker that is lost during it is closed."""
        program = None
        try:
            for part in (
                json.dumps({**job.request, "files": list(job.files)}).encode(),
                job.stdin,
                *job.files.values(),
            ):
                self.connection.send_bytes(part)
            answer = self._answer(time.monotonic() + START_S, cancelled)
            if "failed" in answer:
                raise SandboxFailure(f"the sandbox could not start a program: {answer['failed']}")
            program = answer["started"]
            answer = self._answer(time.monotonic() + job.request["wall_s"] + PATIENCE_S, cancelled)
            return Outcome(
                answer["verdict"], answer["code"], self.connection.recv_bytes(), self.connection.recv_bytes()
            )
        except _Cancelled:
            self.close()
            return Outcome("cancelled")
        except (EOFError, OSError, TimeoutError) as error:
            self.process.kill()
            self.close()
            if program is not None:
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(program, signal.SIGKILL)
            with suppress(OSError):
                remove(job.request["folder"])
            if program is None:
                raise SandboxFailure(f"a worker of the sandbox was lost: {type(error).__name__}") from error
            return Outcome("timeout" if isinstance(error, TimeoutError) else "lost")

    def _answer(self, deadline: float, cancelled: int | None) -> dict[str, Any]:
        handles = [self.connection, *([] if cancelled is None else [cancelled])]
        ready = wait(handles, max(0.0, deadline - time.monotonic()))
        if cancelled in ready:
            raise _Cancelled
        if not ready:
            raise TimeoutError
        return json.loads(self.connection.recv_bytes())

    def close(self) -> None:
        """End it and its program."""
        if self.closed:
            return
        self.closed = True
        self.connection.close()
        try:
            self.process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class _Cancelled(Exception):
    """The outcome is no longer needed."""


_idle: list[_Worker] = []


def _taken() -> _Worker:
    while True:
        try:
            worker = _idle.pop()  # one step, so threads need no lock
        except IndexError:
            return _Worker()
        if worker.process.poll() is None:
            return worker
        worker.close()


def _close_all() -> None:
    while _idle:
        _idle.pop().close()


def _forget() -> None:
    """A forked child must not use the parent's workers."""
    for worker in _idle:
        worker.connection.close()
    _idle.clear()


atexit.register(_close_all)
os.register_at_fork(after_in_child=_forget)
