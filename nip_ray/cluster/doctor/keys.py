"""Keys and tokens: whether they are there, never what they are.

Decisions that matter here:
- nothing of a value is told, not even how long it is, and neither is a value that is wrong: it may be a key in the wrong place;
- that a token's file can be read by others is worth a note, no more: Ray itself makes it so, and the next run that starts Ray mends it;
- Ray takes every RAY_AUTH_MODE but `token` for `disabled`, misspelt ones too.
"""

import errno
import os
import shlex
import tempfile
from pathlib import Path

from nip_ray.cluster.doctor.finding import Finding, note, ok, problem
from nip_ray.cluster.doctor.places import made
from nip_ray.settings.providers import ProviderSettings

VARIABLES = (
    *(
        variable
        for kind in ProviderSettings.__subclasses__()
        for variable in (getattr(kind, "api_key_variable", None), kind.base_url_variable)
        if variable is not None
    ),
    "WANDB_API_KEY",
    "HF_TOKEN",
)
"""Variables that parts of the project read; a config can name others."""


def keys() -> list[Finding]:
    """Which keys and addresses of services are in the environment, by name."""
    present = [name for name in VARIABLES if os.environ.get(name, "").strip()]
    absent = [name for name in VARIABLES if name not in present]
    return [ok("keys", f"present: {', '.join(present) or 'none'}; absent: {', '.join(absent) or 'none'}")]


def wants_tokens() -> bool:
    """Whether RAY_AUTH_MODE asks for tokens outright, as Ray reads it."""
    return os.environ.get("RAY_AUTH_MODE", "").lower() == "token"


def token() -> list[Finding]:
    """Whether Ray asks for a token, has one, and keeps it from others."""
    return [*_mode(), *_source()]


def _mode() -> list[Finding]:
    mode = os.environ.get("RAY_AUTH_MODE")
    if mode is None or wants_tokens():
        return []  # left to itself, a new local Ray asks for tokens
    what = "RAY_AUTH_MODE turns Ray's tokens off" + ("" if mode.lower() == "disabled" else " (it is neither `token` nor `disabled`)")
    return [note("token", f"{what}: whoever reaches a port of Ray can run programs as you", "export RAY_AUTH_MODE=token")]


def _source() -> list[Finding]:
    """Where Ray would take the token from, in its own order."""
    if os.environ.get("RAY_AUTH_TOKEN"):
        return [ok("token", "Ray's token comes from RAY_AUTH_TOKEN")]
    needed = wants_tokens() or "RAY_AUTH_MODE" not in os.environ
    named = os.environ.get("RAY_AUTH_TOKEN_PATH")
    path = Path(named) if named else Path(os.path.expanduser("~")) / ".ray" / "auth_token"
    if _holds_something(path):
        return [_guarded(path)]
    if not needed:
        return []
    if named:
        what = f"RAY_AUTH_TOKEN_PATH names {path}, where there is no token that can be read"
        return [problem("token", what, "put a token there, or unset RAY_AUTH_TOKEN_PATH")]
    return [_to_be_made(path)]


def _to_be_made(path: Path) -> Finding:
    if wants_tokens() and os.environ.get("RAY_ADDRESS") not in (None, "", "local"):
        what = f"there is no token in {path}, and RAY_ADDRESS names a cluster that would ask for one"
        return problem("token", what, f"put the cluster's token there, with mode 600: chmod 600 {_quoted(path)}")
    try:
        if path.is_dir() or (path.exists() and not os.access(path, os.W_OK)):
            raise PermissionError(errno.EPERM, "it is there, and is no file that can be written")
        with made(path.parent), tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        what = f"a run that starts Ray cannot write its token to {path} ({error.strerror})"
        return problem("token", what, "export RAY_AUTH_TOKEN_PATH to a file of yours with a token in it, or HOME to a folder of yours")
    return ok("token", f"no token yet: the first run that starts Ray writes one to {path}")


def _guarded(path: Path) -> Finding:
    about = path.stat()
    if about.st_uid != os.geteuid():
        return note("token", f"Ray's token in {path} belongs to another user", "make one of your own: `ray get-auth-token --generate`")
    if about.st_mode & 0o077:
        what = f"Ray's token in {path} is open to other users of this machine (mode {about.st_mode & 0o777:o})"
        return note("token", what, f"chmod 600 {_quoted(path)}")
    return ok("token", f"Ray's token is in {path}, for you alone")


def _holds_something(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return bool(file.read(1))
    except OSError:
        return False


def _quoted(path: Path) -> str:
    return shlex.quote(str(path))
