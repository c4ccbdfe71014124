"""The system calls that Python 3.11 has no names for, through ctypes. Each raises OSError, as `os` does."""

import ctypes
import os

_libc = ctypes.CDLL(None, use_errno=True)

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_CAPBSET_DROP, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 1, 4, 24, 36, 38
CLONE_NEWNS, CLONE_NEWCGROUP, CLONE_NEWUTS, CLONE_NEWIPC = 0x00020000, 0x02000000, 0x04000000, 0x08000000
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 1, 2, 4, 8, 32, 4096, 16384, 1 << 18
MNT_DETACH = 2
AT_FDCWD, AT_RECURSIVE = -100, 0x8000
MOUNT_SETATTR = 442  # the same number on every architecture, as are all calls from 424 on
LAST_CAPABILITY = 40


def _checked(result):
    if result == -1:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def _word(value):
    return ctypes.c_ulong(value) if isinstance(value, int) else value


def prctl(option, value=0, more=None):
    """prctl(2); `more` is a pointer."""
    return _checked(_libc.prctl(option, _word(value), more if more is not None else _word(0), _word(0), _word(0)))


def syscall(number, *arguments):
    """Any system call; whole numbers are passed as 64-bit words."""
    return _checked(_libc.syscall(ctypes.c_long(number), *(ctypes.c_long(a) if isinstance(a, int) else a for a in arguments)))


def unshare(flags):
    """unshare(2)."""
    _checked(_libc.unshare(ctypes.c_int(flags)))


def mount(source, target, kind, flags, data=None):
    """mount(2); the texts may be None."""
    texts = [None if text is None else text.encode() for text in (source, target, kind, data)]
    _checked(_libc.mount(texts[0], texts[1], texts[2], _word(flags), texts[3]))


def detach(target):
    """umount2(2) with MNT_DETACH."""
    _checked(_libc.umount2(target.encode(), MNT_DETACH))


def pivot_root(new, old):
    """pivot_root(2)."""
    _checked(_libc.syscall(ctypes.c_long(_PIVOT_ROOT[os.uname().machine]), new.encode(), old.encode()))


def make_readonly(path):
    """Make a mount and all below it read-only, without set-uid programs and without devices (Linux 5.12)."""
    attributes = (ctypes.c_uint64 * 4)(MS_RDONLY | MS_NOSUID | MS_NODEV, 0, 0, 0)  # the first bits agree with those of mount(2)
    syscall(MOUNT_SETATTR, AT_FDCWD, path.encode(), AT_RECURSIVE, ctypes.byref(attributes), ctypes.sizeof(attributes))


def drop_bounding_set():
    """Give up all capabilities for good, as far as we hold any; a program that root starts then has none either."""
    for capability in range(LAST_CAPABILITY + 1):
        try:
            prctl(PR_CAPBSET_DROP, capability)
        except OSError:
            return  # not ours to drop: then we have none


_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
