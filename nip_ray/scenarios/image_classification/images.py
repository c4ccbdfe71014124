"""Images with classes, from scikit-learn, from parquet files, or from the Hugging Face hub.

Decisions that matter here:
- parquet files have the hub's layout: a column of encoded images, each {bytes, path}, and one of whole numbers; so one
  reader serves both files and the hub, and no code of a data set is ever run;
- pixels stay whole numbers from 0 to `levels`: a quarter of the memory, and equal images are equal;
- all images of a set have one size. One that is damaged or of another size is named by file and row;
- of local files, all images have three colours if any has;
- a parquet file's split is given by its name, or else by the nearest folder below the configured one, so that
  downloaded data sets can be used directly (``data/train-00000-of-00001.parquet``, ``train/0000.parquet``). If any file
  of a folder has a split, files of others, and those without, are ignored, and no file serves both splits: held-out
  images never leak.
"""

import io
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, NoReturn

import numpy as np
import torch
from torch import Tensor

from nip_ray.errors import UserError
from nip_ray.scenarios.marks import Mark, marks
from nip_ray.seeding import generator
from nip_ray.settings.image_classification import SOURCES, ImageDataSettings, ImageSource, data_faults

_MAX_BYTES = 2**32  # of the pixels of a set, which are in memory
_MAX_CLASSES = 10_000


@dataclass(frozen=True)
class ImageSet:
    """I images. pixels_ICHW: uint8, from 0 to `levels`. class_I: int64 from 0 on."""

    pixels_ICHW: Tensor
    class_I: Tensor
    levels: int = 255

    def __len__(self) -> int:
        return len(self.class_I)

    def select(self, index_K: Tensor) -> "ImageSet":
        """Some of the images, in this order."""
        return ImageSet(self.pixels_ICHW[index_K], self.class_I[index_K], self.levels)

    def rescaled(self, levels: int) -> "ImageSet":
        """The same images with pixels from 0 to `levels`."""
        return ImageSet((self.pixels_ICHW.float() * (levels / self.levels)).round().byte(), self.class_I, levels)


def load_images(settings: ImageDataSettings) -> tuple[ImageSet, ImageSet]:
    """(train, test) with all classes and in the order of their source, except for a share that is held out by `seed`.

    Cached until a file changes. Raises UserError for invalid settings, for files that are missing, damaged or
    inconsistent, and for an unreachable hub.
    """
    for fault in data_faults(settings):
        raise UserError(f"scenario.data.{fault}")
    train, test = files_of(settings)
    return _loaded(settings, train, test, marks(*train, *test))


@lru_cache(maxsize=2)
def _loaded(
    settings: ImageDataSettings, train_files: tuple[Path, ...], test_files: tuple[Path, ...], marked: tuple[Mark, ...]
) -> tuple[ImageSet, ImageSet]:
    """marked: the state of the files, which is only part of the key."""
    source = SOURCES[settings.source]
    if train_files:
        train = from_files(train_files, source)
    else:
        train = _digits() if source.repository is None else from_hub(source, "train")
    if test_files:
        test = from_files(test_files, source)
        if train.levels != test.levels:  # the digits of scikit-learn with a file
            train = train.rescaled(test.levels)
    elif not train_files and source.repository is not None:
        test = from_hub(source, "test")
    else:
        return held_out(train, settings.test_share, settings.seed)
    if train.pixels_ICHW.shape[1:] != test.pixels_ICHW.shape[1:]:
        sizes = " against ".join(size_text(part) for part in (test, train))
        raise UserError(
            f"scenario.data.test: its images are of another size than the training images ({sizes}), name files of one"
            " size"
        )
    return train, test


def held_out(images: ImageSet, share: float, seed: int) -> tuple[ImageSet, ImageSet]:
    """(train, test): the same share of every class is held out, chosen by `seed`; both keep the order of `images`.

    Raises UserError if that leaves either without an image.
    """
    keep_I = torch.ones(len(images), dtype=torch.bool)
    for number in images.class_I.unique().tolist():
        member_K = (images.class_I == number).nonzero().flatten()
        order_K = torch.randperm(len(member_K), generator=generator(seed, "image split", number))
        keep_I[member_K[order_K[: round(share * len(member_K))]]] = False
    for left, name, how in ((keep_I, "training", "lower"), (~keep_I, "held-out", "raise")):
        if not bool(left.any()):
            most = int(torch.bincount(images.class_I).max())
            few = f"a share of {share} of each class, with at most {most} images, leaves no {name} image"
            raise UserError(f"scenario.data.test_share: {few}, {how} it or name scenario.data.test")
    return images.select(keep_I.nonzero().flatten()), images.select((~keep_I).nonzero().flatten())


