"""The filter of system calls: what a program that only computes never needs is refused with EPERM.

Decisions that matter here:
- a list of refusals, not of permissions: Python on another libc or another kernel asks for calls that nobody thought of;
- a filter is chosen by level. Where the program shares the file system and the process table with us, it may also not change modes
  and times of files, leave its process group (so that one signal to the group ends all of it, at once), or signal others;
- clone3 is unknown (ENOSYS): its flags lie where a filter cannot look, and libc then falls back to clone.
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
X32 = 0x40000000
NEW_NAMESPACES = 0x7E020000

AUDIT = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
SECCOMP = {"x86_64": 317, "aarch64": 277}

NUMBERS = {  # call: (x86_64, aarch64); -1 where there is none
    "acct": (163, 89), "add_key": (248, 217), "adjtimex": (159, 171), "bpf": (321, 280), "chmod": (90, -1), "chown": (92, -1),
    "chroot": (161, 51), "clock_adjtime": (305, 266), "clock_settime": (227, 112), "clone": (56, 220), "clone3": (435, 435),
    "delete_module": (176, 106), "fanotify_init": (300, 262), "fchmod": (91, 52), "fchmodat": (268, 53), "fchmodat2": (452, 452),
    "fchown": (93, 55), "fchownat": (260, 54), "fcntl": (72, 25), "finit_module": (313, 273), "fremovexattr": (199, 16),
    "fsconfig": (431, 431), "fsetxattr": (190, 7), "fsmount": (432, 432), "fsopen": (430, 430), "fspick": (433, 433),
    "futimesat": (261, -1), "init_module": (175, 105), "io_uring_enter": (426, 426), "io_uring_register": (427, 427),
    "io_uring_setup": (425, 425), "ioctl": (16, 29), "ioperm": (173, -1), "iopl": (172, -1), "ioprio_set": (251, 30),
    "kcmp": (312, 272), "kexec_file_load": (320, 294), "kexec_load": (246, 104), "keyctl": (250, 219), "kill": (62, 129),
    "lchown": (94, -1), "lremovexattr": (198, 15), "lsetxattr": (189, 6), "memfd_create": (319, 279), "memfd_secret": (447, 447),
    "migrate_pages": (256, 238), "mount": (165, 40), "mount_setattr": (442, 442),
    "move_mount": (429, 429), "move_pages": (279, 239), "mq_open": (240, 180), "mq_unlink": (241, 181), "msgget": (68, 186),
    "name_to_handle_at": (303, 264), "open_by_handle_at": (304, 265), "open_tree": (428, 428), "perf_event_open": (298, 241),
    "personality": (135, 92), "pidfd_getfd": (438, 438), "pidfd_send_signal": (424, 424), "pivot_root": (155, 41),
    "prlimit64": (302, 261), "process_madvise": (440, 440), "process_mrelease": (448, 448), "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271), "ptrace": (101, 117), "quotactl": (179, 60), "quotactl_fd": (443, 443), "reboot": (169, 142),
    "removexattr": (197, 14), "request_key": (249, 218), "rt_sigqueueinfo": (129, 138), "rt_tgsigqueueinfo": (297, 240),
    "sched_setaffinity": (203, 122), "sched_setattr": (314, 274), "sched_setparam": (142, 118), "sched_setscheduler": (144, 119),
    "semget": (64, 190), "setdomainname": (171, 162), "sethostname": (170, 161), "setns": (308, 268), "setpgid": (109, 154),
    "setpriority": (141, 140), "setsid": (112, 157), "settimeofday": (164, 170), "setxattr": (188, 5), "shmget": (29, 194),
    "socket": (41, 198), "swapoff": (168, 225), "swapon": (167, 224), "syslog": (103, 116), "tgkill": (234, 131), "tkill": (200, 130),
    "umount2": (166, 39), "unshare": (272, 97), "userfaultfd": (323, 282), "utime": (132, -1), "utimensat": (280, 88),
    "utimes": (235, -1), "vhangup": (153, 58),
}  # fmt: skip

SHARED_FILES = (
    "chmod", "chown", "fchmod", "fchmodat", "fchmodat2", "fchown", "fchownat", "fremovexattr", "fsetxattr", "futimesat", "lchown",
    "lremovexattr", "lsetxattr", "removexattr", "setxattr", "utime", "utimensat", "utimes",
)  # fmt: skip
SHARED_PROCESSES = ("setpgid", "setsid")
SIGNALS = ("rt_sigqueueinfo", "rt_tgsigqueueinfo", "pidfd_send_signal", "tkill")
WITH_ARGUMENTS = ("clone", "clone3", "fcntl", "ioctl", "kill", "prlimit64", "tgkill")
ALWAYS = tuple(call for call in NUMBERS if call not in {*SHARED_FILES, *SHARED_PROCESSES, *SIGNALS, *WITH_ARGUMENTS})

OWNER_COMMANDS = (8, 10, 15)
"""fcntl: F_SETOWN, F_SETSIG and F_SETOWN_EX have the kernel send a signal to another process."""
OWNER_CONTROLS = (0x8901, 0x8902, 0x5412, 0x541C)
"""ioctl: FIOSETOWN and SIOCSPGRP likewise; TIOCSTI and TIOCLINUX type into a terminal."""


def refused(shares_system, signals_kept):
    """The names of the calls that are refused whatever their arguments.

    shares_system: the program sees our file system and processes. signals_kept: something else keeps its signals inside.
    """
    shared = SHARED_FILES + SHARED_PROCESSES if shares_system else ()
    return ALWAYS + shared + (() if signals_kept else SIGNALS)


def available():
    """Whether there is a filter for this machine's architecture."""
    return os.uname().machine in AUDIT


