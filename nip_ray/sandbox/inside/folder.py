"""Removing temporary folders, whatever a program left in them.

Decisions that matter here:
- no recursion, no long paths, and one open folder at a time: we walk down by names and up by `..`, so depth costs
  nothing;
- links are removed, never followed: every folder is opened with O_NOFOLLOW, from the one above it;
- by then no process of the program is left, so nothing moves under our feet.
"""

import os
import stat

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def remove(path):
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


def _moved(here, name):
    """The folder `name` of an open folder, which is closed."""
    there = os.open(name, _FOLDER, dir_fd=here)
    os.close(here)
    return there


def _emptied(here):
    """Remove all that is no folder; the names of the folders, made fit to be entered."""
    folders = []
    for name in os.listdir(here):
        if stat.S_ISDIR(os.lstat(name, dir_fd=here).st_mode):
            os.chmod(name, 0o700, dir_fd=here)
            folders.append(name)
        else:
            os.unlink(name, dir_fd=here)
    return folders
