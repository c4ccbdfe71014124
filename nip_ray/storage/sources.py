"""Sources of a run: another run's folder, its artifact at Weights & Biases, "wandb:ENTITY/PROJECT/NAME:VERSION", or its
copy in an object store, "s3://BUCKET/PATH/NAME".

Decisions that matter here:
- an artifact is a small run folder: `config.yaml`, and with a checkpoint `checkpoints/NNNNNN/` beside it. So any reader
  of run folders can read it once it is fetched;
- a numbered version ("v3") never changes. It is fetched once and kept in `fetched/` beside the new run's folder. Any
  other version ("latest") may change: it is fetched at every use, and not kept;
- a copy in a store is a run folder that may still be running: the needed part is fetched at every use, and not kept. Of
  its checkpoints the newest undamaged one counts, as in any run folder;
- a fetched source is used only if every file of its checkpoint matches the sums in its manifest, and is kept in one
  step: a kill leaves nothing incomplete under the final name. A kept copy that was damaged since is fetched again.
"""

import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

from nip_ray.errors import UserError
from nip_ray.storage.folder import CONFIG
from nip_ray.storage.mirror import checkpoint_of, fetch_mirror, is_mirror, place_of

WANDB = "wandb:"
FETCHED = "fetched"

_NUMBERED = re.compile(r":v\d+")


def is_artifact(source: Path | str) -> bool:
    """True if `source` must be fetched, from Weights & Biases or a store, instead of being a file or folder."""
    return str(source).startswith(WANDB) or is_mirror(source)


def absolute(source: str) -> str:
    """`source` independent of the working folder. Raises UserError for an invalid address in a store."""
    if is_mirror(source):
        return place_of(source, "a run to start from").url
    return source if is_artifact(source) else os.path.abspath(source)


@contextmanager
def config_file(source: Path | str) -> Iterator[Path]:
    """The YAML file of `source`: itself, or the config of a run folder or of a fetched source (within the context).

    Raises UserError for a folder that is not a run, and for a source that cannot be fetched or has no config.
    """
    if is_artifact(source):
        with tempfile.TemporaryDirectory(prefix="nip-ray-") as folder:
            if is_mirror(source):
                yield fetch_mirror(source, Path(folder) / "run", lambda name: name == CONFIG) / CONFIG
            else:
                yield _fetch(str(source), Path(folder)) / CONFIG
        return
    path = Path(source)
    if path.is_dir():
        if not (path / CONFIG).is_file():
            raise UserError(f"{path}: is a directory without {CONFIG}, so no run; name a YAML config or a run's folder")
        path = path / CONFIG
    yield path


@contextmanager
def run_folder(source: str, beside: Path | None = None) -> Iterator[Path]:
    """The run folder of `source`: itself, or a fetched one, for the duration of the context: a verified artifact, or
    the config and the checkpoints of a run in a store.

    beside: the new run's folder; permanent copies are kept next to it (None: not kept). Raises UserError for a source
    that cannot be fetched or is not a run with an undamaged checkpoint, and for an artifact with a damaged one.
    """
    if not is_artifact(source):
        yield Path(source)
    elif is_mirror(source):
        with tempfile.TemporaryDirectory(prefix="nip-ray-") as folder:
            found = fetch_mirror(
                source, Path(folder) / "run", lambda name: name == CONFIG or checkpoint_of(name) is not None
            )
            if (fault := _fault(found, strict=False)) is not None:
                raise UserError(f"{place_of(source, 'the run').url}: {fault}")
            yield found
    elif beside is not None and _NUMBERED.fullmatch(source[source.rfind(":") :]):
        yield _kept(source, beside.absolute().parent / FETCHED)
    else:
        with tempfile.TemporaryDirectory(prefix="nip-ray-") as folder:
            yield _verified(source, Path(folder))


def _kept(source: str, shelf: Path) -> Path:
    """The artifact in its place on the shelf, fetched unless it is there undamaged."""
    place = shelf / quote(source.removeprefix(WANDB), safe="")
    if _fault(place) is None:
        return place
    try:
        shelf.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".fetching-", dir=shelf) as aside:
            made = _verified(source, Path(aside))
            if place.exists() and _fault(place) is not None:  # else another process was faster: its copy is equal
                place.rename(Path(aside) / "damaged")
            if not place.exists():
                made.rename(place)
    except OSError as error:
        raise UserError(f"{shelf} cannot be written ({error.strerror}); what {source} holds is kept there") from None
    return place


def _verified(source: str, into: Path) -> Path:
    found = _fetch(source, into)
    if (fault := _fault(found)) is not None:
        raise UserError(f"{source}: {fault}; name another version")
    return found


def _fetch(source: str, into: Path) -> Path:
    """Fetch into a new folder in `into`."""
    from nip_ray.storage.wandb_source import fetch

    found = fetch(source, into)
    if not (found / CONFIG).is_file():
        raise UserError(
            f"{source}: holds no {CONFIG}, so it is of no run of nip-ray; name one called config-RUNID or"
            " checkpoint-RUNID"
        )
    return found


def _fault(folder: Path, *, strict: bool = True) -> str | None:
    """The fault that makes a fetched folder unusable as a run with a checkpoint, in words. strict: also a damaged one
    beside it."""
    from nip_ray.storage.checkpoint import load_checkpoint

    if not (folder / CONFIG).is_file():
        return f"there is no {CONFIG}"
    try:
        passed_over = load_checkpoint(folder / "checkpoints").skipped
        faults = passed_over if strict else []
    except UserError as error:
        faults = [str(error)]
    return faults[0].replace(f"{folder}{os.sep}", "") if faults else None
