"""Who of ours listens, and where: the Ray and nip-ray processes of this user.

Decisions that matter here:
- a Ray that a run starts listens on the loopback alone; the servers of one that `ray start` starts listen on all interfaces, guarded by
  tokens or by nothing. Its dashboard, through which programs can be started, listens where it is told;
- whether a process asks for tokens stands in its environment; of that, the one variable is looked at;
- a dashboard that was told to stay on 127.0.0.1 may still give figures for Prometheus elsewhere: that is not the dashboard.
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nip_ray.cluster.doctor.cluster import is_loopback
from nip_ray.cluster.doctor.finding import Finding, note, ok

if TYPE_CHECKING:
    import psutil

ROLES = ("dashboard", "serve proxy", "nip-ray", "gcs_server", "client server", "raylet", "worker")
"""What our processes are, the most telling first."""

SHOWN = 8
"""Ports told in one line; the workers of a Ray have many."""


@dataclass(frozen=True)
class Listener:
    """One port that one of our processes listens on. role: what it is. tokens: whether it asks for them. told: the host that it was told
    to listen on, where it was told."""

    pid: int
    role: str
    host: str
    port: int
    tokens: bool
    told: str = ""

    @property
    def open(self) -> bool:
        """Whether other machines could reach it."""
        return not is_loopback(self.host.removeprefix("::ffff:"))

    def __str__(self) -> str:
        host = "*" if self.host in ("0.0.0.0", "::") else self.host.removeprefix("::ffff:")
        return f"{self.role} on {host}:{self.port} (process {self.pid})"


def ports() -> list[Finding]:
    """What listens, and a note on each dashboard, and all servers without tokens, that other machines could reach."""
    import psutil

    try:
        found = listeners()
    except psutil.Error as error:
        return [note("ports", f"cannot tell who listens ({type(error).__name__})", "look with `ss -tlnp`")]
    if not found:
        return [ok("ports", "no Ray and no nip-ray of this user listens")]
    return judge(found)


def judge(found: Sequence[Listener]) -> list[Finding]:
    """The findings on what listens; at least one listener."""
    more = f" and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
    told = ok("ports", "; ".join(str(one) for one in found[:SHOWN]) + more)
    return [told, *(note("ports", f"{one} can be reached from other machines{why}", mend) for one in found for why, mend in _exposed(one))]


def _exposed(one: Listener) -> Iterator[tuple[str, str]]:
    """(how bad it is, what mends it) of a port that only this machine should reach."""
    if not one.open:
        return
    harm = "" if one.tokens else ", and asks for no token: they can run programs as you"
    if one.role == "dashboard" and not is_loopback(one.told):
        yield harm, "start Ray with --dashboard-host=127.0.0.1 and come by `ray dashboard` or an SSH tunnel"
    elif one.role == "serve proxy" and one.host != "::":  # every worker of Ray has a port on ::, where only Ray is spoken
        yield "", "leave --host at 127.0.0.1 and come by an SSH tunnel"
    elif one.role == "gcs_server" and not one.tokens:
        yield harm, "end that Ray (`ray stop`) and start it with RAY_AUTH_MODE=token"


def listeners() -> list[Listener]:
    """Every port that a process of this user listens on which is Ray's or nip-ray's. Raises psutil.Error where that cannot be told."""
    import psutil

    known = {process.pid: about for process in psutil.process_iter() if (about := _about(process))}
    found = []
    for connection in psutil.net_connections("inet") if known else ():
        about = known.get(connection.pid or 0)
        if about and connection.laddr and connection.status == psutil.CONN_LISTEN:
            what, tokens, told = about
            found.append(Listener(connection.pid or 0, what, connection.laddr.ip, connection.laddr.port, tokens, told))
    return sorted(found, key=lambda one: (ROLES.index(one.role), one.pid, one.port))


def role(arguments: Sequence[str]) -> str:
    """What a command line is: a part of Ray, nip-ray, or nothing of ours (empty)."""
    if not arguments:
        return ""
    program = os.path.basename(arguments[0])
    if program in ("gcs_server", "raylet"):
        return program
    if program.startswith("ray::"):
        return "serve proxy" if "ProxyActor" in program else "worker"
    for argument in arguments[1:5]:
        if argument.endswith("ray/dashboard/dashboard.py"):
            return "dashboard"
        if argument == "ray.util.client.server":
            return "client server"
    if "nip-ray" in (os.path.basename(argument) for argument in arguments[:3]) or "nip_ray.cli" in arguments[:5]:
        return "nip-ray"
    return ""


def _about(process: "psutil.Process") -> tuple[str, bool, str] | None:
    """(role, tokens, told) of a process of this user that is ours; None for others, and for those that are gone."""
    import psutil

    try:
        if process.uids().effective != os.geteuid():
            return None
        arguments = process.cmdline()
        what = role(arguments)
        if not what:
            return None
        tokens = process.environ().get("RAY_AUTH_MODE", "").lower() == "token"
    except (psutil.NoSuchProcess, psutil.AccessDenied):  # gone by now, or a title was written over what there was to read
        return None
    told = next((argument.removeprefix("--host=") for argument in arguments if argument.startswith("--host=")), "")
    return what, tokens, told
