"""Results of one program."""

from dataclasses import dataclass
from typing import Literal

from nip_ray.errors import TrainingError
from nip_ray.settings.sandbox import SandboxSettings

Status = Literal["ok", "error", "timeout", "killed", "output_limit"]

DEFAULTS = SandboxSettings()
"""The default limits."""


class SandboxFailure(TrainingError):
    """The sandbox itself could not start; the program did not run."""


@dataclass(frozen=True)
class SandboxResult:
    """The end of a program, and its output.

    status: "ok" (it ended with code 0), "error" (another code), "timeout" (too long by the clock or by processor time),
    "killed" (by a signal, also for too many processes, too much memory or too many files), "output_limit" (too much
    standard output). exit_code: the code; minus the signal if a signal ended it; None if unknown. stdout, stderr: at
    most `output_kb` of each; invalid UTF-8 is replaced. wall_s: seconds, from the call to its end. isolation: the
    level, "trusted" or "isolated". reason: for "killed", if the sandbox killed it: "processes", "memory" or "disk".
    engine: for "isolated", "bwrap", "docker" or "podman".
    """

    status: Status
    exit_code: int | None
    stdout: str
    stderr: str
    wall_s: float
    isolation: str
    reason: str = ""
    engine: str = ""
