"""The command that runs a program at each level. At `isolated` it is the argument list of bwrap, docker or podman.

Decisions that matter here:
- commands are pure functions of their arguments, so they can be read and tested without an engine;
- versions and settings do not show whether an engine works here: each is tried once with a trial program. The first
  that runs it is used, and if none does, one error names each with its reason. There is no fallback to a weaker level;
- a program only sees itself, its files and the interpreter; its writes go to small folders in memory.
"""

import csv
import io
import os
import secrets
import shutil
import sys
import sysconfig
import tempfile
from collections.abc import Collection
from functools import cache
from typing import Any

from nip_ray.errors import UserError
from nip_ray.sandbox.result import SandboxFailure
from nip_ray.sandbox.workers import Job, Outcome, executable, run_job
from nip_ray.settings.sandbox import SandboxSettings

MAIN, BOX = "program.py", "/box"
"""The program's name in its folder, and the folder's path for an isolated program."""
ENGINES = ("bwrap", "docker", "podman")
OPEN_FILES = 256
FOLDER_FILES = 4
"""A program's folder may be this many times the maximum file size."""
PROBE_S = 20.0
MEMORY, ROOM = "/dev/shm", 1 << 30
"""A folder in memory, and the free bytes that it needs."""


def variables(home: str) -> dict[str, str]:
    """All environment variables of a program. Without a hash seed, the printed order of a set would be random."""
    return {"PATH": "/usr/bin:/bin", "HOME": home, "TMPDIR": home, "LANG": "C.UTF-8", "PYTHONHASHSEED": "0"}


def folder_mb(settings: SandboxSettings) -> int:
    """Maximum size of a program's folder."""
    return FOLDER_FILES * settings.file_mb + 1


def bwrap_command(bwrap: str, folder: str, names: Collection[str], settings: SandboxSettings) -> list[str]:
    """The command that runs a folder's program in new namespaces, where only interpreter and program are visible."""
    small = ["--size", str(folder_mb(settings) << 20), "--tmpfs"]
    command = [bwrap, "--unshare-user", "--unshare-all", "--uid", "65534", "--gid", "65534", "--cap-drop", "ALL"]
    command += ["--die-with-parent", "--new-session", "--hostname", "box"]
    for path in readable():
        command += ["--ro-bind", path, path]
    command += [
        "--proc",
        "/proc",
        "--dev",
        "/dev",
        *small,
        "/dev/shm",
        "--remount-ro",
        "/dev",
        *small,
        "/tmp",
        *small,
        BOX,
    ]
    command += ["--ro-bind", f"{folder}/env", "/env"]
    for name in names:
        command += ["--ro-bind", f"{folder}/box/{name}", f"{BOX}/{name}"]
    return [*command, "--remount-ro", "/", "--chdir", BOX, "--", "/env/bin/python", "-B", MAIN]


def container_command(
    engine: str, container: str, folder: str, names: Collection[str], settings: SandboxSettings
) -> list[str]:
    """The command that runs a folder's program in a container of this name, by the image's own interpreter."""
    memory, cpu, file_bytes = f"{settings.memory_mb}m", settings.cpu_s, settings.file_mb << 20
    small = f"rw,noexec,nosuid,nodev,mode=1777,size={folder_mb(settings)}m"
    command = [
        engine, "run", "--rm", "--interactive", "--pull", "never", "--name", container, "--init",
        "--network", "none", "--read-only", "--cap-drop", "ALL", "--security-opt", "no-new-privileges", "--user",
        "65534:65534", "--memory", memory, "--memory-swap", memory, "--pids-limit", str(settings.processes), "--ipc",
        "private", "--ulimit", f"cpu={cpu}:{cpu + 1}", "--ulimit", f"fsize={file_bytes}", "--ulimit",
        f"nofile={OPEN_FILES}", "--ulimit", "core=0", "--tmpfs", f"/tmp:{small}", "--tmpfs", f"{BOX}:{small}",
        "--workdir", BOX,
    ]  # fmt: skip
    for name in names:
        command += ["--mount", _row("type=bind", f"source={folder}/box/{name}", f"target={BOX}/{name}", "readonly")]
    for name, value in variables(BOX).items():
        if name != "PATH":
            command += ["--env", f"{name}={value}"]
    return [*command, settings.container_image, "python", "-B", MAIN]


def _row(*values: str) -> str:
    """Values in the form of `--mount`, a row of CSV: file names may have commas and quotation marks."""
    row = io.StringIO()
    csv.writer(row, lineterminator="").writerow(values)
    return row.getvalue()


@cache
def readable() -> list[str]:
    """Exactly the files and folders that an interpreter needs to start."""
    base = {"base": sys.base_prefix, "platbase": sys.base_exec_prefix, "installed_base": sys.base_prefix}
    library = os.path.join(sysconfig.get_config_var("LIBDIR") or "", sysconfig.get_config_var("LDLIBRARY") or "none")
    paths = {executable(), sysconfig.get_path("stdlib", vars=base), sysconfig.get_path("platstdlib", vars=base)}
    paths |= {library, os.path.realpath(library)}
    system = ["/lib", "/lib64", "/usr/lib", "/usr/lib64", "/etc/ld.so.cache", "/etc/localtime", "/usr/share/zoneinfo"]
    paths = {path for path in paths if not path.startswith(("/lib/", "/usr/lib/"))}
    return [path for path in (*system, *sorted(paths)) if os.path.exists(path)]


