"""Joining or starting Ray.

Decisions that matter here:
- a named cluster is first checked, by one gRPC call, for reachability and our token. Ray itself would be silent for two
  minutes without a cluster, and repeat itself for twenty seconds if a token is refused;
- a local Ray is not reachable from other machines: all its ports, not only its dashboard, listen on the loopback. A
  cluster that `ray start` left on this machine is joined only when it is named (or by `auto`);
- Ray turns token authentication on by itself for a local Ray, and writes the token with the umask's mode, usually
  readable by everyone. So the file is created before Ray looks for it, with mode 0600. If the user has configured
  authentication ($RAY_AUTH_MODE=disabled, $RAY_AUTH_TOKEN, $RAY_AUTH_TOKEN_PATH), nothing is written;
- a cluster named by its address gets a token only under $RAY_AUTH_MODE=token, by Ray's own rule: it does not send a
  secret to an address just because there is one. Our messages never contain a token.
"""

import logging
import os
import secrets
import signal
import stat
from contextlib import suppress
from pathlib import Path
from typing import Any

from nip_ray.cluster import compat
from nip_ray.cluster.interrupts import Interrupted, finishing, kept
from nip_ray.errors import TrainingError, UserError, require
from nip_ray.settings.experiment import RuntimeSettings

LOCAL = "local"
"""Ray's name for starting a new local one."""

_COMMON: dict[str, Any] = {"namespace": "nip_ray", "log_to_driver": False, "logging_level": logging.ERROR}
_GIVE_TOKEN = "set RAY_AUTH_MODE=token and give the cluster's token by RAY_AUTH_TOKEN_PATH (a file) or RAY_AUTH_TOKEN"


def first_words(text: str) -> str:
    """The first sentence of Ray's long explanations."""
    return " ".join(text.split()).partition(". ")[0].partition(" Worker exit ")[0].rstrip(".")


def start_ray(runtime: RuntimeSettings, num_cpus: float) -> bool:
    """Join the cluster in the config or $RAY_ADDRESS (in a Ray job: its own); else start a local Ray with `num_cpus`
    CPUs (or as many as the machine has), if any are needed. Returns True if it has started one.

    A local Ray and its dashboard listen on 127.0.0.1 and require a token. Raises UserError when a named cluster cannot
    be reached or refuses our token, and when the token's file cannot be protected.
    """
    address = runtime.ray_address or os.environ.get("RAY_ADDRESS")
    if address == LOCAL:
        address = None
    if not address and num_cpus == 0:
        return False
    ray = require("ray", "ray")
    if ray.is_initialized():
        return False
    if address:
        _join(address, "runtime.ray_address" if runtime.ray_address else "RAY_ADDRESS")
        return False
    start_local_ray(
        num_cpus=runtime.ray_num_cpus or max(int(num_cpus) + 1, len(os.sched_getaffinity(0))),
        include_dashboard=True,
        dashboard_host="127.0.0.1",
    )
    return True


def start_local_ray(**options: Any) -> None:
    """A Ray of this process's own, on the loopback alone; `options` are those of `ray.init`.

    Raises UserError when its token cannot be protected, or cannot be read, TrainingError where Ray starts too slowly.
    """
    import psutil
    import ray
    from ray.exceptions import AuthenticationError

    secure_token()
    process = psutil.Process()
    before = set(process.children())
    try:
        # signals wait: Ray loses track of the processes of an interrupted start
        with compat.on_loopback(), kept(), finishing():
            ray.init(**{"address": LOCAL, "object_store_memory": 256 << 20, **_COMMON, **options})
    except AuthenticationError as error:
        raise UserError(
            "RAY_AUTH_TOKEN_PATH: no token can be read from that file; name one that holds a token, or unset it"
        ) from error
    except BaseException as error:
        ray.shutdown()
        for child in set(process.children()) - before:  # of a start that took longer than a signal waits
            with suppress(psutil.NoSuchProcess):
                child.kill()
        if isinstance(error, KeyboardInterrupt):
            raise Interrupted(getattr(error, "signum", signal.SIGINT)) from error
        if compat.is_slow_start(error):
            raise TrainingError(
                "Ray did not start within 30 seconds: this machine may be too busy. Try again, or run `nip-ray doctor`"
            ) from error
        raise


# ---------------------------------------------------------------------------------------------------------------- token


def secure_token() -> None:
    """Ensure that only the owner can read the token of a new local Ray.

    Makes ~/.ray/auth_token with mode 0600, or removes others' permissions from an existing one of ours. Does nothing if
    authentication is off or the user provides a token. Raises UserError when the file cannot be made or fixed.
    """
    if os.environ.get("RAY_AUTH_MODE", "token").lower() != "token":
        return
    if os.environ.get("RAY_AUTH_TOKEN", "").strip() or os.environ.get("RAY_AUTH_TOKEN_PATH"):
        return
    path = Path.home() / ".ray" / "auth_token"
    try:
        _make_token(path)
        found = path.stat()
        if found.st_uid == os.geteuid() and stat.S_IMODE(found.st_mode) & 0o077:
            path.chmod(0o600)
    except OSError as error:
        hint = "fix it, or give a token by RAY_AUTH_TOKEN_PATH (a file) or RAY_AUTH_TOKEN"
        raise UserError(f"{path}: Ray's token cannot be kept there ({error.strerror}); {hint}") from error


def _make_token(path: Path) -> None:
    """A token at `path`, unless there is one: written aside and linked, so two processes both get the same token."""
    if path.exists():
        return
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.tmp-{os.getpid()}-{secrets.token_hex(4)}")
    handle = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(handle, "w") as file:
            file.write(secrets.token_hex(32))
            file.flush()
            os.fsync(file.fileno())
        with suppress(FileExistsError):
            os.link(aside, path)
    finally:
        aside.unlink()


# -------------------------------------------------------------------------------------------------------------- joining


def _join(address: str, key: str) -> None:
    """key: the source of the name, for messages."""
    import ray
    from ray.exceptions import AuthenticationError

    if address.startswith(("http://", "https://")):
        raise UserError(
            f"{key}: {address} is a dashboard, for `ray job submit`; name the cluster as HOST:6379, or none to run here"
        )
    try:
        if "://" not in address and address != "auto":
            _ask(address, key)
        with kept():
            ray.init(address=address, **_COMMON)
    except AuthenticationError as error:
        raise UserError(f"{key}: no token to show to the Ray cluster at {address!r}: {_GIVE_TOKEN}") from error
    except (ConnectionError, ValueError, RuntimeError) as error:
        if compat.is_refused_token(error):
            raise _refused(address, key) from error
        reason = " ".join(str(error).split())[:300]
        raise UserError(f"{key}: no Ray cluster that can be joined at {address!r}: {reason}") from error


def _ask(address: str, key: str) -> None:
    """Raise UserError unless a Ray cluster answers at `address` (HOST:PORT) and accepts our token."""
    answer = compat.answer_of(address)
    if answer == "unauthenticated":
        raise _refused(address, key)
    if answer != "ok":
        hint = "start it (`ray start --head`), or name HOST:PORT of one that runs"
        raise UserError(f"{key}: no Ray cluster answers at {address!r} ({answer.replace('_', ' ')}); {hint}")


def _refused(address: str, key: str) -> UserError:
    return UserError(f"{key}: the Ray cluster at {address!r} refuses our token: {_GIVE_TOKEN}")
