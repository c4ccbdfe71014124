"""What running a program here covers, and what it does not: the table that docs/sandbox.md shows and the hostile programs test.

Decisions that matter here:
- a threat is held when any one of the guards that hold it was active; `SandboxResult` says which were;
- what nothing here holds stands in the table, too.
"""

from dataclasses import dataclass

from nip_ray.sandbox.result import SandboxResult

GUARDS = {
    "limits": "a fresh interpreter with nothing of ours, limits, and a supervisor that ends all descendants (always there)",
    "own_user": "a user of its own for each program (needs root, and an interpreter that everybody can read)",
    "landlock": "Landlock of Linux 6.2 or later (used at the level process)",
    "seccomp": "a filter of system calls (x86_64 and aarch64)",
    "namespaces": "namespaces of its own and a root folder of its own (the level namespaces)",
    "container": "a container (the level container)",
}
"""What can guard a program, as `SandboxResult.guards` names it."""


@dataclass(frozen=True)
class Threat:
    """key: what tests call it. what: what a program might do. held_by: the guards of which one is enough; none: nothing holds it."""

    key: str
    what: str
    held_by: tuple[str, ...]


_FILES = ("landlock", "namespaces", "container")
_OTHERS = ("own_user", "seccomp", "namespaces", "container")

THREATS = (
    Threat("time", "run for ever, sleep, ignore signals, hide in one long operation", ("limits", "container")),
    Threat("leftovers", "leave processes behind, in sessions of their own, or hold our pipes open", ("limits", "container")),
    Threat("processes", "start processes and threads without end", ("limits", "container")),
    Threat("memory", "take memory without end", ("limits", "container")),
    Threat("output", "write without end", ("limits", "container")),
    Threat("disk", "fill the disk: one file, many files, folders that cannot be removed", ("limits", "container")),
    Threat("environment", "read our environment variables or descriptors, as they are handed down", ("limits", "container")),
    Threat("privileges", "become another user, mount, change its root, raise its priority, leave core files", ("limits", "container")),
    Threat("forgery", "pretend to another exit, or to other outputs of other tests, than its own", ("limits", "container")),
    Threat("read_files", "read files of the user, or the system's configuration", _FILES),
    Threat("write_files", "change, remove or shorten files of the user", ("own_user", *_FILES)),
    Threat("file_modes", "change modes, times, owners and attributes of files of the user", _OTHERS),
    Threat("file_names", "learn whether a path exists, and the size and times of what is there (`stat`)", ("namespaces", "container")),
    Threat("watching", "be told when files of the user change (inotify)", ("seccomp", "namespaces", "container")),
    Threat("process_secrets", "read environment or memory of other processes", ("own_user", *_FILES)),
    Threat("signals", "signal, trace, limit or slow down other processes", _OTHERS),
    Threat("network", "connect, listen, look up names, talk to local services over sockets", ("seccomp", "namespaces", "container")),
    Threat("ipc", "leave shared memory or message queues of System V behind", ("seccomp", "namespaces", "container")),
    Threat("shared_memory", "leave files in /dev/shm behind", _FILES),
    Threat("many_times", "use its share of processor and memory up to the limits, again and again", ()),
    Threat("kernel", "use a fault of the kernel, or of the processor", ()),
    Threat("side_channels", "learn from timing what else runs on the machine", ()),
)
"""All of them, those that nothing holds last."""


def guards_of(result: SandboxResult) -> set[str]:
    """Everything that guarded a program."""
    always = {"container"} if result.isolation == "container" else {"limits"}
    return {*always, *result.guards, *({"namespaces"} if result.isolation == "namespaces" else ())}


def holds(guards: set[str], key: str) -> bool:
    """Whether these guards hold a threat."""
    return any(guard in guards for guard in next(threat for threat in THREATS if threat.key == key).held_by)


def table() -> str:
    """The threats as a table in Markdown: a column for each guard, and a mark where it is enough."""
    lines = ["| a program could | " + " | ".join(GUARDS) + " |", "|---|" + "---|" * len(GUARDS)]
    for threat in THREATS:
        marks = ["held" if guard in threat.held_by else "" for guard in GUARDS]
        lines.append(f"| {threat.what} | " + " | ".join(marks) + " |")
    return "\n".join(lines)
