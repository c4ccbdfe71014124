"""Which ways of shutting a program in work on this machine. Each is tried with a real program, once per process.

Decisions that matter here:
- whether namespaces work cannot be told from versions and settings (containers, hardened kernels, odd roots): running something can;
- root hands each program to a user of its own where the interpreter can be read by everybody: the kernel then counts its processes,
  and nobody's files are its own;
- where nothing but limits works, a program still runs, and its result says what guarded it.
"""

import os
import sys
import sysconfig
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from typing import Literal

from nip_ray.errors import UserError
from nip_ray.progress import say
from nip_ray.sandbox.launch import Job, SandboxFailure, execute
from nip_ray.settings.sandbox import SandboxSettings

PROBE = SandboxSettings(wall_s=20.0)
"""Limits of the trial program: generous, so that a busy machine does not look like one without namespaces."""


@dataclass(frozen=True)
class Plan:
    """One way of shutting a program in.

    namespaces: of its own, with a root folder of its own; else a mere process. own_user: a user of its own (needs root).
    seccomp, landlock: used where the kernel has them.
    """

    namespaces: bool
    own_user: bool
    seccomp: bool = True
    landlock: bool = True

    @property
    def isolation(self) -> str:
        """The level's name in the settings."""
        return "namespaces" if self.namespaces else "process"


def plan_for(isolation: Literal["auto", "process", "namespaces"]) -> Plan:
    """The best plan of a level that works here. "auto" says so on stderr, once, when it comes down to "process".

    Raises UserError when the level does not work here.
    """
    if isolation == "auto":
        found = _best("namespaces")
        return found if isinstance(found, Plan) else _fallen_back(found)
    found = _best(isolation)
    if isinstance(found, Plan):
        return found
    raise UserError(f"isolation: {isolation} does not work on this machine ({found}); auto takes what does")


@cache
def _fallen_back(why: str) -> Plan:
    reason = " ".join(why.split())
    say(f"sandbox: programs run at the level process: namespaces do not work here ({reason}); see docs/sandbox.md")
    return plan_for("process")


@cache
def _best(level: str) -> Plan | str:
    """The first plan of a level that works, or why none does."""
    reasons = []
    for own_user in (True, False) if os.geteuid() == 0 else (False,):
        plan = Plan(namespaces=level == "namespaces", own_user=own_user)
        try:
            outcome = execute(job("print(6 * 7)", "", {}, plan, PROBE))
        except SandboxFailure as failure:
            reasons.append(str(failure))
            continue
        if outcome.status == "ok" and outcome.stdout == b"42\n":
            return plan
        reasons.append(f"a trial program ended as {outcome.status}: {outcome.stderr[-200:].decode(errors='replace').strip()}")
    return "; ".join(reasons)


MAIN = "program.py"
"""The program's name in its folder."""


def job(program: str, stdin: str, files: dict[str, bytes], plan: Plan, settings: SandboxSettings) -> Job:
    """What the supervisor is asked to do. Raises UserError for names of files that are no plain names."""
    check_names(files)
    request = {
        "plan": asdict(plan),
        "files": {MAIN: program.encode(errors="surrogatepass"), **files},
        "main": MAIN,
        "stdin": stdin.encode(errors="replace"),
        "executable": executable(),
        "readable": readable(),
        "cpu_s": settings.cpu_s,
        "memory_mb": settings.memory_mb,
        "processes": settings.processes,
        "file_mb": settings.file_mb,
    }
    return Job(request, needs_folder=not plan.namespaces, wall_s=settings.wall_s, output_bytes=settings.output_kb * 1000)


def check_names(files: Mapping[str, bytes]) -> None:
    """Raises UserError for names of files that are no plain names."""
    for name in files:
        if name in (MAIN, ".", "..") or not name or "/" in name or "\0" in name:
            raise UserError(f"files: {name!r} cannot stand beside the program; give plain names without folders, other than {MAIN}")


@cache
def executable() -> str:
    """The interpreter itself; that of a virtual environment is a link to it and knows of more packages."""
    return os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)


@cache
def readable() -> list[str]:
    """The files and folders that an interpreter needs to start, and no more."""
    paths = {executable(), sysconfig.get_path("stdlib", vars=_base()), sysconfig.get_path("platstdlib", vars=_base())}
    library = os.path.join(sysconfig.get_config_var("LIBDIR") or "", sysconfig.get_config_var("LDLIBRARY") or "none")
    paths |= {library, os.path.realpath(library)}
    system = ["/lib", "/lib64", "/usr/lib", "/usr/lib64", "/etc/ld.so.cache", "/etc/localtime", "/usr/share/zoneinfo"]
    return [*system, *sorted(path for path in paths if os.path.exists(path) and not path.startswith(("/lib/", "/usr/lib/")))]


def _base() -> dict[str, str]:
    return {"base": sys.base_prefix, "platbase": sys.base_exec_prefix, "installed_base": sys.base_prefix}
