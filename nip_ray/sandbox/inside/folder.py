"""Temporary folders that programs write to, and taking them away whatever is in them.

Decisions that matter here:
- no recursion, no long paths, and one open folder at a time: we walk down by names and up by `..`, so depth costs nothing;
- links are removed, never followed: every folder is opened with O_NOFOLLOW, from the one above it;
- in memory (/dev/shm) where there is room: some disks take milliseconds to remove a folder, and a program may make thousands;
- by then no process of the program is left, so nothing moves under our feet.
"""

import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

MEMORY, ROOM = "/dev/shm", 1 << 30
"""A folder in memory, and the free bytes that it has to have."""


@contextmanager
def temporary_folder() -> Iterator[str]:
    """A new folder that only we can read, removed at the end with everything in it."""
    path = tempfile.mkdtemp(prefix="nip-sandbox-", dir=place())
    try:
        yield path
    finally:
        remove(path)


def place() -> str | None:
    """Where such folders are made; None: where temporary files go by default, as also when TMPDIR asks for a place."""
    if "TMPDIR" in os.environ or not os.access(MEMORY, os.W_OK | os.X_OK):
        return None
    free = os.statvfs(MEMORY)
    return MEMORY if free.f_bavail * free.f_frsize >= ROOM else None


def remove(path: str) -> None:
    """Remove a folder and all in it: links, pipes, folders without any permission, trees of any depth. Raises OSError."""
    try:
        os.chmod(path, 0o700)
        here = os.open(path, _FOLDER)
    except FileNotFoundError:
        return
    try:
        way, todo = [], [_emptied(here)]
        while todo:
            if todo[-1]:
                way.append(todo[-1].pop())
                here = _moved(here, way[-1])
                todo.append(_emptied(here))
            else:
                todo.pop()
                if way:
                    here = _moved(here, "..")
                    os.rmdir(way.pop(), dir_fd=here)
    finally:
        os.close(here)
    os.rmdir(path)


_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def _moved(here: int, name: str) -> int:
    """The folder `name` of an open folder, which is closed."""
    there = os.open(name, _FOLDER, dir_fd=here)
    os.close(here)
    return there


def _emptied(here: int) -> list[str]:
    """Remove all that is no folder; the names of the folders, made fit to be entered."""
    folders = []
    for name in os.listdir(here):
        if stat.S_ISDIR(os.lstat(name, dir_fd=here).st_mode):
            os.chmod(name, 0o700, dir_fd=here)
            folders.append(name)
        else:
            os.unlink(name, dir_fd=here)
    return folders
