"""What a run can start from: another run's folder, or what that run left at Weights & Biases, "wandb:ENTITY/PROJECT/NAME:VERSION".

Decisions that matter here:
- an artifact is a small run folder: `config.yaml`, and in one with a checkpoint `checkpoints/NNNNNN/` beside it. So whoever reads a
  run folder can read it, fetched by whatever means;
- a numbered version ("v3") never changes. It is fetched once and kept in `fetched/` beside the new run's folder. Any other name of a
  version ("latest") may mean something else tomorrow: it is fetched whenever it is asked for, and not kept;
- what was fetched is used only if every file of its checkpoint matches the sums in its manifest, and is kept in one step: a kill
  leaves nothing half fetched under the final name. A kept copy that was damaged since is fetched anew.
"""

import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

from nip_ray.errors import UserError
from nip_ray.runs.folder import CONFIG

WANDB = "wandb:"
FETCHED = "fetched"

_NUMBERED = re.compile(r":v\d+")


def is_artifact(source: Path | str) -> bool:
    """Whether `source` names something at Weights & Biases instead of a file or folder."""
    return str(source).startswith(WANDB)


def absolute(source: str) -> str:
    """`source` so that it means the same from any working folder."""
    return source if is_artifact(source) else os.path.abspath(source)


@contextmanager
def config_file(source: Path | str) -> Iterator[Path]:
    """The YAML file that `source` stands for: itself, or the config of a run folder or of an artifact (there while the context lasts).

    Raises UserError for a folder that is no run, and for an artifact that cannot be fetched or has no config.
    """
    if is_artifact(source):
        with tempfile.TemporaryDirectory(prefix="nip-ray-") as folder:
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
    """The run folder that `source` stands for: itself, or a verified artifact, which is sure to be there while the context lasts.

    beside: the new run's folder; what may be kept is kept next to it (none: nothing is).
    Raises UserError for an artifact that cannot be fetched, is no run with a checkpoint, or is damaged.
    """
    if not is_artifact(source):
        yield Path(source)
    elif beside is not None and _NUMBERED.fullmatch(source[source.rfind(":") :]):
        yield _kept(source, beside.absolute().parent / FETCHED)
    else:
        with tempfile.TemporaryDirectory(prefix="nip-ray-") as folder:
            yield _verified(source, Path(folder))


def _kept(source: str, shelf: Path) -> Path:
    """The artifact in its place on the shelf, fetched if it is not there undamaged."""
    place = shelf / quote(source.removeprefix(WANDB), safe="")
    if _fault(place) is None:
        return place
    try:
        shelf.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".fetching-", dir=shelf) as aside:
            made = _verified(source, Path(aside))
            if place.exists() and _fault(place) is not None:  # else another process was faster: its copy is as good
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
    from nip_ray.runs.trackers.wandb_source import fetch

    folder = into / "run"
    folder.mkdir()
    found = fetch(source, folder)
    if not (found / CONFIG).is_file():
        raise UserError(f"{source}: holds no {CONFIG}, so it is of no run of nip-ray; name one called config-RUNID or checkpoint-RUNID")
    return found


def _fault(folder: Path) -> str | None:
    """What keeps a fetched folder from being used as a run with a checkpoint, in words."""
    from nip_ray.runs.checkpoint import load_checkpoint

    if not (folder / CONFIG).is_file():
        return f"there is no {CONFIG}"
    try:
        skipped = load_checkpoint(folder / "checkpoints").skipped
    except UserError as error:
        skipped = [str(error)]
    return skipped[0].replace(f"{folder}{os.sep}", "") if skipped else None
