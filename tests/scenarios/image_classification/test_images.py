"""Images: the digits that come with scikit-learn, files of the hub's layouts read to the pixel, splits, and every
damaged file."""

import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from nip_ray.errors import UserError
from nip_ray.scenarios.image_classification.images import Split, from_files, from_hub, load_images, parquet_files
from nip_ray.settings.image_classification import SOURCES, ImageDataSettings, ImageSource
from tests.scenarios.image_classification.files import encoded, random_pixels, table, write

COLUMNS = {name: dict(image=source.image, label=source.label) for name, source in SOURCES.items()}
HUB = [name for name, source in SOURCES.items() if source.repository is not None]


def data(**settings: Any) -> ImageDataSettings:
    return ImageDataSettings(**settings)


def test_digits_are_the_real_ones_and_every_class_is_held_out_in_equal_parts() -> None:
    train, test = load_images(data())
    assert (len(train), len(test), train.levels) == (1438, 359, 16)
    assert train.pixels_ICHW.shape[1:] == (1, 8, 8)
    assert int(train.pixels_ICHW.max()) == 16
    shares = torch.bincount(test.class_I) / (torch.bincount(test.class_I) + torch.bincount(train.class_I))
    assert float((shares - 0.2).abs().max()) < 0.01
    from sklearn.datasets import load_digits

    known: Any = load_digits()
    both = np.concatenate([train.pixels_ICHW, test.pixels_ICHW])[:, 0]
    assert sorted(image.tobytes() for image in both) == sorted(
        image.astype(np.uint8).tobytes() for image in known.images
    )


@pytest.mark.parametrize("name", HUB)
def test_files_of_the_hubs_layout_are_read_to_the_pixel(name: str, tmp_path: Path) -> None:
    size = SOURCES[name].size
    pixels, classes = random_pixels(10, size), [i % 10 for i in range(10)]
    write(tmp_path / "data" / "train-00000-of-00001.parquet", pixels, classes, **COLUMNS[name])
    write(tmp_path / "data" / "test-00000-of-00001.parquet", pixels[:4], classes[:4], **COLUMNS[name])
    found, test = load_images(data(source=name, train=str(tmp_path), test=str(tmp_path)))
    assert np.array_equal(found.pixels_ICHW.permute(0, 2, 3, 1).numpy(), pixels)
    assert found.class_I.tolist() == classes
    assert (found.levels, len(test)) == (255, 4)


@pytest.mark.parametrize("name", ["mnist", "cifar10"])
def test_the_hubs_library_gives_the_same_as_the_files(name: str, tmp_path: Path) -> None:
    source = SOURCES[name]
    pixels = random_pixels(7, source.size)
    splits: tuple[tuple[Split, int], ...] = (("train", 7), ("test", 3))
    for split, count in splits:
        write(
            tmp_path / "data" / f"{split}-00000-of-00001.parquet",
            pixels[:count],
            [i % 10 for i in range(count)],
            **COLUMNS[name],
        )
    local = ImageSource(str(tmp_path), source.size, 10, image=source.image, label=source.label)
    for split, count in splits:
        found, same = from_hub(local, split), from_files(parquet_files(tmp_path, split), source)
        assert len(found) == count
        assert torch.equal(found.pixels_ICHW, same.pixels_ICHW)
        assert torch.equal(found.class_I, same.class_I)


def test_a_hub_that_cannot_be_reached_is_one_line_that_names_the_way_out(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"cannot be read from the hub .*scenario.data.train") as caught:
        from_hub(ImageSource(str(tmp_path / "nowhere"), (1, 28, 28), 10), "train")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("channels", "kind"), [(1, "PNG"), (3, "PNG"), (3, "BMP")])
def test_files_of_ones_own_say_their_size_and_colours(channels: int, kind: str, tmp_path: Path) -> None:
    pixels = random_pixels(4, (channels, 9, 11))
    images = pa.array([{"bytes": encoded(one, kind), "path": None} for one in pixels])
    pq.write_table(pa.table({"image": images, "label": pa.array([0, 1, 0, 1], pa.uint8())}), tmp_path / "own.parquet")
    train, test = load_images(data(source="files", train=str(tmp_path / "own.parquet"), test_share=0.5))
    assert train.pixels_ICHW.shape[1:] == (channels, 9, 11)
    assert sorted(train.class_I.tolist()) == sorted(test.class_I.tolist()) == [0, 1]


@pytest.mark.parametrize("grey", [(0,), (0, 1, 2), (3,), (0, 2)])
def test_one_image_in_colour_makes_all_of_them_coloured(grey: tuple[int, ...], tmp_path: Path) -> None:
    colour = random_pixels(4, (3, 6, 5))
    pixels = [one[..., :1] if number in grey else one for number, one in enumerate(colour)]
    images = pa.array([{"bytes": encoded(one), "path": None} for one in pixels])
    pq.write_table(pa.table({"image": images, "label": pa.array([0, 1, 0, 1])}), tmp_path / "own.parquet")
    found = from_files([tmp_path / "own.parquet"], SOURCES["files"])
    expected = np.stack([np.broadcast_to(one, (6, 5, 3)) for one in pixels])
    assert np.array_equal(found.pixels_ICHW.permute(0, 2, 3, 1).numpy(), expected)


