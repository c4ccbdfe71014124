"""Landlock: the program reads the interpreter's files, writes its own folder, and signals only its own processes.

Decisions that matter here:
- from version 3 of the interface on (Linux 6.2): before it, a file could be cut to nothing without leave to write;
- what Landlock does not know (chmod, chown, times of files) the filter of system calls refuses at this level.
"""

import ctypes
import os

import kernel

CREATE, ADD_RULE, RESTRICT = 444, 445, 446
EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1, 2, 4, 8
TRUNCATE, IOCTL_DEV = 1 << 14, 1 << 15
OF_FILES = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEV
SCOPE_ABSTRACT_SOCKETS, SCOPE_SIGNALS = 1, 2


class _Ruleset(ctypes.Structure):
    _fields_ = (("files", ctypes.c_uint64), ("network", ctypes.c_uint64), ("scoped", ctypes.c_uint64))


class _PathRule(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("allowed", ctypes.c_uint64), ("folder", ctypes.c_int32))


def version():
    """The version of the kernel's interface, 0 where there is none that we can use."""
    try:
        found = kernel.syscall(CREATE, None, 0, 1)
    except OSError:
        return 0
    return found if found >= 3 else 0


def scopes_signals(found):
    """Whether this version keeps signals inside (Linux 6.12)."""
    return found >= 6


def restrict(found, readable, writable):
    """Shut this process and its children in; needs no_new_privs. readable, writable: paths, those that are missing are passed over."""
    handled = (1 << (16 if found >= 5 else 15)) - 1
    # the network is left to others; a connect over TCP would be ours to refuse from version 4 on, but one over UDP would not
    rules = _Ruleset(handled, 0, SCOPE_ABSTRACT_SOCKETS | SCOPE_SIGNALS if scopes_signals(found) else 0)
    size = ctypes.sizeof(rules) if scopes_signals(found) else 16 if found >= 4 else 8
    ruleset = kernel.syscall(CREATE, ctypes.byref(rules), size, 0)
    for path in readable:
        _allow(ruleset, path, handled & (EXECUTE | READ_FILE | READ_DIR))
    for path in ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom"):
        _allow(ruleset, path, handled & (READ_FILE | WRITE_FILE))
    for path in writable:
        _allow(ruleset, path, handled & ~IOCTL_DEV)
    kernel.syscall(RESTRICT, ruleset, 0)
    os.close(ruleset)


def _allow(ruleset, path, access):
    try:
        folder = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return  # what is not there needs no rule
    if not os.path.isdir(path):
        access &= OF_FILES
    rule = _PathRule(access, folder)
    kernel.syscall(ADD_RULE, ruleset, 1, ctypes.byref(rule), 0)
    os.close(folder)
