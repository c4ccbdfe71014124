"""The doctor's checks of who may use a Ray, and whom it listens to: keys, token, cluster, ports.

Decisions that matter here:
- Ray takes every RAY_AUTH_MODE but `token` for `disabled`, misspelt ones too, and asks for no tokens by itself at a cluster that is named;
- that others can read a token's file is a note: the next run that starts Ray mends it;
- RAY_ADDRESS may hold a password in the wrong place, so that only its host and port are told;
- a Ray that a run starts listens on the loopback alone; the servers of one that `ray start` starts listen on all interfaces, guarded by
  tokens or by nothing. A dashboard that was told to stay on 127.0.0.1 may still give figures for Prometheus elsewhere.
"""

import os
import re
import shlex
import socket
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from ipaddress import ip_address
from pathlib import Path
from typing import Literal, NamedTuple

from nip_ray.settings.providers import ProviderSettings

Status = Literal["ok", "note", "problem"]
Found = tuple[Status, str] | tuple[Status, str, str]
"""Status, fact, and how to mend it."""

SHOWN, TIMEOUT_S = 8, 2.0
OWN = "unset RAY_ADDRESS, and a run starts a Ray of its own"
_OF_PROVIDERS = [(getattr(kind, "api_key_variable", None), kind.base_url_variable) for kind in ProviderSettings.__subclasses__()]
VARIABLES = (*(name for pair in _OF_PROVIDERS for name in pair if name is not None), "WANDB_API_KEY", "HF_TOKEN")
"""Keys and addresses of services that parts of the project read; a config can name others."""


