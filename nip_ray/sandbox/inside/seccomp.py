"""The filter of system calls: what Python and a program that computes need is allowed, everything else is refused.

Decisions that matter here:
- a list of permissions: a call that a newer kernel adds is refused until somebody has looked at it;
- calls from number 424 on (Linux 5.1) are unknown (ENOSYS) unless listed, older ones EPERM: libc falls back to an older call where
  it finds a new one missing. That includes clone3, whose flags lie where a filter cannot look;
- where the program shares the file system and the process table with us, it may also not change modes and times of files, read or
  write their extended attributes, leave its process group (so that one signal to the group ends all of it, at once), or signal others;
- no sockets, but for connected pairs of streams, which event loops wake themselves by and which lead nowhere else.
"""

import ctypes
import os
import struct

import kernel

SET_MODE_FILTER = 1
ALLOW, ERRNO, KILL = 0x7FFF0000, 0x00050000, 0x80000000
EPERM, ENOSYS = 1, 38
LOAD, EQUAL, AT_LEAST, ANY_BIT, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
NUMBER, ARCHITECTURE, FIRST_ARGUMENT = 0, 4, 16
RECENT = 424
"""From here on numbers are the same on every architecture."""
NEW_NAMESPACES = 0x7E020000

AUDIT = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
SECCOMP = {"x86_64": 317, "aarch64": 277}

ALLOWED = {  # call: (x86_64, aarch64); -1 where there is none
    "access": (21, -1), "alarm": (37, -1), "arch_prctl": (158, -1), "brk": (12, 214), "capget": (125, 90), "chdir": (80, 49),
    "clock_getres": (229, 114), "clock_gettime": (228, 113), "clock_nanosleep": (230, 115), "clone": (56, 220),
    "close": (3, 57), "close_range": (436, 436), "copy_file_range": (326, 285), "creat": (85, -1), "dup": (32, 23), "dup2": (33, -1),
    "dup3": (292, 24), "epoll_create": (213, -1), "epoll_create1": (291, 20), "epoll_ctl": (233, 21), "epoll_pwait": (281, 22),
    "epoll_wait": (232, -1), "eventfd": (284, -1), "eventfd2": (290, 19), "execve": (59, 221), "exit": (60, 93),
    "exit_group": (231, 94), "faccessat": (269, 48), "faccessat2": (439, 439), "fadvise64": (221, 223), "fallocate": (285, 47),
    "fchdir": (81, 50), "fcntl": (72, 25), "fdatasync": (75, 83), "flock": (73, 32), "fork": (57, -1), "fstat": (5, 80),
    "fstatfs": (138, 44), "fsync": (74, 82), "ftruncate": (77, 46), "futex": (202, 98), "getcpu": (309, 168), "getcwd": (79, 17),
    "getdents": (78, -1), "getdents64": (217, 61), "getegid": (108, 177), "geteuid": (107, 175), "getgid": (104, 176),
    "getgroups": (115, 158), "getitimer": (36, 102), "getpgid": (121, 155), "getpgrp": (111, -1), "getpid": (39, 172),
    "getppid": (110, 173), "getpriority": (140, 141), "getrandom": (318, 278), "getresgid": (120, 150), "getresuid": (118, 148),
    "getrlimit": (97, 163), "getrusage": (98, 165), "getsid": (124, 156), "gettid": (186, 178), "gettimeofday": (96, 169),
    "getuid": (102, 174), "ioctl": (16, 29), "kill": (62, 129), "link": (86, -1), "linkat": (265, 37), "lseek": (8, 62),
    "lstat": (6, -1), "madvise": (28, 233), "membarrier": (324, 283), "mincore": (27, 232), "mkdir": (83, -1), "mkdirat": (258, 34),
    "mlock": (149, 228), "mmap": (9, 222), "mprotect": (10, 226), "mremap": (25, 216), "msync": (26, 227), "munlock": (150, 229),
    "munmap": (11, 215), "nanosleep": (35, 101), "newfstatat": (262, 79), "open": (2, -1), "openat": (257, 56), "pause": (34, -1),
    "pipe": (22, -1), "pipe2": (293, 59), "poll": (7, -1), "ppoll": (271, 73), "prctl": (157, 167), "pread64": (17, 67),
    "preadv": (295, 69), "preadv2": (327, 286), "prlimit64": (302, 261), "pselect6": (270, 72), "pwrite64": (18, 68),
    "pwritev": (296, 70), "pwritev2": (328, 287), "read": (0, 63), "readlink": (89, -1), "readlinkat": (267, 78), "readv": (19, 65),
    "recvfrom": (45, 207), "rename": (82, -1), "renameat": (264, 38), "renameat2": (316, 276), "restart_syscall": (219, 128),
    "rmdir": (84, -1), "rseq": (334, 293), "rt_sigaction": (13, 134), "rt_sigpending": (127, 136), "rt_sigprocmask": (14, 135),
    "rt_sigreturn": (15, 139), "rt_sigsuspend": (130, 133), "rt_sigtimedwait": (128, 137), "sched_get_priority_max": (146, 125),
    "sched_get_priority_min": (147, 126), "sched_getaffinity": (204, 123), "sched_getparam": (143, 121),
    "sched_getscheduler": (145, 120), "sched_yield": (24, 124), "select": (23, -1), "sendfile": (40, 71), "sendto": (44, 206),
    "set_robust_list": (273, 99), "set_tid_address": (218, 96), "setitimer": (38, 103), "setrlimit": (160, 164), "shutdown": (48, 210),
    "sigaltstack": (131, 132), "signalfd": (282, -1), "signalfd4": (289, 74), "socketpair": (53, 199), "stat": (4, -1),
    "statfs": (137, 43), "statx": (332, 291), "symlink": (88, -1), "symlinkat": (266, 36), "sysinfo": (99, 179), "tgkill": (234, 131),
    "time": (201, -1), "timer_create": (222, 107), "timer_delete": (226, 111), "timer_getoverrun": (225, 109),
    "timer_gettime": (224, 108), "timer_settime": (223, 110), "timerfd_create": (283, 85), "timerfd_gettime": (287, 87),
    "timerfd_settime": (286, 86), "times": (100, 153), "tkill": (200, 130), "truncate": (76, 45), "umask": (95, 166),
    "uname": (63, 160), "unlink": (87, -1), "unlinkat": (263, 35), "vfork": (58, -1), "wait4": (61, 260), "waitid": (247, 95),
    "write": (1, 64), "writev": (20, 66),
}  # fmt: skip
ALLOWED_IN_NAMESPACES = {  # where files and processes are the program's own
    "chmod": (90, -1), "chown": (92, -1), "fchmod": (91, 52), "fchmodat": (268, 53), "fchmodat2": (452, 452), "fchown": (93, 55),
    "fchownat": (260, 54), "fgetxattr": (193, 10), "flistxattr": (196, 13), "fremovexattr": (199, 16), "fsetxattr": (190, 7),
    "futimesat": (261, -1), "getxattr": (191, 8), "lchown": (94, -1), "lgetxattr": (192, 9), "listxattr": (194, 11),
    "llistxattr": (195, 12), "lremovexattr": (198, 15), "lsetxattr": (189, 6), "mknod": (133, -1), "mknodat": (259, 33),
    "removexattr": (197, 14), "setpgid": (109, 154), "setsid": (112, 157), "setxattr": (188, 5), "utime": (132, -1),
    "utimensat": (280, 88), "utimes": (235, -1),
}  # fmt: skip

