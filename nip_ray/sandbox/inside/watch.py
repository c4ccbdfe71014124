"""Looks after what no limit of the kernel bounds for several processes together: their number, their memory, the folder's size.

Decisions that matter here:
- the kernel's limit on processes counts those of a user, and never root's; this one counts the descendants of the supervisor, whoever
  they run as. A look takes as long as there are processes on the machine, so looks get rarer where they take long;
- shared pages count for each process that has them, hence the margin on memory;
- a file without a name takes room while somebody has it open or mapped, and no listing shows it: /proc does.
"""

import os
import stat
import time

INTERVAL_S, UNBOUNDED_INTERVAL_S = 0.025, 0.01
"""Between two looks, and where the kernel does not bound the number of processes."""
SHARE_OF_TIME = 0.1
MEMORY_MARGIN = 2
FOLDER_FILES, MAX_ENTRIES = 4, 10_000
"""The folder may hold as much as this many files of the largest size, and this many entries."""
PAGE = os.sysconf("SC_PAGE_SIZE")


def folder_bytes(file_mb):
    """What the folder may hold."""
    return (FOLDER_FILES * file_mb + 1) << 20


def descendants(proc, root):
    """{process: (threads, resident bytes)} of all descendants of a process that have not ended. proc: a descriptor of /proc."""
    found, children = {}, {}
    for name in os.listdir(proc):
        if name.isdigit():
            fields = _stat(proc, name)
            if fields and fields[0] not in b"ZX":
                found[int(name)] = (int(fields[17]), int(fields[21]) * PAGE)
            if fields:
                children.setdefault(int(fields[1]), []).append(int(name))
    family, border = {}, [root]
    while border:
        for process in children.pop(border.pop(), ()):
            border.append(process)
            if process in found:
                family[process] = found[process]
    return family


def _stat(proc, name):
    """The fields of /proc/N/stat from the state on, or nothing when the process is gone."""
    try:
        handle = os.open(name + "/stat", os.O_RDONLY | os.O_CLOEXEC, dir_fd=proc)
    except OSError:
        return None
    try:
        return os.read(handle, 1024).rpartition(b")")[2].split()  # a program may call itself anything, parentheses too
    except OSError:
        return None
    finally:
        os.close(handle)


def usage(folder):
    """(bytes, entries) of a folder; counting ends at MAX_ENTRIES. What cannot be looked into counts as too many entries."""
    size, entries, todo = 0, 0, [folder]
    while todo and entries <= MAX_ENTRIES:
        try:
            with os.scandir(todo.pop()) as found:
                for entry in found:
                    entries += 1
                    size += _blocks(entry)
                    if entry.is_dir(follow_symlinks=False):
                        todo.append(entry.path)
                    if entries > MAX_ENTRIES:
                        break
        except (FileNotFoundError, NotADirectoryError):
            continue  # gone meanwhile
        except OSError:
            entries = MAX_ENTRIES + 1  # shut to us, or at the end of a path that is too long
    return size, entries


def nameless(proc, processes, folder, largest):
    """Bytes of the files of `folder` without a name that these processes keep; one that is only mapped counts as `largest`."""
    sizes, inside = {}, folder.encode() + b"/"
    for process in processes:
        try:
            with open(os.open(f"{process}/maps", os.O_RDONLY | os.O_CLOEXEC, dir_fd=proc), "rb") as maps:
                found = [line.split(None, 5) for line in maps if line.endswith(b" (deleted)\n")]
            sizes = {int(fields[4]): largest for fields in found if fields[5].startswith(inside)} | sizes
            _nameless_open(os.open(f"{process}/fd", os.O_RDONLY | os.O_CLOEXEC, dir_fd=proc), inside, sizes)
        except OSError:
            continue  # it has ended
    return sum(sizes.values())


def _nameless_open(handles, inside, sizes):
    """Add those that are open to `sizes`, by inode. handles: a descriptor of /proc/N/fd, which is closed."""
    try:
        for name in os.listdir(handles):
            try:
                found = os.stat(name, dir_fd=handles)
                if stat.S_ISREG(found.st_mode) and not found.st_nlink and os.readlink(name, dir_fd=handles).encode().startswith(inside):
                    sizes[found.st_ino] = found.st_blocks * 512
            except OSError:
                continue  # closed meanwhile
    finally:
        os.close(handles)


def _blocks(entry):
    try:
        return entry.stat(follow_symlinks=False).st_blocks * 512
    except OSError:
        return 0


class Watch:
    """Says when the program has too much of something."""

    def __init__(self, proc, limits, folder):
        """proc: a descriptor of /proc, or None. limits: `processes`, `process_limit`, `memory_mb`, `file_mb`. folder: to measure."""
        self.proc, self.limits, self.folder = proc, limits, folder
        self.shortest = self.interval = INTERVAL_S if limits["process_limit"] is not None else UNBOUNDED_INTERVAL_S

    def look(self):
        """What there is too much of ("processes", "memory", "disk"), or None."""
        start = time.monotonic()
        try:
            return self._over()
        finally:
            self.interval = max(self.shortest, (time.monotonic() - start) / SHARE_OF_TIME)

    def _over(self):
        family = {} if self.proc is None else descendants(self.proc, os.getpid())
        if sum(threads for threads, _ in family.values()) > self.limits["processes"]:
            return "processes"
        if sum(resident for _, resident in family.values()) > MEMORY_MARGIN * self.limits["memory_mb"] << 20:
            return "memory"
        if self.folder is not None:
            size, entries = usage(self.folder)
            if self.proc is not None:
                size += nameless(self.proc, family, self.folder, self.limits["file_mb"] << 20)
            if size > folder_bytes(self.limits["file_mb"]) or entries > MAX_ENTRIES:
                return "disk"
        return None