def program(machine, calls, signal_to=None):
    """The filter, as packed instructions.

    calls: refused whatever their arguments. signal_to: the only process that kill and tgkill may name (None: any).
    """
    column = list(AUDIT).index(machine)
    number = {call: both[column] for call, both in NUMBERS.items()}
    code = [(LOAD, 0, 0, ARCHITECTURE), (EQUAL, 1, 0, AUDIT[machine]), (RETURN, 0, 0, KILL), (LOAD, 0, 0, NUMBER)]
    if machine == "x86_64":
        code += [(AT_LEAST, 0, 1, X32), _error(EPERM)]
    for call in calls:
        if number[call] >= 0:
            code += [(EQUAL, 0, 1, number[call]), _error(EPERM)]
    code += [(EQUAL, 0, 1, number["clone3"]), _error(ENOSYS)]
    code += _when(number["clone"], 0, [(ANY_BIT, 0, 1, NEW_NAMESPACES), _error(EPERM)])
    code += _when(number["fcntl"], 1, _refuse_values(OWNER_COMMANDS))
    code += _when(number["ioctl"], 1, _refuse_values(OWNER_CONTROLS))
    code += _when(number["prlimit64"], 0, _allow_values((0,)))
    if signal_to is not None:
        code += _when(number["kill"], 0, _allow_values((0, signal_to, -signal_to & 0xFFFFFFFF)))
        code += _when(number["tgkill"], 0, _allow_values((signal_to,)))
    code.append((RETURN, 0, 0, ALLOW))
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in code)


def install(packed):
    """Put the filter over this process and its children; needs no_new_privs."""
    buffer = ctypes.create_string_buffer(packed, len(packed))
    header = ctypes.create_string_buffer(struct.pack("@HP", len(packed) // 8, ctypes.addressof(buffer)))
    kernel.syscall(SECCOMP[os.uname().machine], SET_MODE_FILTER, 0, header)


def _error(number):
    return (RETURN, 0, 0, ERRNO | number)


def _when(number, argument, body):
    """`body`, on the low half of an argument, for one system call only; what passes it is allowed."""
    body = [(LOAD, 0, 0, FIRST_ARGUMENT + 8 * argument), *body, (RETURN, 0, 0, ALLOW)]
    return [(EQUAL, 0, len(body), number), *body]


def _refuse_values(values):
    return [instruction for value in values for instruction in ((EQUAL, 0, 1, value), _error(EPERM))]


def _allow_values(values):
    allowed = [instruction for value in values for instruction in ((EQUAL, 0, 1, value), (RETURN, 0, 0, ALLOW))]
    return [*allowed, _error(EPERM)]