def test_a_file_that_is_written_anew_is_read_anew(tmp_path: Path) -> None:
    path = write(tmp_path / "own.parquet", random_pixels(8, (1, 5, 5)), [0, 1] * 4)
    given = data(source="files", train=str(path), test_share=0.5)
    first = load_images(given)
    assert load_images(given)[0] is first[0]
    pixels = random_pixels(8, (1, 5, 5), seed=1)
    write(path, pixels, [0, 1] * 4)
    assert sorted(image.numpy().tobytes() for part in load_images(given) for image in part.pixels_ICHW) == sorted(
        image.tobytes() for image in pixels
    )


def replaced(made: pa.Table, name: str, values: pa.Array) -> pa.Table:
    return made.set_column(made.column_names.index(name), name, values)


GOOD = table(random_pixels(4, (1, 28, 28)), [0, 1, 2, 3])
BLOB = pa.array([{"bytes": b"not an image", "path": "x"}] * 4)
LARGER = pa.array([{"bytes": encoded(one), "path": "x"} for one in random_pixels(4, (1, 30, 28))])
DEEP = pa.array([{"bytes": encoded(np.zeros((28, 28, 1), np.uint16)), "path": "x"}] * 4)
PATHS = pa.array(
    [{"bytes": None, "path": "/etc/passwd"}] * 4, pa.struct([("bytes", pa.binary()), ("path", pa.string())])
)
BAD: dict[str, tuple[Callable[[], pa.Table], str]] = {
    "no image column": (lambda: GOOD.drop_columns("image"), "image: no such column; expected: image"),
    "no label column": (lambda: GOOD.drop_columns("label"), "label: no such column"),
    "too few": (lambda: GOOD.slice(0, 1), "has 1 images; expected: at least 2"),
    "class too large": (
        lambda: replaced(GOOD, "label", pa.array([0, 1, 10, 3])),
        "row 3: label: got 10; expected: a class from 0 to 9",
    ),
    "class below zero": (lambda: replaced(GOOD, "label", pa.array([0, -1, 1, 3])), "row 2: label: got -1"),
    "class missing": (
        lambda: replaced(GOOD, "label", pa.array([0, None, 1, 3], pa.int64())),
        "label: is not a column of whole numbers",
    ),
    "class a text": (
        lambda: replaced(GOOD, "label", pa.array(list("0123"))),
        "label: is not a column of whole numbers",
    ),
    "no encoded images": (
        lambda: replaced(GOOD, "image", pa.array([1, 2, 3, 4])),
        "image: is a int64; expected: encoded images",
    ),
    "a path alone": (
        lambda: replaced(GOOD, "image", PATHS),
        r"row 1: image: has no bytes \(a path alone is not followed\)",
    ),
    "damaged": (lambda: replaced(GOOD, "image", BLOB), "row 1: image: cannot be decoded"),
    "sixteen bits": (
        lambda: replaced(GOOD, "image", DEEP),
        "row 1: image: has pixels of the kind I;16; expected: 8 bits",
    ),
    "another size": (lambda: replaced(GOOD, "image", LARGER), "row 1: image: is 30 x 28; expected: 28 x 28"),
}


@pytest.mark.parametrize(("make", "message"), BAD.values(), ids=BAD.keys())
def test_a_bad_file_is_one_line_that_names_it(make: Callable[[], pa.Table], message: str, tmp_path: Path) -> None:
    path = tmp_path / "train.parquet"
    pq.write_table(make(), path)
    with pytest.raises(UserError, match=message) as caught:
        load_images(data(source="mnist", train=str(path)))
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


def test_a_torn_file_and_a_missing_one_are_named(tmp_path: Path) -> None:
    path = write(tmp_path / "train.parquet", random_pixels(4, (1, 28, 28)), [0, 1, 2, 3])
    path.write_bytes(path.read_bytes()[:-20])
    (tmp_path / "empty").mkdir()
    for place, message in (
        (path, "cannot be read as parquet"),
        (tmp_path / "no", "no such file"),
        (tmp_path / "empty", "no .parquet"),
    ):
        with pytest.raises(UserError, match=f"{place}.*{message}"):
            load_images(data(source="mnist", train=str(place)))


def test_a_picture_that_would_fill_the_memory_is_refused_before_it_is_unpacked(tmp_path: Path) -> None:
    claims = bytearray(encoded(np.zeros((1, 1, 1), dtype=np.uint8)))
    claims[16:24] = struct.pack(">II", 60_000, 60_000)  # 3.6 thousand million pixels
    claims[29:33] = struct.pack(">I", zlib.crc32(claims[12:29]))
    images = pa.array([{"bytes": bytes(claims), "path": None}] * 2)
    pq.write_table(pa.table({"image": images, "label": pa.array([0, 1])}), tmp_path / "bomb.parquet")
    with pytest.raises(
        UserError, match=r"row 1: image: (is 60000 x 60000|cannot be decoded \(DecompressionBombError\))"
    ):
        load_images(data(source="files", train=str(tmp_path / "bomb.parquet")))
