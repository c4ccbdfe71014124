"""Splits: in no layout of a folder does a held-out image get among the training images."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from nip_ray.errors import UserError
from nip_ray.scenarios.image_classification.images import files_of, load_images
from nip_ray.settings.image_classification import ImageDataSettings
from tests.scenarios.image_classification.files import random_pixels, write

SIDE = (1, 5, 5)


def folder(place: Path, files: Mapping[str, int]) -> Path:
    """Parquet files, by name, of so many images, no two of which are equal."""
    pixels, start = random_pixels(sum(files.values()), SIDE), 0
    for name, count in files.items():
        write(place / f"{name}.parquet", pixels[start : start + count], [i % 4 for i in range(count)])
        start += count
    return place


def sizes(train: Path, test: Path | None = None) -> tuple[int, int, int]:
    """How many images are for training, how many are held out, and how many are both."""
    settings = ImageDataSettings(source="files", train=str(train), test=None if test is None else str(test))
    loaded = [{image.numpy().tobytes() for image in part.pixels_ICHW} for part in load_images(settings)]
    return len(loaded[0]), len(loaded[1]), len(loaded[0] & loaded[1])


@pytest.mark.parametrize(
    "names",
    [
        ("train-00000-of-00001", "test-00000-of-00001"),
        ("data/train-00000-of-00001", "data/test-00000-of-00001"),
        ("mnist/train/0000", "mnist/test/0000"),
        ("Train-0", "Test-0"),
        ("my_training", "my_testing"),
        ("TEST/train", "TRAIN/test"),
    ],
)
def test_a_folder_named_as_both_gives_each_its_own_files(names: tuple[str, str], tmp_path: Path) -> None:
    place = folder(tmp_path, {names[0]: 100, names[1]: 40, "validation": 7, "extra-0": 5})
    assert sizes(place, place) == (100, 40, 0)


def test_a_folder_named_as_training_images_alone_holds_its_test_files_out(tmp_path: Path) -> None:
    assert sizes(folder(tmp_path, {"train-0": 100, "test-0": 40})) == (100, 40, 0)
    assert sizes(folder(tmp_path / "share", {"train-0": 100})) == (80, 20, 0)
    assert sizes(folder(tmp_path / "plain", {"a": 60, "b": 40})) == (80, 20, 0)


def test_a_folder_without_files_of_a_split_is_refused(tmp_path: Path) -> None:
    train = folder(tmp_path / "train only", {"train-0": 60, "train-1": 40})
    with pytest.raises(UserError, match=r"train only: has no test files \(but train-0.parquet\)"):
        sizes(train, train)
    some = folder(tmp_path / "half", {"part0": 100, "test-0": 40})
    with pytest.raises(UserError, match=r"half: has no train files \(but test-0.parquet\)") as caught:
        sizes(some, some)
    assert "\n" not in str(caught.value)
    assert sizes(some / "part0.parquet", some) == (100, 40, 0)


@pytest.mark.parametrize("name", ["images", "train-0", "test-0"])
def test_a_file_is_not_held_out_beside_itself(name: str, tmp_path: Path) -> None:
    place = folder(tmp_path, {name: 100})
    with pytest.raises(UserError, match=r"is a training file too, hold other images out|has no test files"):
        sizes(place / f"{name}.parquet", place)


def test_a_file_under_two_names_is_one_file(tmp_path: Path) -> None:
    place = folder(tmp_path, {"a": 20})
    (tmp_path / "held out").mkdir()
    (tmp_path / "held out" / "b.parquet").symlink_to(place / "a.parquet")
    with pytest.raises(UserError, match=r"scenario.data.test: .*a.parquet is a training file too"):
        sizes(place / "a.parquet", place / "held out")


def test_of_a_downloaded_repository_only_the_subset_is_read(tmp_path: Path) -> None:
    names = ("full_numbers/train-0", "cropped_digits/train-0", "cropped_digits/test-0", "cropped_digits/extra-0")
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / f"{name}.parquet").write_bytes(b"")
    for test in (None, str(tmp_path)):
        train, held_out = files_of(ImageDataSettings(source="svhn", train=str(tmp_path), test=test))
        assert [str(file.relative_to(tmp_path)) for file in (*train, *held_out)] == [
            f"{name}.parquet" for name in names[1:3]
        ]
