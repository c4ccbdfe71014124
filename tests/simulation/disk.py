"""The disk of a simulated world: what is written is in the page cache at once, and on the platter once it was synced.

Decisions that matter here:
- files are real ones below a folder in memory: they are what programs see, the page cache. Beside them stands what the
  platter has: of each file its content at the last fsync, of each folder its entries at the last fsync and what was
  done to them since, in order;
- a killed process leaves the page cache as it is, and can tear the write that it was in. A power failure leaves of each
  file what was synced, and any part of what was added since, perhaps with zeros where blocks never came; of each folder
  what was synced and the first so many changes since;
- every operation that changes something asks `fault` first, which may end the process before or after it or half-way,
  or have the operation fail. A dead process changes nothing any more;
- an fsync may lie: it says that it was done, and nothing is on the platter.
"""

import builtins
import errno
import io
import os
import random
import re
import shutil
import stat
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.simulation.clock import Gone

ERRORS = {"no space": errno.ENOSPC, "input/output error": errno.EIO}
ACTIONS: dict[str, tuple[str, ...]] = {
    "create": ("before", "after", *ERRORS),
    "write": ("before", "after", "torn", "short", *ERRORS),
    "truncate": ("before", "after", "input/output error"),
    "fsync": ("before", "after", "input/output error"),
    "replace": ("before", "after", *ERRORS),
    "unlink": ("before", "after", "input/output error"),
    "mkdir": ("before", "after", *ERRORS),
    "rmdir": ("before", "after"),
    "read": ("input/output error",),
}
"""Operation -> what can happen at it: the process ends before or after, or in the middle of a write ("torn"); a write
takes a part only ("short"); or the operation fails."""

Fault = Callable[[str, str], str | None]
"""(operation, kind of file) -> an action, or nothing."""


@dataclass
class _File:
    """synced: its content at the last fsync. last: its content when it lost its last name in the page cache."""

    synced: bytes | None = None
    last: bytes | None = None


@dataclass
class _Folder:
    """synced: name -> inode at the last fsync. pending: what was done since: (name, inode; None: it lost its entry),
    several at once."""

    synced: dict[str, int] = field(default_factory=dict)
    pending: list[list[tuple[str, int | None]]] = field(default_factory=list)


def kind_of(path: str) -> str:
    """A path without what differs from one run, iteration or process to another."""
    return re.sub(r"\d+", "#", path)


