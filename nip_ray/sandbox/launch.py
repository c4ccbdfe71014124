"""Starts the supervisor of one program, and reads its report.

Decisions that matter here:
- at the end of the time `life` closes, and the supervisor kills. Only it can find a process that left the program's group, so where a
  busy machine lets it be late it gets PATIENCE_S more; after that we kill it and the group;
- the supervisor's code travels compiled: it starts in half the time, also where no `__pycache__` can be written;
- the report comes by a pipe that the program does not have, as a few words that are read as such.
"""

import marshal
import os
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from nip_ray.errors import TrainingError
from nip_ray.sandbox.folder import temporary_folder
from nip_ray.sandbox.pump import Pump
from nip_ray.sandbox.result import Status

INSIDE = Path(__file__).parent / "inside"
MODULES = ("kernel", "watch", "landlock", "seccomp", "mounts", "supervisor")
"""What a supervisor consists of, each after what it imports."""

START = """
import marshal, sys
with open(0, "rb", closefd=False) as stdin:
    modules, request = marshal.load(stdin), marshal.load(stdin)
for name, code in modules:
    module = sys.modules[name] = type(sys)(name)
    exec(code, module.__dict__)
module.main(request)
"""


PATIENCE_S = 2.0
"""How much longer than its grace a supervisor may take to end and reap what the program left."""


class SandboxFailure(TrainingError):
    """The sandbox itself could not start; the program did not run."""


@dataclass(frozen=True)
class Job:
    """One program and its limits.

    request: what the supervisor reads. needs_folder: whether it needs a temporary folder from us. wall_s: seconds until it is ended.
    output_bytes: of each stream, before it is ended. on_stdout: takes what comes on standard output instead, and returns the seconds
    that it has from then on (None: no change).
    """

    request: dict[str, Any]
    needs_folder: bool
    wall_s: float
    output_bytes: int
    on_stdout: Callable[[bytes], float | None] | None = None


@dataclass
class Outcome:
    """How a job ended; `stdout` and `stderr` are cut, `status` and the rest are those of SandboxResult."""

    status: Status = "killed"
    exit_code: int | None = None
    stdout: bytearray = field(default_factory=bytearray)
    stderr: bytearray = field(default_factory=bytearray)
    wall_s: float = 0.0
    guards: tuple[str, ...] = ()
    reason: str = ""


def execute(job: Job, cancelled: int | None = None) -> Outcome:
    """Run a job to its end. cancelled: a descriptor that becomes readable when nobody wants the outcome any more.

    Raises SandboxFailure when the program could not be started.
    """
    with ExitStack() as stack:
        request = dict(job.request)
        if job.needs_folder:
            request["folder"] = stack.enter_context(temporary_folder())
        supervisor = stack.enter_context(_Supervisor(job.request["executable"], _request_file(stack, request)))
        streams = (supervisor.stdout, supervisor.stderr)
        pump = Pump(streams, supervisor.report, supervisor.start, job.wall_s, job.output_bytes, supervisor.stop, job.on_stdout)
        pump.run(cancelled)
        supervisor.finish(pump.report)
        pump.drain()
        return _outcome(pump, time.monotonic() - supervisor.start)


def _outcome(pump: Pump, wall_s: float) -> Outcome:
    """What the report says, and why the program was ended if we did."""
    outcome = Outcome(stdout=pump.stdout, stderr=pump.stderr, wall_s=wall_s)
    for line in pump.report.decode(errors="replace").splitlines():
        word, _, rest = line.partition(" ")
        if word == "failed":
            raise SandboxFailure(f"the sandbox could not start a program: {rest}")
        if word == "started":
            outcome.guards = tuple(name for name in rest.partition(" ")[2].split(",") if name)
        elif word == "ended":
            status, outcome.reason = rest.rstrip("-").split(" ")
            outcome.exit_code = os.waitstatus_to_exitcode(int(status))
            outcome.status = _status(outcome.exit_code)
    if not pump.report and pump.verdict is None:
        raise SandboxFailure(f"the supervisor of a program died: {pump.stderr.decode(errors='replace')[-500:]}")
    outcome.status = pump.verdict or outcome.status
    return outcome


def _status(exit_code: int) -> Status:
    if exit_code == -signal.SIGXCPU:
        return "timeout"
    return "killed" if exit_code < 0 else "error" if exit_code else "ok"


def _request_file(stack: ExitStack, request: dict[str, Any]) -> int:
    handle = os.memfd_create("request")
    stack.callback(os.close, handle)
    content = memoryview(_modules() + marshal.dumps(request))
    while content:
        content = content[os.write(handle, content) :]
    os.lseek(handle, 0, os.SEEK_SET)
    return handle


@cache
def _modules() -> bytes:
    """The supervisor's modules, compiled: [(name, code)]."""
    return marshal.dumps([(name, compile((INSIDE / f"{name}.py").read_bytes(), f"<{name}>", "exec")) for name in MODULES])


class _Supervisor:
    """The supervisor's process and pipes; a context manager that leaves nothing of it behind."""

    def __init__(self, executable: str, request: int) -> None:
        """Start it. request: a descriptor to read the request from."""
        self.start = time.monotonic()
        self.report, report_end = os.pipe()
        life_end, self.life = os.pipe()
        try:
            self.process = subprocess.Popen(
                [executable, "-I", "-S", "-B", "-c", START, str(report_end), str(life_end)],
                stdin=request,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env={},
                cwd="/",
                pass_fds=(report_end, life_end),
                start_new_session=True,
            )
        except BaseException:
            os.close(self.report)
            os.close(self.life)
            raise
        finally:
            os.close(report_end)
            os.close(life_end)
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        self.stdout, self.stderr = self.process.stdout.fileno(), self.process.stderr.fileno()

    def stop(self) -> None:
        """Have it end the program."""
        if self.life >= 0:
            os.close(self.life)
            self.life = -1

    def finish(self, report: bytes | bytearray) -> None:
        """Wait for its end, or kill it and the program's process group, as far as the report names one."""
        try:
            self.process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        words = bytes(report).split()
        if words[:1] == [b"started"] and b"ended" not in words:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(int(words[1]), signal.SIGKILL)

    def __enter__(self) -> "_Supervisor":
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        if self.process.poll() is None:  # an exception came between
            self.finish(b"")
        for stream in (self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()
        os.close(self.report)
