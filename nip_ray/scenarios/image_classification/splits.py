"""Which parquet files hold the training images, and which the held-out ones.

Decisions that matter here:
- a file's split is told by its name, or else by the nearest folder below the one that is named, so that data sets can be named as they
  are downloaded (``data/train-00000-of-00001.parquet``, ``train/0000.parquet``);
- where any file of a folder has a split, files of others, and those without, are not taken: what is held out never slips in;
- no file serves both splits.
"""

import re
from pathlib import Path
from typing import Literal

from nip_ray.errors import UserError
from nip_ray.settings.image_data import SOURCES, ImageDataSettings

Split = Literal["train", "test"]

_WORD = re.compile(r"(?:^|[^a-z])(train|test|valid|val(?![a-z])|extra(?![a-z]))", re.IGNORECASE)


def files_of(settings: ImageDataSettings) -> tuple[tuple[Path, ...], tuple[Path, ...]]:
    """The parquet files of the (training, held-out) images; none for what is not from files, or is a share of the training images.

    Raises UserError for what is missing, for a folder without files of the split, and for a file that would be of both.
    """
    subset = SOURCES[settings.source].subset
    train = () if settings.train is None else parquet_files(settings.train, "train", subset)
    if settings.test is not None:
        test = parquet_files(settings.test, "test", subset)
    elif settings.train is not None and Path(settings.train).is_dir():
        below = _below(Path(settings.train), subset)
        test = tuple(file for file in _parquets(below) if split_of(file, below) == "test")
    else:
        test = ()
    both = {file.resolve() for file in train} & {file.resolve() for file in test}
    if both:
        raise UserError(f"scenario.data.test: {min(both)} is a training file too, hold other images out or leave this out")
    return train, test


def parquet_files(path: str | Path, split: Split, subset: str | None = None) -> tuple[Path, ...]:
    """`path` itself, or of a folder the files of `split`; all, where none is of any split. subset: look into this folder of it, if it is
    there.

    Raises UserError where there is no such file.
    """
    path = Path(path)
    if not path.exists():
        raise UserError(f"{path}: no such file or folder; name a parquet file with images, or a folder of them")
    if path.is_file():
        return (path,)
    path = _below(path, subset)
    found = {file: split_of(file, path) for file in _parquets(path)}
    if not found:
        raise UserError(f"{path}: has no .parquet files; name a parquet file with images, or a folder of them")
    if not any(found.values()):
        return tuple(found)
    taken = tuple(file for file, of in found.items() if of == split)
    if not taken:
        other = next(file for file, of in found.items() if of is not None).relative_to(path)
        raise UserError(f"{path}: has no {split} files (but {other}); call them {split}-….parquet, or name a single file as data.{split}")
    return taken


def split_of(file: Path, below: Path) -> str | None:
    """What a word of the file's name, else of its folders' from the nearest on, begins with: "train", "test", "valid" or "extra"."""
    for part in (file.stem, *reversed(file.relative_to(below).parts[:-1])):
        if found := _WORD.search(part):
            word = found.group(1).lower()
            return "valid" if word == "val" else word
    return None


def _below(path: Path, subset: str | None) -> Path:
    return path / subset if subset is not None and (path / subset).is_dir() else path


def _parquets(path: Path) -> list[Path]:
    return sorted(path.rglob("*.parquet"))