def job_for(
    program: str,
    stdin: str,
    files: dict[str, bytes],
    settings: SandboxSettings,
    engine: str | None,
    output_bytes: int | None = None,
) -> Job:
    """The job for a worker. engine: the path of bwrap, docker or podman, None at the level `trusted`.

    output_bytes: None for the settings' own. Raises UserError for file names that are not plain.
    """
    for name in files:
        if name in (MAIN, ".", "..") or not name or "/" in name or "\0" in name:
            raise UserError(
                f"files: {name!r} cannot be beside the program; give plain names without folders, other than {MAIN}"
            )
    names, folder = (MAIN, *files), os.path.join(place(), f"nip-sandbox-{secrets.token_hex(8)}")
    command, stop, env = [f"{folder}/env/bin/python", "-B", MAIN], [], variables(f"{folder}/box")
    kind = os.path.basename(engine or "")
    if engine and kind == "bwrap":
        command, env = bwrap_command(engine, folder, names, settings), variables(BOX)
    elif engine:
        container = os.path.basename(folder)
        command, stop = container_command(engine, container, folder, names, settings), [engine, "kill", container]
        # the client's own: it has to find its service. A container only gets those of `--env`
        env = dict(os.environ)
    request: dict[str, Any] = {
        "executable": executable(),
        "folder": folder,
        "command": command,
        "stop": stop,
        "env": env,
        "shared": bool(stop),
        "limits": {} if stop else _limits(settings),
        "wall_s": settings.wall_s,
        "output_bytes": output_bytes or settings.output_kb * 1000,
        # bwrap itself twice; a client's threads
        "processes": settings.processes + (2 if kind == "bwrap" else 64 if stop else 0),
        "memory_mb": settings.memory_mb,
        "folder_mb": folder_mb(settings),
    }
    content = {MAIN: program.encode(errors="surrogatepass"), **files}
    return Job(request, stdin.encode(errors="replace"), content)


def _limits(settings: SandboxSettings) -> dict[str, tuple[int, int]]:
    """The kernel's limits of each process. Core files are limited to exactly one byte: then no file is written, and no
    core helper started."""
    memory, file_bytes = settings.memory_mb << 20, settings.file_mb << 20
    return {
        "CPU": (settings.cpu_s, settings.cpu_s + 1),
        "AS": (memory, memory),
        "FSIZE": (file_bytes, file_bytes),
        "NOFILE": (OPEN_FILES, OPEN_FILES),
        "CORE": (1, 1),
    }


def place() -> str:
    """The folder for programs' folders: in memory if there is room and TMPDIR is not set, since some disks are slow."""
    if "TMPDIR" in os.environ or not os.access(MEMORY, os.W_OK | os.X_OK):
        return tempfile.gettempdir()
    free = os.statvfs(MEMORY)
    return MEMORY if free.f_bavail * free.f_frsize >= ROOM else tempfile.gettempdir()


# --------------------------------------------------------------------------------------------------------------- choice


def engine_for(settings: SandboxSettings) -> str | None:
    """The path of the engine that isolates programs here; None at the level `trusted`.

    Raises UserError for another level, and if no engine works.
    """
    if settings.isolation == "trusted":
        return None
    if settings.isolation != "isolated":
        raise UserError(f"isolation: {settings.isolation} is not a level; expected: trusted or isolated")
    return _working(os.environ.get("PATH", ""), settings.container_image)


@cache
def _working(path: str, image: str) -> str:
    reasons = []
    for name in ENGINES:
        engine = shutil.which(name, path=path)
        reason = "is not on the PATH" if engine is None else trial(engine, image)
        if engine is not None and reason is None:
            return engine
        reasons.append(f"{name} {reason}")
    raise UserError(
        f"isolation: isolated needs bwrap (bubblewrap), docker or podman, and none works here: {'; '.join(reasons)}. "
        "Install one, or take trusted for programs that you trust with your files: docs/sandbox.md"
    )


def trial(engine: str, image: str) -> str | None:
    """Why an engine cannot run a program here; None if it can."""
    settings = SandboxSettings(isolation="isolated", wall_s=PROBE_S, container_image=image)
    try:
        outcome = run_job(job_for("print(6 * 7)", "", {}, settings, engine))
    except SandboxFailure as failure:
        return f"does not start ({failure})"
    if outcome.verdict is None and outcome.code == 0 and outcome.stdout == b"42\n":
        return None
    said = " ".join(outcome.stderr.decode(errors="replace").split())
    return f"does not run a trial program ({said[:300] or outcome.verdict or f'exit code {outcome.code}'})"


def check_started(outcome: Outcome, engine: str, settings: SandboxSettings) -> None:
    """Raise SandboxFailure if an engine, and not the program, ended in this way.

    A program can end with the same code and message, so the engine is tried again first.
    """
    blamed = outcome.verdict is None and outcome.code in (1, 125, 126, 127) and not outcome.stdout
    if blamed and outcome.stderr.startswith((b"bwrap: ", b"docker: ", b"Error: ", b"podman: ")):
        reason = trial(engine, settings.container_image)
        if reason is not None:
            said = outcome.stderr.decode(errors="replace").strip()[-300:]
            raise SandboxFailure(f"{os.path.basename(engine)} did not start a program ({said}), and {reason}")
