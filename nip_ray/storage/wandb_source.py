"""Fetch artifacts of other runs from Weights & Biases: "wandb:ENTITY/PROJECT/NAME:VERSION" -> a folder of files.

Decisions that matter here:
- files are fetched, never read: nothing is unpickled or executed, and readers check them as untrusted;
- references in an artifact (a bucket, a local path) are refused: fetching them would read any address;
- every checksum of a returned folder has been compared. The caller passes an empty folder, and removes it if nothing is
  returned.
"""

import importlib.util
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any

from nip_ray.errors import UserError
from nip_ray.storage import compat
from nip_ray.storage.mirror import one_line

PREFIX = "wandb:"

_SOURCE = re.compile(rf"{PREFIX}([^/:\s]+/[^/:\s]+/[^/:\s]+:[^/:\s]+)")
_TIMEOUT_S = 60
_QUIET = {"WANDB_ERROR_REPORTING": "false", "WANDB_SILENT": "true"}


def fetch(source: str, into: Path) -> Path:
    """Download the artifact `source`, "wandb:ENTITY/PROJECT/NAME:VERSION", into the new folder `into`/run; returns
    that. The library's own files are beside it.

    VERSION: "v3", or an alias as in "latest" or "iteration-50". NAME: of a run's artifact, checkpoint-RUN_ID,
    transcripts-RUN_ID or config-RUN_ID. Raises UserError when `source` is misspelt, the library or a key is missing,
    there is no such artifact, or the files cannot be fetched or are damaged.
    """
    match = _SOURCE.fullmatch(source)
    if match is None:
        raise UserError(
            f"{source!r} names no artifact; write {PREFIX}ENTITY/PROJECT/NAME:VERSION, as in"
            f" {PREFIX}team/proofs/config-a1b2:latest"
        )
    require_library(source)
    require_key(f"{source} is to be fetched", "or download it elsewhere and give the folder")
    folder = into / "run"
    with kept_in(into / "library"):
        artifact = _artifact(source, match[1])
        for entry in artifact.manifest.entries.values():
            if entry.ref is not None:
                hint = "nip_ray fetches artifacts that hold their files themselves"
                raise UserError(f"{source}: {entry.path} only points at {entry.ref}; {hint}")
            if (path := PurePosixPath(entry.path)).is_absolute() or ".." in path.parts or "\\" in entry.path:
                raise UserError(
                    f"{source}: {entry.path!r} would be outside its folder; the artifact is not one of nip_ray's"
                )
        try:
            folder.mkdir()
            artifact.download(root=str(folder), skip_cache=True)
            artifact.verify(root=str(folder))
        except Exception as error:
            raise UserError(f"{source} cannot be fetched: {one_line(error)}") from None
    return folder


def _artifact(source: str, name: str) -> Any:
    import wandb

    try:
        return wandb.Api(timeout=_TIMEOUT_S).artifact(name)
    except Exception as error:
        reason = one_line(error)
        if "not found" in reason:
            hint = "look at its page for the names and versions that there are"
            raise UserError(f"there is no artifact {source} ({reason}); {hint}") from None
        raise UserError(f"{source} cannot be fetched: {reason}") from None


def require_library(what: str) -> None:
    """Raise UserError, for `what`, if wandb is not installed."""
    if importlib.util.find_spec("wandb") is None:
        raise UserError(f"{what} needs an extra (there is no wandb): pip install 'nip_ray[tracking]'")


def require_key(what: str, otherwise: str) -> None:
    """Raise UserError, for `what`, if neither the environment nor `wandb login` provides a key, or its form is invalid.

    The library would prompt for it on the terminal.
    """
    if os.environ.get("WANDB_IDENTITY_TOKEN_FILE"):
        return
    key = api_key()
    if key is None:
        raise UserError(f"{what}, but there is no key: set WANDB_API_KEY or run `wandb login`, {otherwise}")
    if problem := compat.fault_of_key(key):
        raise UserError(f"{what}, but WANDB_API_KEY (or the key of `wandb login`) is not a key: {problem}")


def api_key() -> str | None:
    """The key in the environment, else that of `wandb login`."""
    return os.environ.get("WANDB_API_KEY") or compat.key_of_login() or None


@contextmanager
def kept_in(folder: Path) -> Iterator[None]:
    """Keep the library's own folders below `folder` and disable its error reports, unless the environment sets them."""
    wanted = {
        "WANDB_CACHE_DIR": str(folder / "cache"),
        "WANDB_DATA_DIR": str(folder / "data"),
        "WANDB_ARTIFACT_DIR": str(folder / "artifacts"),
        **_QUIET,
    }
    added = {key: value for key, value in wanted.items() if key not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for key in added:
            os.environ.pop(key, None)
