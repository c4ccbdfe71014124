"""The Ray cluster that a run would join: whether it answers, and who else may use it.

Decisions that matter here:
- no Ray is started or joined: a connection is opened and closed again, by a thread that is not waited for longer than it may take
  (looking up a name knows no time limit);
- RAY_ADDRESS may hold a password in the wrong place, so that only the host and the port of it are told;
- Ray does not turn tokens on by itself for a cluster that is named: without RAY_AUTH_MODE=token there are none.
"""

import os
import socket
import threading
from ipaddress import ip_address
from pathlib import Path

from nip_ray.cluster.doctor.finding import Finding, note, ok, problem
from nip_ray.cluster.doctor.keys import wants_tokens
from nip_ray.cluster.doctor.places import ray_temp

TIMEOUT_S = 2.0
OWN = "unset RAY_ADDRESS, and a run starts a Ray of its own"


def cluster() -> list[Finding]:
    """Whether the cluster in RAY_ADDRESS can be reached; without one, whether `ray start` has left one here."""
    address = os.environ.get("RAY_ADDRESS", "")
    if address in ("", "local"):
        return [_left_here()]
    if address == "auto":
        return [_found_here()]
    target = host_and_port(address)
    if target is None:
        return [problem("cluster", "RAY_ADDRESS is not of the form HOST:PORT, ray://HOST:PORT, auto or local", OWN)]
    host, port = target
    found = [_reached(host, port, "RAY_ADDRESS names")]
    if not is_loopback(host) and not wants_tokens():
        what = f"RAY_ADDRESS names another machine ({host}) without tokens: whoever reaches it can run programs in your run"
        found.append(
            problem("cluster", what, "give the cluster a token (docs.ray.io, token authentication) and export RAY_AUTH_MODE=token")
        )
    return found


def host_and_port(address: str) -> tuple[str, int] | None:
    """Both of HOST:PORT, [HOST]:PORT or ray://HOST:PORT; None for anything else."""
    bare = address.removeprefix("ray://").rstrip("/")
    host, _, port = bare.rpartition(":")
    if bare.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        return None
    if not host or any(sign in host for sign in "/@ ") or not (port.isascii() and port.isdigit() and 0 < int(port) < 65536):
        return None
    return host, int(port)


def is_loopback(host: str) -> bool:
    """Whether a host is this machine, seen from itself alone. Names other than localhost are taken for others."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def reason_not_reached(host: str, port: int, timeout_s: float = TIMEOUT_S) -> str:
    """Why no TCP connection comes about within `timeout_s` seconds; empty when one does."""
    outcome: list[str] = []

    def connect() -> None:
        try:
            with socket.create_connection((host, port), timeout=timeout_s):
                outcome.append("")
        except OSError as error:
            outcome.append(error.strerror or str(error) or type(error).__name__)

    thread = threading.Thread(target=connect, daemon=True)
    thread.start()
    thread.join(timeout_s + 0.2)
    return outcome[0] if outcome else "timed out"


def _reached(host: str, port: int, says: str) -> Finding:
    where = f"{says} {host}:{port}"
    reason = reason_not_reached(host, port)
    if reason:
        return problem("cluster", f"{where}, which cannot be reached ({reason})", f"start that cluster, or {OWN}")
    return ok("cluster", f"{where}, which answers: runs join it")


def _found_here() -> Finding:
    target = _current_cluster()
    if target is None:
        return problem("cluster", f"RAY_ADDRESS is auto, but {_current_file()} names no cluster", f"`ray start --head`, or {OWN}")
    return _reached(*target, f"RAY_ADDRESS is auto, and {_current_file()} names")


def _left_here() -> Finding:
    target = _current_cluster()
    if target is None:
        return ok("cluster", "no cluster is named: a run starts a Ray of its own where it needs one")
    host, port = target
    state = "is not there any more" if reason_not_reached(host, port) else "answers"
    what = f"`ray start` has left a cluster at {host}:{port}, which {state}; runs start a Ray of their own beside it"
    return note("cluster", what, "export RAY_ADDRESS=auto to join it, or end it by `ray stop`")


def _current_file() -> Path:
    return ray_temp() / "ray_current_cluster"


def _current_cluster() -> tuple[str, int] | None:
    try:
        return host_and_port(_current_file().read_text(encoding="utf-8", errors="replace").strip())
    except OSError:
        return None
