"""The doctor's checks of access to Ray: keys, token, cluster, ports.

Decisions that matter here:
- Ray treats every RAY_AUTH_MODE except `token` as `disabled`, misspelt ones too, and by default uses no tokens with a
  named cluster;
- a token file that others can read is a note: the next run that starts Ray fixes it;
- RAY_ADDRESS may contain a misplaced password, so only its host and port are reported;
- a Ray that a run starts listens on the loopback alone; the servers of `ray start` listen on all interfaces, protected
  by tokens or not at all.
"""

import os
import re
import shlex
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from ipaddress import ip_address
from pathlib import Path
from typing import Literal

from nip_ray.settings.providers import ProviderSettings

Status = Literal["ok", "note", "problem"]
Found = tuple[Status, str] | tuple[Status, str, str]
"""Status, fact, and its fix."""

TIMEOUT_S = 2.0  # of a connection
OWN = "unset RAY_ADDRESS, and a run starts a Ray of its own"
_OF_PROVIDERS = [
    (getattr(kind, "api_key_variable", None), kind.base_url_variable) for kind in ProviderSettings.__subclasses__()
]
VARIABLES = (*(name for pair in _OF_PROVIDERS for name in pair if name is not None), "WANDB_API_KEY", "HF_TOKEN")
"""Keys and addresses of services that parts of the project read; a config can name others."""


