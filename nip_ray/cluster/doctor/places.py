"""Folders that a run writes to: its own, and Ray's.

Decisions that matter here:
- they are tried with what a run does to them: a real run folder is made, written, locked and taken away. Modes tell root nothing, and
  nobody what a network file system thinks of locks;
- folders that were not there are removed again, so that looking changes nothing.
"""

import os
import shutil
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from nip_ray.cluster.doctor.finding import Finding, note, ok, problem, size
from nip_ray.errors import UserError
from nip_ray.storage.folder import RunFolder

LEAST_DISK, EASY_DISK = 64 << 20, 1 << 30
"""Bytes."""

SOCKET_PATH = 107
"""Bytes that the path of a Unix socket may have on Linux."""

LONGEST_SOCKET = "sockets/dash_MetricsHead"
"""The longest name of a socket in a session's folder. Where it does not fit, Ray's dashboard fails to start, and with it our Ray."""


def storage(path: Path) -> list[Finding]:
    """Whether runs can be kept below `path`: made, written, forced to disk, renamed, locked; and how much fits."""
    choose = "choose another folder by --run-dir"
    try:
        locks = _try_run(path)
        free = shutil.disk_usage(path if path.exists() else _existing(path)).free
    except (OSError, UserError) as error:
        reason = error.strerror or type(error).__name__ if isinstance(error, OSError) else str(error)
        return [problem("storage", f"{path}: runs cannot be kept here ({reason})", choose)]
    if free < LEAST_DISK:
        return [problem("storage", f"{path}: the disk is full ({size(free)} are free)", f"free some of it, or {choose}")]
    if not locks:
        what = f"{path}: this file system has no locks, so that nothing keeps two processes from writing one run"
        return [note("storage", what, f"see to it that one process writes a run at a time, or {choose}")]
    if free < EASY_DISK:
        return [
            note("storage", f"{path} can be written, but only {size(free)} are free", "free some of the disk, or keep fewer checkpoints")
        ]
    return [ok("storage", f"{path} can be written and locked, {size(free)} are free")]


def ray_folder() -> list[Finding]:
    """Whether Ray can put its sessions, and sockets with their short paths, where it would."""
    folder = ray_temp()
    mend = "export RAY_TMPDIR to a short path of a folder that you can write"
    try:
        with made(folder), tempfile.TemporaryFile(dir=folder):
            usage = shutil.disk_usage(folder)
    except OSError as error:
        return [problem("ray folder", f"Ray cannot write {folder} ({error.strerror or type(error).__name__})", mend)]
    found = judge_socket_paths(folder, os.getpid(), _largest_pid())
    if found.status == "ok" and usage.used > 0.95 * (usage.used + usage.free):
        what = f"the disk of {folder} is more than 95 % full: Ray then stops spilling objects to it"
        return [note("ray folder", what, "free some of it, or export RAY_TMPDIR to another disk")]
    return [found]


def judge_socket_paths(folder: Path, pid: int, largest_pid: int) -> Finding:
    """Whether Ray's sockets have room below `folder` for sessions of a process with a number as long as `pid`, or as `largest_pid`."""
    mend = "export RAY_TMPDIR to a shorter path, such as /tmp"
    now, longest = (_socket_path(folder, number) for number in (pid, largest_pid))
    if now > SOCKET_PATH:
        what = f"paths of Ray's sockets below {folder} would have {now} bytes, and {SOCKET_PATH} is the most"
        return problem("ray folder", what, mend)
    if longest > SOCKET_PATH:
        what = f"paths of Ray's sockets below {folder} are too long for processes with numbers like {largest_pid}"
        return note("ray folder", what, mend)
    return ok("ray folder", f"{folder} can be written, and its path is short enough for sockets")


def ray_temp() -> Path:
    """Ray's folder for sessions, chosen as Ray does."""
    return Path(os.environ.get("RAY_TMPDIR", os.environ.get("TMPDIR", "/tmp"))) / "ray"


@contextmanager
def made(folder: Path) -> Iterator[None]:
    """`folder` is there inside, with its parents; afterwards those that were not there before are removed, unless somebody uses them.

    Raises OSError when it cannot be made.
    """
    missing = []
    above = folder
    while not above.exists():
        missing.append(above)
        above = above.parent
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    finally:
        for one in missing:
            with suppress(OSError):  # not made, or not empty: somebody else's by now
                one.rmdir()


def _try_run(path: Path) -> bool:
    """Make, write and remove a run below `path`; whether it could be locked. Raises OSError or UserError when it cannot be done."""
    with ExitStack() as stack:
        stack.enter_context(made(path))
        scratch = stack.enter_context(tempfile.TemporaryDirectory(prefix=".doctor-", dir=path))
        told = stack.enter_context(warnings.catch_warnings(record=True))
        warnings.simplefilter("always")
        with RunFolder.create(Path(scratch) / "run", "name: doctor\n") as run:
            run.append_metrics({"iteration": 0})
            run.sync()
        return not told


def _existing(path: Path) -> Path:
    path = path.absolute()
    while not path.exists():
        path = path.parent
    return path


def _socket_path(folder: Path, pid: int) -> int:
    session = f"session_2026-01-01_00-00-00_000000_{pid}"
    return len(os.fsencode(folder / session / LONGEST_SOCKET))


def _largest_pid() -> int:
    try:
        return int(Path("/proc/sys/kernel/pid_max").read_text(encoding="ascii")) - 1
    except (OSError, ValueError):
        return 4_194_303