@contextmanager
def made(folder: Path) -> Iterator[None]:
    """`folder` is there inside, with its parents; what was not there before is removed again, unless somebody uses it.

    Raises OSError when it cannot be made.
    """
    missing = [one for one in (folder, *folder.parents) if not one.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    finally:
        for one in missing:
            with suppress(OSError):  # not made, or not empty: somebody else's by now
                one.rmdir()


def ray_temp() -> Path:
    """Ray's folder for sessions, chosen as Ray does."""
    return Path(os.environ.get("RAY_TMPDIR", os.environ.get("TMPDIR", "/tmp"))) / "ray"


def keys() -> Iterator[Found]:
    """Which keys and addresses of services are in the environment, by name."""
    present = [name for name in VARIABLES if os.environ.get(name, "").strip()]
    absent = [name for name in VARIABLES if name not in present]
    yield "ok", f"present: {', '.join(present) or 'none'}; absent: {', '.join(absent) or 'none'}"


def _wants_tokens() -> bool:
    """True if RAY_AUTH_MODE asks for tokens outright, as Ray reads it."""
    return os.environ.get("RAY_AUTH_MODE", "").lower() == "token"


def token() -> Iterator[Found]:
    """Check that Ray asks for a token, has one (where it would look, in its own order), and keeps it from others."""
    mode, named = os.environ.get("RAY_AUTH_MODE"), os.environ.get("RAY_AUTH_TOKEN_PATH")
    if mode is not None and not _wants_tokens():  # left to itself, a new local Ray asks for tokens
        what = "RAY_AUTH_MODE turns Ray's tokens off" + ("" if mode.lower() == "disabled" else " (it is neither `token` nor `disabled`)")
        yield "note", f"{what}: whoever reaches a port of Ray can run programs as you", "export RAY_AUTH_MODE=token"
    path = Path(named) if named else Path(os.path.expanduser("~")) / ".ray" / "auth_token"
    held = False
    with suppress(OSError), path.open("rb") as file:
        held = bool(file.read(1))
    if os.environ.get("RAY_AUTH_TOKEN"):
        yield "ok", "Ray's token comes from RAY_AUTH_TOKEN"
    elif held:
        about = path.stat()
        if about.st_uid != os.geteuid():
            what = f"Ray's token in {path} belongs to another user"
            yield "note", what, "make one of your own: `ray get-auth-token --generate`"
        elif about.st_mode & 0o077:
            what = f"Ray's token in {path} is open to other users of this machine (mode {about.st_mode & 0o777:o})"
            yield "note", what, f"chmod 600 {shlex.quote(str(path))}"
        else:
            yield "ok", f"Ray's token is in {path}, for you alone"
    elif mode is not None and not _wants_tokens():
        return
    elif named:
        what = f"RAY_AUTH_TOKEN_PATH names {path}, where there is no token that can be read"
        yield "problem", what, "put a token there, or unset RAY_AUTH_TOKEN_PATH"
    elif _wants_tokens() and os.environ.get("RAY_ADDRESS") not in (None, "", "local"):
        what = f"there is no token in {path}, and RAY_ADDRESS names a cluster that would ask for one"
        yield "problem", what, f"put the cluster's token there, with mode 600: chmod 600 {shlex.quote(str(path))}"
    else:
        try:
            if path.is_dir() or (path.exists() and not os.access(path, os.W_OK)):
                raise PermissionError(1, "it is there, and is no file that can be written")
            with made(path.parent), tempfile.TemporaryFile(dir=path.parent):
                yield "ok", f"no token yet: the first run that starts Ray writes one to {path}"
        except OSError as error:
            what = f"a run that starts Ray cannot write its token to {path} ({error.strerror})"
            what = what
            mend = "export RAY_AUTH_TOKEN_PATH to a file of yours with a token in it, or HOME to a folder of yours"
            yield "problem", what, mend


def cluster() -> Iterator[Found]:
    """Check that the cluster in RAY_ADDRESS can be reached; without one, tell whether `ray start` has left one here."""
    address, left = os.environ.get("RAY_ADDRESS", ""), ray_temp() / "ray_current_cluster"
    target, says = host_and_port(address), "RAY_ADDRESS names"
    if address in ("", "local", "auto"):
        target, says = None, f"RAY_ADDRESS is auto, and {left} names"
        with suppress(OSError):
            target = host_and_port(left.read_text(encoding="utf-8", errors="replace").strip())
    if target is None:
        if address in ("", "local"):
            yield "ok", "no cluster is named: a run starts a Ray of its own where it needs one"
        elif address == "auto":
            yield "problem", f"RAY_ADDRESS is auto, but {left} names no cluster", f"`ray start --head`, or {OWN}"
        else:
            yield "problem", "RAY_ADDRESS is not of the form HOST:PORT, ray://HOST:PORT, auto or local", OWN
        return
    (host, port), reason = target, _reason_not_reached(*target)
    if address in ("", "local"):
        state = "is not there any more" if reason else "answers"
        what = f"`ray start` has left a cluster at {host}:{port}, which {state}; runs start a Ray of their own beside it"
        yield "note", what, "export RAY_ADDRESS=auto to join it, or end it by `ray stop`"
    elif reason:
        yield "problem", f"{says} {host}:{port}, which cannot be reached ({reason})", f"start that cluster, or {OWN}"
    else:
        yield "ok", f"{says} {host}:{port}, which answers: runs join it"
    if address not in ("", "local", "auto") and not is_loopback(host) and not _wants_tokens():
        what = f"RAY_ADDRESS names another machine ({host}) without tokens: whoever reaches it can run programs in your run"
        what = what
        mend = "give the cluster a token (docs.ray.io, token authentication) and export RAY_AUTH_MODE=token"
        yield "problem", what, mend


def host_and_port(address: str) -> tuple[str, int] | None:
    """Both of HOST:PORT, [HOST]:PORT or ray://HOST:PORT; None for anything else."""
    bare = address.removeprefix("ray://").rstrip("/")
    match = re.fullmatch(r"(?:\[([^/@ ]+)\]|([^:/@ ]+)):([0-9]+)", bare)
    return (match[1] or match[2], int(match[3])) if match and 0 < int(match[3]) < 65536 else None


def is_loopback(host: str) -> bool:
    """True if a host is this machine, seen from itself alone. Names other than localhost are taken for others."""
    try:
        return ip_address(host.removeprefix("::ffff:")).is_loopback
    except ValueError:
        return host == "localhost"


def _reason_not_reached(host: str, port: int) -> str:
    """Why no TCP connection comes about in time; empty when one does. In a thread, since looking up a name knows no time limit."""
    outcome: list[str] = []

    def connect() -> None:
        try:
            with socket.create_connection((host, port), timeout=TIMEOUT_S):
                outcome.append("")
        except OSError as error:
            outcome.append(error.strerror or str(error) or type(error).__name__)

    thread = threading.Thread(target=connect, daemon=True)
    thread.start()
    thread.join(TIMEOUT_S + 0.2)
    return outcome[0] if outcome else "timed out"


ROLES = {
    "dashboard": r".*? \S*ray/dashboard/dashboard\.py",
    "serve proxy": r"ray::\S*ProxyActor",
    "nip-ray": r"(\S+ ){0,2}(\S*/)?nip-ray( |$)|.* nip_ray\.cli( |$)",
    "gcs_server": r"(\S*/)?gcs_server( |$)",
    "client server": r".*? ray\.util\.client\.server",
    "raylet": r"(\S*/)?raylet( |$)",
    "worker": r"ray::",
}
"""Our processes, the most telling first, and how their command lines begin (five words)."""


class Listener(NamedTuple):
    """One port that one of our processes listens on. tokens: whether it asks for them. told: where it was told to listen."""

    order: int
    pid: int
    port: int
    role: str
    host: str
    tokens: bool
    told: str = ""


def ports() -> Iterator[Found]:
    """What listens, and a note on each dashboard, and all servers without tokens, that other machines could reach."""
    import psutil

    try:
        found = listeners()
    except psutil.Error as error:
        yield "note", f"cannot tell who listens ({type(error).__name__})", "look with `ss -tlnp`"
        return
    told = {one: _told(one) for one in found}
    more = f" and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
    yield "ok", "; ".join([*told.values()][:SHOWN]) + more or "no Ray and no nip-ray of this user listens"
    for one in found:
        yield from exposed(one)


def _told(one: Listener) -> str:
    host = "*" if one.host in ("0.0.0.0", "::") else one.host.removeprefix("::ffff:")
    return f"{one.role} on {host}:{one.port} (process {one.pid})"


def exposed(one: Listener) -> Iterator[Found]:
    """A note on a port that only this machine should reach, and others can."""
    what = f"{_told(one)} can be reached from other machines"
    harm = "" if one.tokens else ", and asks for no token: they can run programs as you"
    if is_loopback(one.host):
        return
    if one.role == "dashboard" and not is_loopback(one.told):
        mend = "start Ray with --dashboard-host=127.0.0.1 and come by `ray dashboard` or an SSH tunnel"
        yield "note", what + harm, mend
    elif one.role == "serve proxy" and one.host != "::":  # every worker of Ray has a port on ::, where only Ray is spoken
        yield "note", what, "leave --host at 127.0.0.1 and come by an SSH tunnel"
    elif one.role == "gcs_server" and not one.tokens:
        yield "note", what + harm, "end that Ray (`ray stop`) and start it with RAY_AUTH_MODE=token"


def listeners() -> list[Listener]:
    """Every port that a process of this user listens on which is Ray's or nip-ray's. Raises psutil.Error where that cannot be told."""
    import psutil

    found = []
    for connection in psutil.net_connections("inet"):
        if connection.pid is None or not connection.laddr or connection.status != psutil.CONN_LISTEN:
            continue
        with suppress(psutil.NoSuchProcess, psutil.AccessDenied):  # gone by now, or a title was written over what there was to read
            process = psutil.Process(connection.pid)
            arguments = process.cmdline() if process.uids().effective == os.geteuid() else []
            line, host, port = " ".join(arguments[:5]), connection.laddr.ip, connection.laddr.port
            order, role = next(((i, name) for i, (name, start) in enumerate(ROLES.items()) if re.match(start, line)), (0, ""))
            if role:
                tokens = process.environ().get("RAY_AUTH_MODE", "").lower() == "token"
                told = next((one.removeprefix("--host=") for one in arguments if one.startswith("--host=")), "")
                found.append(Listener(order, connection.pid, port, role, host, tokens, told))
    return sorted(found)
