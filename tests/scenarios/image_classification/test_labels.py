"""Labels: the three ways to make two of many classes, balance without a loss of reproducibility, and what cannot be."""

from pathlib import Path
from typing import Any

import pytest
import torch

from nip_ray.errors import UserError
from nip_ray.scenarios.image_classification.build import image_data
from nip_ray.scenarios.image_classification.images import ImageSet
from nip_ray.scenarios.image_classification.labels import class_labels, num_classes_of
from nip_ray.scenarios.image_classification.labels import labelled as labelled_of
from nip_ray.settings.image_classification import SOURCES, ImageDataSettings
from tests.scenarios.image_classification.files import random_images, random_pixels, write


def settings(**changes: Any) -> ImageDataSettings:
    return ImageDataSettings(**{"source": "files", **changes})


def labelled(images: ImageSet, given: ImageDataSettings, split: str) -> tuple[torch.Tensor, torch.Tensor]:
    return labelled_of(images, given, split, num_classes_of(given, images, images))


def uneven() -> ImageSet:
    """40 images: 24 of class 0, 6 of class 1, 4 of class 2, 6 of class 3."""
    images = random_images(40)
    return ImageSet(images.pixels_ICHW, torch.tensor(([0] * 12 + [1] * 3 + [2] * 2 + [3] * 3) * 2))


@pytest.mark.parametrize("name", ["digits", "svhn", "cifar100"])
def test_merge_puts_half_of_the_classes_against_the_other_half(name: str) -> None:
    count = SOURCES[name].num_classes
    label_K = class_labels(settings(source=name), count)
    place_K = torch.randperm(count, generator=torch.Generator().manual_seed(2 if name == "svhn" else 0))
    assert label_K.tolist() == [int(place >= count // 2) for place in place_K.tolist()]
    assert int(label_K.sum()) == count // 2
    assert not torch.equal(label_K, class_labels(settings(source=name, binarisation_seed=7), count))


@pytest.mark.parametrize(
    ("source", "chosen", "expected"), [("digits", None, (0, 1)), ("cifar10", None, (3, 5)), ("digits", (7, 2), (7, 2))]
)
def test_select_two_takes_the_first_class_as_0_and_the_second_as_1(
    source: str, chosen: tuple[int, int] | None, expected: tuple[int, int]
) -> None:
    label_K = class_labels(settings(source=source, binarisation="select_two", selected_classes=chosen), 10).tolist()
    assert [label_K.index(0), label_K.index(1)] == list(expected)
    assert label_K.count(-1) == 8
    images = random_images(40, num_classes=10)
    index_K, made_K = labelled(
        images, settings(source=source, binarisation="select_two", selected_classes=chosen), "train"
    )
    assert images.class_I[index_K].tolist() == [expected[y] for y in made_K.tolist()]


def test_random_labels_follow_from_the_seed_alone_and_differ_by_split() -> None:
    images = random_images(200)
    made = {
        (seed, split): labelled(images, settings(binarisation="random", binarisation_seed=seed, balanced=False), split)[
            1
        ]
        for seed in (0, 1)
        for split in ("train", "test")
    }
    again = labelled(images, settings(binarisation="random", binarisation_seed=0, balanced=False, seed=9), "train")[1]
    assert torch.equal(made[0, "train"], again)
    assert not torch.equal(made[0, "train"], made[1, "train"])
    assert not torch.equal(made[0, "train"], made[0, "test"])
    assert 70 < int(made[0, "train"].sum()) < 130


@pytest.mark.parametrize("how", ["merge", "select_two", "random"])
def test_balance_leaves_out_the_same_images_every_time_and_nothing_is_moved(how: str) -> None:
    images = uneven()
    plain_K, plain_label_K = labelled(images, settings(binarisation=how, balanced=False), "train")
    label_of = dict(zip(plain_K.tolist(), plain_label_K.tolist(), strict=True))
    index_K, label_K = labelled(images, settings(binarisation=how), "train")
    fewest = int(torch.bincount(plain_label_K, minlength=2).min())
    assert torch.bincount(label_K).tolist() == [fewest, fewest]
    assert index_K.tolist() == sorted(index_K.tolist())
    assert [label_of[i] for i in index_K.tolist()] == label_K.tolist()
    assert torch.equal(index_K, labelled(images, settings(binarisation=how), "train")[0])
    others = {tuple(labelled(images, settings(binarisation=how, seed=seed), "train")[0].tolist()) for seed in range(5)}
    assert len(others) > 1


def test_what_cannot_be_is_refused() -> None:
    images = uneven()
    cases = [
        (settings(num_train=1000), r"num_train: got 1000, but there are \d+ train images"),
        (
            settings(binarisation="select_two", selected_classes=(0, 4)),
            "selected_classes: got 4, but there are 4 classes, use 0 to 3",
        ),
        (
            settings(source="digits", binarisation="select_two", selected_classes=(8, 9)),
            "no train image has the label 0 under select_two",
        ),
    ]
    for given, message in cases:
        with pytest.raises(UserError, match=message):
            labelled(images, given, "train")


def test_held_out_images_cannot_change_the_labels_of_classes(tmp_path: Path) -> None:
    pixels = random_pixels(24, (1, 5, 5))
    train = write(tmp_path / "train.parquet", pixels, [i % 4 for i in range(24)])
    test = write(tmp_path / "test.parquet", pixels, [i % 5 for i in range(24)])
    with pytest.raises(
        UserError, match=r"scenario.data.test: has the class 4, but merge makes labels of .* 0 to 3; leave it out"
    ):
        image_data(settings(train=str(train), test=str(test)))
    assert len(image_data(settings(train=str(train), test=str(test), binarisation="select_two")).label_I) > 0


def test_both_splits_of_files_have_the_same_labels_though_one_lacks_a_class(tmp_path: Path) -> None:
    pixels = random_pixels(24, (1, 5, 5))
    train = write(tmp_path / "train.parquet", pixels, [i % 6 for i in range(24)])
    test = write(tmp_path / "test.parquet", pixels[:20], [i % 5 for i in range(20)])  # no class 5
    found = image_data(settings(train=str(train), test=str(test)))
    by_class = {(int(c), int(y)) for c, y in zip(found.images.class_I, found.label_I, strict=True)}
    assert len(by_class) == 6
    assert found.num_train == 24