class Disk:
    """Everything below `root`, an empty folder. There is one at a time in a process; `install` makes it the one that
    programs see."""

    current: "Disk | None" = None

    def __init__(self, root: Path, dice: random.Random, fault: Fault) -> None:
        self.root, self.dice, self.fault = os.path.realpath(root), dice, fault
        self.dead, self.lies = False, False
        self.heard: Callable[[str, str], None] = lambda path, what: None
        self._forget()

    def _forget(self) -> None:
        """What is there is on the platter."""
        self._files: dict[int, _File] = {}
        self._folders: dict[int, _Folder] = {}
        for place, folders, files in os.walk(self.root):
            entries = {name: os.stat(os.path.join(place, name)).st_ino for name in (*folders, *files)}
            self._folders[os.stat(place).st_ino] = _Folder(entries)
            for name in files:
                with _open(os.path.join(place, name), "rb") as file:
                    self._files[entries[name]] = _File(file.read())

    # ------------------------------------------------------------------------------------------------------- operations

    def below(self, path: Any) -> str | None:
        """The path relative to the root, None where it is elsewhere."""
        if isinstance(path, int):
            return None
        text = os.path.abspath(os.fspath(path))
        return text[len(self.root) + 1 :] if f"{text}/".startswith(f"{self.root}/") else None

    def begin(self, operation: str, path: str) -> str | None:
        """What happens at it. Raises Gone where the process is dead or dies before it, OSError where it fails."""
        if self.dead:
            raise Gone
        action = self.fault(operation, kind_of(path))
        if action == "before":
            self.die()
        if action in ERRORS:
            raise OSError(ERRORS[action], os.strerror(ERRORS[action]), path)
        return action

    def end(self, action: str | None) -> None:
        if action == "after":
            self.die()

    def die(self) -> None:
        """The process ends here."""
        self.dead = True
        raise Gone

    def entries(self, folder: str, *changes: tuple[str, int | None]) -> None:
        """Note changes of a folder's entries that happen at once."""
        self._folders.setdefault(os.stat(folder).st_ino, _Folder()).pending.append(list(changes))

    def synced(self, path: str) -> bytes | None:
        """What the platter has of a file, None where it has not even its name."""
        *way, name = path.split("/")
        at = os.stat(self.root).st_ino
        for part in (*way, name):
            folder = self._folders.get(at)
            if folder is None or part not in folder.synced:
                return None
            at = folder.synced[part]
        found = self._files.get(at)
        return None if found is None else found.synced

    def sync(self, descriptor: int) -> None:
        """Put a file's content or a folder's entries on the platter."""
        found = os.fstat(descriptor)
        if stat.S_ISDIR(found.st_mode):
            folder = self._folders.setdefault(found.st_ino, _Folder())
            for change in folder.pending:
                _apply(folder.synced, change)
            folder.pending.clear()
        else:
            with _open(f"/proc/self/fd/{descriptor}", "rb") as file:
                self._files.setdefault(found.st_ino, _File()).synced = file.read()

    def unnamed(self, path: str) -> None:
        """A file is about to lose this name."""
        if os.path.isfile(path):
            with _open(path, "rb") as file:
                self._files.setdefault(os.stat(path).st_ino, _File()).last = file.read()

    # ------------------------------------------------------------------------------------------------------------ power

    def power_failure(self) -> None:
        """Leave what the platter has, and by chance some of what was on its way."""
        now = {}
        for place, _, names in os.walk(self.root):
            for name in names:
                path = os.path.join(place, name)
                with _open(path, "rb") as file:
                    now[os.stat(path).st_ino] = file.read()
        made: dict[str, bytes | None] = {}
        self._collect("", os.stat(self.root).st_ino, now, made)
        for place, folders, files in os.walk(self.root, topdown=False):
            for name in files:
                _real["unlink"](os.path.join(place, name))
            for name in folders:
                _real["rmdir"](os.path.join(place, name))
        for path, content in made.items():
            if content is None:
                _real["mkdir"](os.path.join(self.root, path))
            else:
                with _open(os.path.join(self.root, path), "wb") as file:
                    file.write(content)
        self._forget()

    def _collect(self, where: str, inode: int, now: dict[int, bytes], made: dict[str, bytes | None]) -> None:
        folder = self._folders.get(inode, _Folder())
        entries = dict(folder.synced)
        for change in folder.pending[: self.dice.randint(0, len(folder.pending))]:
            _apply(entries, change)
        for name, at in entries.items():
            path = f"{where}{name}"
            if at in self._folders:
                made[path] = None
                self._collect(f"{path}/", at, now, made)
            else:
                made[path] = self._content(self._files.get(at, _File()), now.get(at))

    def _content(self, file: _File, now: bytes | None) -> bytes:
        before, after = file.synced or b"", now if now is not None else file.last or b""
        chance = self.dice.random()
        if before == after or chance < 0.4:
            return before
        if chance < 0.6:
            return after
        if not after.startswith(before):
            return self.dice.choice((before, after))
        cut = self.dice.randint(len(before), len(after))
        return after[:cut] + (b"\0" * (len(after) - cut) if chance > 0.8 else b"")


def _apply(entries: dict[str, int], change: list[tuple[str, int | None]]) -> None:
    for name, inode in change:
        if inode is None:
            entries.pop(name, None)
        else:
            entries[name] = inode


# --------------------------------------------------------------------------------------------------------------- what
# programs call

_open = io.open
_real: dict[str, Any] = {
    name: getattr(os, name) for name in ("fsync", "replace", "rename", "unlink", "remove", "mkdir", "rmdir")
}
_opened: list["_Raw"] = []


class _Raw(io.FileIO):
    """A file that is open for writing."""

    def __init__(self, disk: Disk, path: Any, mode: str) -> None:
        self._disk, self._path = disk, disk.below(path) or ""
        super().__init__(path, mode)
        _opened.append(self)

    def write(self, data: Any) -> int:  # type: ignore[override]
        action = self._disk.begin("write", self._path)
        data = bytes(data)
        if action in ("torn", "short"):
            data = data[: self._disk.dice.randrange(len(data))] if data else data
        written = super().write(data) or 0
        if action == "torn":
            self._disk.die()
        self._disk.heard(self._path, "write")
        self._disk.end(action)
        return written

    def truncate(self, size: int | None = None) -> int:  # type: ignore[override]
        action = self._disk.begin("truncate", self._path)
        done = super().truncate(size)
        self._disk.end(action)
        return done