def size_text(images: ImageSet) -> str:
    """ "8 x 8 x 1": height, width, channels."""
    channels, height, width = images.pixels_ICHW.shape[1:]
    return f"{height} x {width} x {channels}"


def _digits() -> ImageSet:
    from sklearn.datasets import load_digits  # takes a second, and only this source needs it

    found: Any = load_digits()
    return ImageSet(
        torch.from_numpy(found.images.astype(np.uint8))[:, None], torch.from_numpy(found.target.astype(np.int64)), 16
    )


# ---------------------------------------------------------------------------------------------------------------- files


def from_files(files: Sequence[Path], source: ImageSource) -> ImageSet:
    """The images of parquet files, concatenated.

    Raises UserError for damaged files, or another layout than that of `source`.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    parts, classes = [], []
    for file in files:
        try:
            table = pq.read_table(file, columns=None)
        except (pa.ArrowException, OSError) as error:
            detail = str(error).splitlines()[0][:120]
            raise UserError(
                f"{file}: cannot be read as parquet ({detail}); expected: a parquet file with images and labels"
            ) from None
        found = _decoded(table, source, str(file))
        if parts and found.pixels_ICHW.shape[2:] != parts[0].shape[2:]:
            raise UserError(
                f"{file}: its images are {size_text(found)}, those of the files before it are not; expected: one size"
            )
        parts.append(found.pixels_ICHW)
        classes.append(found.class_I)
    channels = max(part.shape[1] for part in parts)
    return ImageSet(torch.cat([part.expand(-1, channels, -1, -1) for part in parts]), torch.cat(classes))


def from_hub(source: ImageSource, split: str) -> ImageSet:
    """A split of a data set on the hub. Raises UserError without the extra `hf`, or if the hub is unreachable."""
    try:
        from datasets import Image, load_dataset
    except ImportError:
        raise UserError(
            f"{source.repository}: reading from the hub needs datasets: pip install 'nip_ray[hf]'"
        ) from None
    assert source.repository is not None
    try:
        found = load_dataset(source.repository, source.subset, split=split)
        table = found.cast_column(source.image, Image(decode=False)).with_format("arrow")[:]
    except Exception as error:  # network, authorisation, format: the library raises some twenty kinds
        detail = (str(error).splitlines() or [""])[0][:200]
        wrong = f"cannot be read from the hub ({type(error).__name__}: {detail})"
        raise UserError(
            f"{source.repository}: {wrong}; name downloaded files as scenario.data.train and scenario.data.test"
        ) from error
    return _decoded(table, source, f"{source.repository} ({split})")


def _decoded(table: Any, source: ImageSource, where: str) -> ImageSet:
    """The images of an arrow table."""
    for column in (source.image, source.label):
        if column not in table.column_names:
            raise UserError(
                f"{where}: {column}: no such column; expected: {source.image} (images) and {source.label} (whole"
                " numbers)"
            )
    class_I = _classes(table.column(source.label), source, where)
    if len(class_I) < 2:
        raise UserError(f"{where}: has {len(class_I)} images; expected: at least 2")
    rows = _encoded(table.column(source.image), source.image, where)
    channels, sides = (source.size[0], source.size[1:]) if source.size is not None else (None, None)
    first = _pixels(next(rows), source, channels, sides, where, 0)
    _refuse_large(first.nbytes * len(class_I), where)
    pixels_IHWC = np.empty((len(class_I), *first.shape), np.uint8)
    pixels_IHWC[0] = first
    for number, encoded in enumerate(rows, 1):
        made = _pixels(encoded, source, channels, first.shape[:2], where, number)
        if made.shape[-1] > pixels_IHWC.shape[-1]:  # the first in colour: grey ones have three equal colours
            _refuse_large(made.nbytes * len(class_I), where)
            pixels_IHWC = np.repeat(pixels_IHWC, made.shape[-1], axis=-1)
        pixels_IHWC[number] = made
    return ImageSet(torch.from_numpy(pixels_IHWC).permute(0, 3, 1, 2).contiguous(), class_I)


def _refuse_large(size: int, where: str) -> None:
    if size > _MAX_BYTES:
        raise UserError(
            f"{where}: its pixels take {size / 1e9:.1f} GB; expected: at most {_MAX_BYTES / 1e9:.1f}, use smaller"
            " images or fewer"
        )


def _classes(column: Any, source: ImageSource, where: str) -> Tensor:
    import pyarrow as pa

    if not pa.types.is_integer(column.type) or column.null_count:
        raise UserError(
            f"{where}: {source.label}: is not a column of whole numbers, or has gaps; expected: a class from 0 on in"
            " every row"
        )
    class_I = torch.from_numpy(column.to_numpy().astype(np.int64))
    most = (source.num_classes or _MAX_CLASSES) - 1
    wrong = ((class_I < 0) | (class_I > most)).nonzero().flatten()
    if len(wrong):
        row = int(wrong[0])
        raise UserError(
            f"{where}: row {row + 1}: {source.label}: got {int(class_I[row])}; expected: a class from 0 to {most}"
        )
    return class_I


def _encoded(column: Any, name: str, where: str) -> Iterator[bytes]:
    import pyarrow as pa

    if not pa.types.is_struct(column.type) or column.type.get_field_index("bytes") < 0:
        raise UserError(
            f"{where}: {name}: is a {column.type}; expected: encoded images as structs with `bytes`, as the hub keeps"
            " them"
        )
    for row, value in enumerate(column, 1):
        encoded = value["bytes"].as_py() if value.is_valid else None
        if not isinstance(encoded, bytes):
            raise UserError(
                f"{where}: row {row}: {name}: has no bytes (a path alone is not followed); expected: the encoded image"
                " itself"
            )
        yield encoded


def _pixels(
    encoded: bytes, source: ImageSource, channels: int | None, sides: tuple[int, ...] | None, where: str, number: int
) -> np.ndarray:
    """(H, W, C) uint8. channels: the required number, None for its own. sides: the required (H, W), None for any."""
    from PIL import Image

    def fail(wrong: str, right: str) -> NoReturn:
        raise UserError(f"{where}: row {number + 1}: {source.image}: {wrong}; expected: {right}") from None

    try:
        with Image.open(io.BytesIO(encoded)) as image:
            if math.prod(image.size) > _MAX_BYTES // 1000:  # before anything is unpacked
                fail(f"is {image.size[1]} x {image.size[0]}", "a small image")
            if image.mode.startswith(("I", "F")):
                fail(f"has pixels of the kind {image.mode}", "8 bits for each colour")
            grey = image.mode in ("1", "L", "LA") if channels is None else channels == 1
            made = np.asarray(image.convert("L" if grey else "RGB"))
    except UserError:
        raise
    except Exception as error:  # a damaged image can make the decoders raise nearly anything
        fail(f"cannot be decoded ({type(error).__name__})", "an image, for example PNG")
    made = made[..., None] if made.ndim == 2 else made
    if sides is not None and made.shape[:2] != sides:
        fail(f"is {made.shape[0]} x {made.shape[1]}", f"{sides[0]} x {sides[1]}, as all of them")
    return made


Split = Literal["train", "test"]

_WORD = re.compile(r"(?:^|[^a-z])(train|test|valid|val(?![a-z])|extra(?![a-z]))", re.IGNORECASE)


def files_of(settings: ImageDataSettings) -> tuple[tuple[Path, ...], tuple[Path, ...]]:
    """The parquet files of the (training, held-out) images; () for other sources, or a share of the training images.

    Raises UserError for missing files, for a folder without files of the split, and for a file that would be in both.
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
        raise UserError(
            f"scenario.data.test: {min(both)} is a training file too, hold other images out or leave this out"
        )
    return train, test


def parquet_files(path: str | Path, split: Split, subset: str | None = None) -> tuple[Path, ...]:
    """`path` itself, or of a folder the files of `split`; all if none has a split. subset: a subfolder to use if any.

    Raises UserError if there is no such file.
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
        raise UserError(
            f"{path}: has no {split} files (but {other}); call them {split}-….parquet, or name a single file as"
            f" data.{split}"
        )
    return taken


def split_of(file: Path, below: Path) -> str | None:
    """The split that a word of the file's name, else of its nearest folder's, begins with: "train", "test", "valid" or
    "extra"."""
    for part in (file.stem, *reversed(file.relative_to(below).parts[:-1])):
        if found := _WORD.search(part):
            word = found.group(1).lower()
            return "valid" if word == "val" else word
    return None


def _below(path: Path, subset: str | None) -> Path:
    return path / subset if subset is not None and (path / subset).is_dir() else path


def _parquets(path: Path) -> list[Path]:
    return sorted(path.rglob("*.parquet"))
