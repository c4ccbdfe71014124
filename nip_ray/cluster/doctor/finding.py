"""What a check says."""

from dataclasses import dataclass
from typing import Literal

Status = Literal["ok", "note", "problem"]


@dataclass(frozen=True)
class Finding:
    """One line of fact about this machine.

    name: the check that says it. status: "problem" where a local run would fail, or would not be safe to start; "note" for what is
    good to know; else "ok". what: the fact. mend: how to change it, empty when there is nothing to mend.
    """

    name: str
    status: Status
    what: str
    mend: str = ""


def ok(name: str, what: str) -> Finding:
    """All is well."""
    return Finding(name, "ok", what)


def note(name: str, what: str, mend: str) -> Finding:
    """A local run works, but something is worth knowing."""
    return Finding(name, "note", what, mend)


def problem(name: str, what: str, mend: str) -> Finding:
    """A local run would not work."""
    return Finding(name, "problem", what, mend)


def size(bytes_: float) -> str:
    """A number of bytes for people: "256 MiB"."""
    for unit in ("B", "KiB", "MiB"):
        if bytes_ < 1024:
            return f"{bytes_:.0f} {unit}"
        bytes_ /= 1024
    return f"{bytes_:.1f} GiB"
