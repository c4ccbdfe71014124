"""A root of its own for the program: the interpreter and the system's libraries, read-only, and one small folder to write.

Decisions that matter here:
- nothing is there that was not put there: no home folders, no /etc but the linker's cache, no /proc, no /sys, no /tmp of others;
- the folder is memory of its own with a bound on bytes and on files, and is gone with the last process. Nothing reaches the disk;
- the new root is made over /tmp, the one folder that is everywhere; once it is the root, the old /tmp shows again below /old.
"""

import os

import kernel
import watch

BOX = "/box"
_BASE, _OLD = "/tmp", "/old"
_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")


def private_proc():
    """A descriptor of a /proc of the new process namespace, which no path leads to; None where the kernel refuses one."""
    try:
        kernel.mount("proc", _BASE, "proc", kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC)
    except OSError:
        return None
    handle = os.open(_BASE, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    kernel.detach(_BASE)
    return handle


def build(readable, files, file_mb, owner):
    """Make the root and enter it; `files` (name: bytes) lie in the folder then. Returns what `private_proc` does.

    owner: who the folder belongs to, as this namespace numbers users.
    """
    kernel.mount(None, "/", None, kernel.MS_REC | kernel.MS_PRIVATE)
    proc = private_proc()
    kernel.mount("tmpfs", _BASE, "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, "size=1m,mode=0755")
    os.mkdir(_BASE + _OLD)
    os.chdir(_BASE)
    kernel.pivot_root(".", _OLD[1:])
    os.chdir("/")
    for path in (*readable, *_DEVICES):
        _show(path)
    _make_box(files, file_mb, owner)
    kernel.detach(_OLD)
    os.rmdir(_OLD)
    if not os.path.exists("/tmp"):  # it is there when the interpreter lies below it
        os.symlink(BOX, "/tmp")
    kernel.mount(None, "/", None, kernel.MS_REMOUNT | kernel.MS_BIND | kernel.MS_RDONLY | kernel.MS_NOSUID | kernel.MS_NODEV)
    os.chdir(BOX)
    return proc


def _show(path):
    """Bind one file or folder of the old root at its own path, read-only; what is missing is passed over, links stay links."""
    source = _OLD + path
    if os.path.islink(source):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        os.symlink(os.readlink(source), path)
        return
    if not os.path.exists(source) or os.path.exists(path):
        return
    if os.path.isdir(source):
        os.makedirs(path)
    else:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC))
    kernel.mount(source, path, None, kernel.MS_BIND | kernel.MS_REC)
    if path not in _DEVICES:
        kernel.make_readonly(path)


def _make_box(files, file_mb, owner):
    room = watch.folder_bytes(file_mb) + sum(len(content) + 4096 for content in files.values())
    options = f"size={room},nr_inodes={watch.MAX_ENTRIES},mode=0700,uid={owner},gid={owner}"
    os.mkdir(BOX)
    kernel.mount("tmpfs", BOX, "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, options)
    write_files(BOX, files, owner)


def write_files(folder, files, owner=None):
    """Write `files` (name: bytes, names without folders) and give them to their owner."""
    for name, content in files.items():
        handle = os.open(f"{folder}/{name}", os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o644)
        try:
            while content:
                content = content[os.write(handle, content) :]
            if owner is not None:
                os.fchown(handle, owner, owner)
        finally:
            os.close(handle)
