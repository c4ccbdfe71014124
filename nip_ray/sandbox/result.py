"""What comes of one program."""

from dataclasses import dataclass
from typing import Literal

from nip_ray.settings.sandbox import SandboxSettings

Status = Literal["ok", "error", "timeout", "killed", "output_limit"]

DEFAULTS = SandboxSettings()
"""The limits of who names none."""


@dataclass(frozen=True)
class SandboxResult:
    """How a program ended, and what it wrote.

    status: "ok" (it ended with code 0), "error" (another code), "timeout" (too long by the clock or by processor time), "killed" (by a
    signal, also when it had too many processes, too much memory or too many files), "output_limit" (it wrote too much).
    exit_code: the code; minus the signal when a signal ended it; None where it is not known. stdout, stderr: at most `output_kb` of
    each; what is not UTF-8 is replaced. wall_s: seconds, from our call to its end. isolation: the level that was used, "process",
    "namespaces" or "container". guards: what was active, of `nip_ray.sandbox.coverage.GUARDS`. reason: of "killed", where we killed it:
    "processes", "memory" or "disk".
    """

    status: Status
    exit_code: int | None
    stdout: str
    stderr: str
    wall_s: float
    isolation: str
    guards: tuple[str, ...] = ()
    reason: str = ""