@contextmanager
def made(folder: Path) -> Iterator[None]:
    """`folder` exists inside, with its parents; newly made ones are removed again, unless in use.

    Raises OSError when it cannot be made.
    """
    missing = [one for one in (folder, *folder.parents) if not one.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    finally:
        for one in missing:
            with suppress(OSError):  # not made, or not empty: in use by another process
                one.rmdir()


def ray_temp() -> Path:
    """Ray's folder for sessions, chosen as Ray does."""
    return Path(os.environ.get("RAY_TMPDIR", os.environ.get("TMPDIR", "/tmp"))) / "ray"


def keys() -> Iterator[Found]:
    """Report which keys and addresses of services are in the environment, by name."""
    present = [name for name in VARIABLES if os.environ.get(name, "").strip()]
    absent = [name for name in VARIABLES if name not in present]
    yield "ok", f"present: {', '.join(present) or 'none'}; absent: {', '.join(absent) or 'none'}"


def _wants_tokens() -> bool:
    """True if RAY_AUTH_MODE explicitly requires tokens, as Ray reads it."""
    return os.environ.get("RAY_AUTH_MODE", "").lower() == "token"


def token() -> Iterator[Found]:
    """Check that Ray requires a token, has one (where it would look, in its own order), and keeps it private."""
    mode, named = os.environ.get("RAY_AUTH_MODE"), os.environ.get("RAY_AUTH_TOKEN_PATH")
    is_off = mode is not None and not _wants_tokens()  # by default, a new local Ray requires tokens
    if mode is not None and is_off:
        what = "RAY_AUTH_MODE turns Ray's tokens off" + (
            "" if mode.lower() == "disabled" else " (it is neither `token` nor `disabled`)"
        )
        yield "note", f"{what}: anyone who reaches a port of Ray can run programs as you", "export RAY_AUTH_MODE=token"
    path = Path(named) if named else Path(os.path.expanduser("~")) / ".ray" / "auth_token"
    held = False
    with suppress(OSError), path.open("rb") as file:
        held = bool(file.read(1))
    if os.environ.get("RAY_AUTH_TOKEN"):
        yield "ok", "Ray's token comes from RAY_AUTH_TOKEN"
    elif held and path.stat().st_uid != os.geteuid():
        yield (
            "note",
            f"Ray's token in {path} belongs to another user",
            "make one of your own: `ray get-auth-token --generate`",
        )
    elif held and (mask := path.stat().st_mode & 0o777) & 0o077:  # the next run that starts Ray fixes it
        what = f"Ray's token in {path} is open to other users of this machine (mode {mask:o})"
        yield "note", what, f"chmod 600 {shlex.quote(str(path))}"
    elif held:
        yield "ok", f"Ray's token is in {path}, for you alone"
    elif is_off:
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
                raise PermissionError(1, "it exists, but is not a file that can be written")
            with made(path.parent), tempfile.TemporaryFile(dir=path.parent):
                yield "ok", f"no token yet: the first run that starts Ray writes one to {path}"
        except OSError as error:
            what = f"a run that starts Ray cannot write its token to {path} ({error.strerror})"
            mend = "export RAY_AUTH_TOKEN_PATH to a file of yours with a token in it, or HOME to a folder of yours"
            yield "problem", what, mend


def cluster() -> Iterator[Found]:
    """Check that the cluster in RAY_ADDRESS is reachable; without one, report whether `ray start` has left one here."""
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
        what = (
            f"`ray start` has left a cluster at {host}:{port}, which {state}; runs start a Ray of their own beside it"
        )
        yield "note", what, "export RAY_ADDRESS=auto to join it, or end it by `ray stop`"
    elif reason:
        yield "problem", f"{says} {host}:{port}, which cannot be reached ({reason})", f"start that cluster, or {OWN}"
    else:
        yield "ok", f"{says} {host}:{port}, which answers: runs join it"
    if address not in ("", "local", "auto") and not is_loopback(host) and not _wants_tokens():
        what = (
            f"RAY_ADDRESS names another machine ({host}) without tokens: anyone who reaches it can run programs in"
            " your run"
        )
        mend = "give the cluster a token (docs.ray.io, token authentication) and export RAY_AUTH_MODE=token"
        yield "problem", what, mend


def host_and_port(address: str) -> tuple[str, int] | None:
    """Both of HOST:PORT, [HOST]:PORT or ray://HOST:PORT; None for anything else."""
    bare = address.removeprefix("ray://").rstrip("/")
    match = re.fullmatch(r"(?:\[([^/@ ]+)\]|([^:/@ ]+)):([0-9]+)", bare)
    return (match[1] or match[2], int(match[3])) if match and 0 < int(match[3]) < 65536 else None


def is_loopback(host: str) -> bool:
    """True if a host is the loopback. Names other than localhost count as other machines."""
    try:
        return ip_address(host.removeprefix("::ffff:")).is_loopback
    except ValueError:
        return host == "localhost"


def _reason_not_reached(host: str, port: int) -> str:
    """Why no TCP connection succeeds in time; "" if one does."""
    try:
        with socket.create_connection((host, port), timeout=TIMEOUT_S):
            return ""
    except OSError as error:
        return error.strerror or str(error) or type(error).__name__


ROLES = {
    "dashboard": r".*? \S*ray/dashboard/dashboard\.py",
    "serve proxy": r"ray::\S*ProxyActor",
    "nip-ray": r"(\S+ ){0,2}(\S*/)?nip-ray( |$)|.* nip_ray\.cli( |$)",
    "gcs_server": r"(\S*/)?gcs_server( |$)",
}
"""Our servers, and the beginnings of their command lines (five words)."""


def ports() -> Iterator[Found]:
    """Report where Ray and nip-ray servers listen, with a note on each that other machines can reach but should not."""
    import psutil

    told, exposed = list[str](), list[Found]()
    try:
        connections = psutil.net_connections("inet")
    except psutil.Error as error:
        yield "note", f"cannot tell who listens ({type(error).__name__})", "look with `ss -tlnp`"
        return
    for connection in connections:
        if connection.pid is None or not connection.laddr or connection.status != psutil.CONN_LISTEN:
            continue
        # gone by now, or its title was overwritten
        with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            process, (host, port) = psutil.Process(connection.pid), connection.laddr
            arguments = process.cmdline() if process.uids().effective == os.geteuid() else []
            role = next((name for name, start in ROLES.items() if re.match(start, " ".join(arguments[:5]))), None)
            if role is None:
                continue
            what = (
                f"{role} on {'*' if host in ('0.0.0.0', '::') else host.removeprefix('::ffff:')}:{port} (process"
                f" {connection.pid})"
            )
            told.append(what)
            asks = next((one.removeprefix("--host=") for one in arguments if one.startswith("--host=")), "")
            tokens = process.environ().get("RAY_AUTH_MODE", "").lower() == "token"
            if mend := mend_of_exposed(role, host, asks, tokens):
                harm = (
                    "" if tokens or role == "serve proxy" else ", and asks for no token: they can run programs as you"
                )
                exposed.append(("note", f"{what} can be reached from other machines{harm}", mend))
    yield "ok", "; ".join(told) or "no Ray and no nip-ray of this user listens"
    yield from exposed


def mend_of_exposed(role: str, host: str, asks: str, tokens: bool) -> str:
    """The way to protect a server that only this machine should reach; "" if it is not reachable from others.

    asks: its configured address. tokens: True if it requires them.
    """
    if is_loopback(host):
        return ""
    # a loopback one may still serve metrics for Prometheus elsewhere
    if role == "dashboard" and not is_loopback(asks):
        return "start Ray with --dashboard-host=127.0.0.1 and come by `ray dashboard` or an SSH tunnel"
    if role == "serve proxy" and host != "::":  # every worker of Ray has a port on ::, with Ray's own protocol only
        return "leave --host at 127.0.0.1 and come by an SSH tunnel"
    return (
        "end that Ray (`ray stop`) and start it with RAY_AUTH_MODE=token" if role == "gcs_server" and not tokens else ""
    )
