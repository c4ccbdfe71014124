"""Results of one program."""

from dataclasses import dataclass
from typing import Literal

from nip_ray.errors import TrainingError
from nip_ray.settings.sandbox import SandboxSettings

Status = Literal["ok", "error", "timeout", "killed", "output_limit"]

DEFAULTS = SandboxSettings()
"""The limits where none are given."""


class SandboxFailure(TrainingError):
    """The sandbox itself could not start; the program did not run."""


@dataclass(frozen=True)
class SandboxResult:
    """How a program ended, and what it wrote.

    status: "ok" (it ended with code 0), "error" (another code), "timeout" (too long by the clock or by processor time),
    "killed" (by a signal, also when it had too many processes, too much memory or too many files), "output_limit" (too
    much standard output).
    exit_code: the code; minus the signal when a signal ended it; None where it is not known. stdout, stderr: at most
    `output_kb` of each; what is not UTF-8 is replaced. wall_s: seconds, from the call to its end. isolation: the level,
    "trusted" or "isolated".
    reason: of "killed", where the sandbox killed it: "processes", "memory" or "disk". engine: of "isolated", "bwrap",
    "docker" or "podman".
    """

    status: Status
    exit_code: int | None
    stdout: str
    stderr: str
    wall_s: float
    isolation: str
    reason: str = ""
    engine: str = ""
