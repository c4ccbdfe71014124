"""Labels of images: the images that are used, and their labels by class.

Decisions that matter here:
- nothing is shuffled: images keep the order of their source, and those left out for balance, or for a smaller set,
  depend on the seed, so a set of one size is the same everywhere;
- under `random` the labels of training and held-out images are independent draws.
"""

import torch
from torch import Tensor

from nip_ray.errors import UserError
from nip_ray.scenarios.image_classification.images import ImageSet
from nip_ray.seeding import generator, stable_seed
from nip_ray.settings.image_classification import SOURCES, ImageDataSettings, num_labels


def labelled(images: ImageSet, settings: ImageDataSettings, split: str, num_classes: int) -> tuple[Tensor, Tensor]:
    """(K,) int64 increasing indices of the images in use, and their labels (K,) int64, for the split "train" or "test".

    num_classes: of both splits together; see `num_classes_of`.

    Raises UserError if a label has no image, a class does not exist, or there are fewer images than requested.
    """
    label_I = _labels(images, settings, split, num_classes)
    index_K = (label_I >= 0).nonzero().flatten()
    count = num_labels(settings, num_classes) or 2
    for label in range(count):
        if not bool((label_I == label).any()):
            raise UserError(
                f"scenario.data: no {split} image has the label {label} under {settings.binarisation}, use other"
                " classes or data"
            )
    wanted = settings.num_train if split == "train" else settings.num_test
    if settings.balanced:
        by_label = [index_K[label_I[index_K] == label] for label in range(count)]
        fewest = min(len(members) for members in by_label)
        each = fewest if wanted is None else min(fewest, wanted // count)
        kept = [_some(members, each, settings.seed, split, str(label)) for label, members in enumerate(by_label)]
        index_K = torch.cat(kept).sort().values
    elif wanted is not None:
        index_K = _some(index_K, wanted, settings.seed, split, "all")
    if wanted is not None and len(index_K) < wanted - (wanted % count if settings.balanced else 0):
        raise UserError(
            f"scenario.data.num_{split}: got {wanted}, but there are {len(index_K)} {split} images to choose from,"
            " lower it"
        )
    return index_K, label_I[index_K]


def num_classes_of(settings: ImageDataSettings, train: ImageSet, test: ImageSet) -> int:
    """K: of the source, or the number of classes in all the images together.

    Raises UserError under `merge` for held-out images of a class that training images lack: other held-out images would
    change the labels of the same classes.
    """
    known = SOURCES[settings.source].num_classes
    if known is not None:
        return known
    most, beyond = int(train.class_I.max()), int(test.class_I.max())
    if settings.binarisation == "merge" and beyond > most:
        raise UserError(
            f"scenario.data.test: has the class {beyond}, but merge makes labels of the training images' classes, 0 to"
            f" {most}; leave it out"
        )
    return max(most, beyond) + 1


def class_labels(settings: ImageDataSettings, num_classes: int) -> Tensor:
    """(K,) int64: the label of each class, -1 for classes that are not used. Not for `random`, where classes have none.

    Raises UserError for classes that do not exist.
    """
    label_K = torch.full((num_classes,), -1)
    if settings.binarisation == "merge":
        made = torch.Generator()
        made.manual_seed(binarisation_seed(settings))  # not hashed: as published
        place_K = torch.randperm(num_classes, generator=made)
        return (place_K >= num_classes // 2).long()
    own = settings.binarisation == "classes"
    chosen = settings.selected_classes or (tuple(range(num_classes)) if own else SOURCES[settings.source].pair)
    if max(chosen) >= num_classes or min(chosen) < 0:
        wrong = max(chosen) if max(chosen) >= num_classes else min(chosen)
        raise UserError(
            f"scenario.data.selected_classes: got {wrong}, but there are {num_classes} classes, use 0 to"
            f" {num_classes - 1}"
        )
    label_K[list(chosen)] = torch.arange(len(chosen))
    return label_K


def binarisation_seed(settings: ImageDataSettings) -> int:
    """The configured seed, else the source's own."""
    return SOURCES[settings.source].merge_seed if settings.binarisation_seed is None else settings.binarisation_seed


def _labels(images: ImageSet, settings: ImageDataSettings, split: str, num_classes: int) -> Tensor:
    """(I,) int64, -1 for images that are not used."""
    if settings.binarisation == "random":
        random = generator(binarisation_seed(settings), "random labels", split)
        return torch.randint(2, (len(images),), generator=random)
    return class_labels(settings, num_classes)[images.class_I]


def _some(index_K: Tensor, count: int, seed: int, split: str, which: str) -> Tensor:
    """The first `count` of a seeded permutation, so that a smaller set is part of a larger one; in increasing order."""
    order_K = torch.randperm(len(index_K), generator=generator(stable_seed(seed, "images kept"), split, which))
    return index_K[order_K[:count]].sort().values