VALUES = {
    "fcntl": (1, (*range(8), 36, 37, 38, *range(1030, 1035))),  # duplicates, flags, locks, sizes of pipes, seals; no leases, no owners
    "ioctl": (1, (0x5401, 0x802C542A, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)),  # is it a terminal, its size; bytes to read; flags
    "prctl": (0, (1, 2, 3, 15, 16, 38, 39, 0x53564D41)),  # signal at the parent's end, names, no new privileges; not to hide from /proc
    "prlimit64": (0, (0,)),  # its own limits
}
"""Calls of which one argument must be one of these: (which argument, the values)."""
PAIR_OF_STREAMS = (1, (1, 0x801, 0x80001, 0x80801))
"""socketpair: AF_UNIX, and SOCK_STREAM with SOCK_NONBLOCK and SOCK_CLOEXEC or without."""


def available():
    """Whether there is a filter for this machine's architecture."""
    return os.uname().machine in AUDIT


def program(machine, shares_system, signal_to=None):
    """The filter, as packed instructions.

    shares_system: the program sees our file system and processes. signal_to: the only process that kill, tgkill and tkill may name
    (None: any, since something else keeps its signals inside).
    """
    column = list(AUDIT).index(machine)
    calls = ALLOWED if shares_system else {**ALLOWED, **ALLOWED_IN_NAMESPACES}
    number = {call: both[column] for call, both in calls.items() if both[column] >= 0}
    rules = {call: [_argument(at), *_allow_values(values)] for call, (at, values) in VALUES.items()}
    rules["clone"] = [_argument(0), (ANY_BIT, 0, 1, NEW_NAMESPACES), _error(EPERM), (RETURN, 0, 0, ALLOW)]
    family, kinds = PAIR_OF_STREAMS
    rules["socketpair"] = [_argument(0), (EQUAL, 1, 0, family), _error(EPERM), _argument(1), *_allow_values(kinds)]
    if signal_to is not None:
        rules["kill"] = [_argument(0), *_allow_values((0, signal_to, -signal_to & 0xFFFFFFFF))]
        rules["tgkill"] = rules["tkill"] = [_argument(0), *_allow_values((signal_to,))]
    code = [(LOAD, 0, 0, ARCHITECTURE), (EQUAL, 1, 0, AUDIT[machine]), (RETURN, 0, 0, KILL), (LOAD, 0, 0, NUMBER)]
    for call in number:
        rule = rules.get(call, [(RETURN, 0, 0, ALLOW)])
        code += [(EQUAL, 0, len(rule), number[call]), *rule]
    code += [(AT_LEAST, 0, 1, RECENT), _error(ENOSYS), _error(EPERM)]
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in code)


def install(packed):
    """Put the filter over this process and its children; needs no_new_privs."""
    buffer = ctypes.create_string_buffer(packed, len(packed))
    header = ctypes.create_string_buffer(struct.pack("@HP", len(packed) // 8, ctypes.addressof(buffer)))
    kernel.syscall(SECCOMP[os.uname().machine], SET_MODE_FILTER, 0, header)


def _error(number):
    return (RETURN, 0, 0, ERRNO | number)


def _argument(at):
    """Load the low half of an argument."""
    return (LOAD, 0, 0, FIRST_ARGUMENT + 8 * at)


def _allow_values(values):
    allowed = [instruction for value in values for instruction in ((EQUAL, 0, 1, value), (RETURN, 0, 0, ALLOW))]
    return [*allowed, _error(EPERM)]