def _sim_open(file: Any, mode: str = "r", buffering: int = -1, encoding: Any = None, errors: Any = None,
              newline: Any = None, closefd: bool = True, opener: Any = None) -> Any:  # fmt: skip
    disk = Disk.current
    path = None if disk is None else disk.below(file)
    if disk is not None and path is not None and not set(mode) & set("wax+"):
        if os.path.isfile(file):
            disk.begin("read", path)
        path = None
    if disk is None or path is None:
        return _open(file, mode, buffering, encoding, errors, newline, closefd, opener)
    is_new = not os.path.lexists(file)
    action = disk.begin("create", path) if is_new else None
    if disk.dead:
        raise Gone
    raw = _Raw(disk, file, mode.replace("b", "").replace("t", ""))
    if is_new:
        disk.entries(os.path.dirname(os.path.abspath(file)), (os.path.basename(file), os.fstat(raw.fileno()).st_ino))
        disk.end(action)
    if "b" in mode and buffering == 0:
        return raw
    buffered: Any = io.BufferedRandom(raw) if "+" in mode else io.BufferedWriter(raw)
    return buffered if "b" in mode else io.TextIOWrapper(buffered, encoding, errors, newline)


def _fsync(descriptor: Any) -> None:
    disk = Disk.current
    number = descriptor if isinstance(descriptor, int) else descriptor.fileno()
    path = None if disk is None else disk.below(os.readlink(f"/proc/self/fd/{number}"))
    if disk is None or path is None:
        return _real["fsync"](descriptor)
    action = disk.begin("fsync", path or "/")
    if not disk.lies:
        disk.sync(number)
    disk.end(action)
    return None


def _replace(source: Any, target: Any, **rest: Any) -> None:
    disk = Disk.current
    path = None if disk is None else disk.below(target)
    if disk is None or path is None:
        return _real["replace"](source, target, **rest)
    action = disk.begin("replace", path)
    inode, folder = os.stat(source).st_ino, os.path.dirname(os.path.abspath(target))
    if os.path.exists(target):
        disk.unnamed(os.fspath(target))
    _real["replace"](source, target, **rest)
    disk.entries(folder, (os.path.basename(source), None), (os.path.basename(target), inode))
    disk.heard(path, "replace")
    disk.end(action)
    return None


def _unlink(path: Any, **rest: Any) -> None:
    disk = Disk.current
    inside = None if disk is None or "dir_fd" in rest else disk.below(path)
    if disk is None or inside is None:
        return _real["unlink"](path, **rest)
    if not os.path.lexists(path):
        if disk.dead:
            raise Gone
        return _real["unlink"](path, **rest)  # which says so
    action = disk.begin("unlink", inside)
    disk.unnamed(os.fspath(path))
    _real["unlink"](path, **rest)
    disk.entries(os.path.dirname(os.path.abspath(path)), (os.path.basename(path), None))
    disk.end(action)
    return None


def _mkdir(path: Any, *mode: Any, **rest: Any) -> None:
    disk = Disk.current
    inside = None if disk is None or "dir_fd" in rest else disk.below(path)
    if (
        disk is None
        or inside is None
        or os.path.lexists(path)
        or not os.path.isdir(os.path.dirname(os.path.abspath(path)))
    ):
        if disk is not None and inside is not None and disk.dead:
            raise Gone
        return _real["mkdir"](path, *mode, **rest)
    action = disk.begin("mkdir", inside)
    _real["mkdir"](path, *mode, **rest)
    inode = os.stat(path).st_ino
    disk._folders[inode] = _Folder()
    disk.entries(os.path.dirname(os.path.abspath(path)), (os.path.basename(path), inode))
    disk.end(action)
    return None


def _rmdir(path: Any, **rest: Any) -> None:
    disk = Disk.current
    inside = None if disk is None or "dir_fd" in rest else disk.below(path)
    if disk is None or inside is None or not os.path.isdir(path):
        return _real["rmdir"](path, **rest)
    action = disk.begin("rmdir", inside)
    _real["rmdir"](path, **rest)
    disk.entries(os.path.dirname(os.path.abspath(path)), (os.path.basename(path), None))
    disk.end(action)
    return None


def install() -> None:
    """Have all of this process write by `Disk.current`, for good. What lies elsewhere is left to the system."""
    builtins.open = io.open = _sim_open  # type: ignore[assignment]
    os.fsync, os.replace, os.rename, os.mkdir = _fsync, _replace, _replace, _mkdir  # type: ignore[assignment]
    os.unlink = os.remove = _unlink  # type: ignore[assignment]
    os.rmdir = _rmdir  # type: ignore[assignment]
    shutil._use_fd_functions = False  # type: ignore[attr-defined]  # so that trees are removed by these, name by name


def abandon() -> None:
    """Close what a dead process had open, and with it its locks."""
    for raw in _opened:
        if not raw.closed:
            io.FileIO.close(raw)
    _opened.clear()
