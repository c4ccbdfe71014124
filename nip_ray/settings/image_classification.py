"""Image classification: where the images come from, what a message is, and the networks of each agent."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from nip_ray.settings.heads import HeadSettings
from nip_ray.settings.options import FILE, FORBID_UNKNOWN, FREE, option


@dataclass(frozen=True)
class ImageSource:
    """A source of images. repository: on the hub, with its `subset` (None: embedded, or files only). size: (channels,
    height, width); size and num_classes are None if the files determine them. image, label: its columns. pair: the
    classes of `select_two`. merge_seed: the seed of `merge`. Both, and the hub's split, are the published library's."""

    repository: str | None
    size: tuple[int, int, int] | None
    num_classes: int | None
    image: str = "image"
    label: str = "label"
    subset: str | None = None
    pair: tuple[int, int] = (0, 1)
    merge_seed: int = 0


SOURCES: dict[str, ImageSource] = {
    "digits": ImageSource(None, (1, 8, 8), 10),
    "mnist": ImageSource("ylecun/mnist", (1, 28, 28), 10),
    "fashion_mnist": ImageSource("zalando-datasets/fashion_mnist", (1, 28, 28), 10),
    "kmnist": ImageSource("tanganke/kmnist", (1, 28, 28), 10),
    "svhn": ImageSource("ufldl-stanford/svhn", (3, 32, 32), 10, subset="cropped_digits", merge_seed=2),
    "cifar10": ImageSource("uoft-cs/cifar10", (3, 32, 32), 10, image="img", pair=(3, 5)),
    "cifar100": ImageSource("uoft-cs/cifar100", (3, 32, 32), 100, image="img", label="fine_label"),
    "files": ImageSource(None, None, None),
}
"""By name."""


@dataclass(frozen=True)
class ImageDataSettings:
    """Images with classes, made into labels. Splits, labels and what balancing leaves out are functions of the seeds
    here alone."""

    __pydantic_config__ = FORBID_UNKNOWN

    source: Literal["digits", "mnist", "fashion_mnist", "kmnist", "svhn", "cifar10", "cifar100", "files"] = option(
        "digits",
        "digits (scikit-learn), files (your parquet files), or the Hugging Face hub (extra `hf`).",
    )
    train: str | None = option(
        None, "Parquet file, or folder of them, with the training images (none: from the source).", meaning=FILE
    )
    test: str | None = option(
        None,
        "The same of held-out images (none: the source's own, or a share of `train`).",
        meaning=FILE,
    )
    num_train: int | None = option(None, "Training images to keep, balanced if `balanced` (none: all).", ge=2)
    num_test: int | None = option(None, "Held-out images to keep, in the same way.", ge=2)
    test_share: float = option(0.2, "Held-out share where a source has no held-out images.", gt=0, lt=1)
    seed: int = option(0, "Seed of splits and of which images are left out.", ge=0)
    binarisation: Literal["merge", "select_two", "random", "classes"] = option(
        "merge",
        "Labels: halves of the classes, one class against another, random, or one per class (protocol.verdicts).",
    )
    selected_classes: tuple[int, ...] | None = option(
        None,
        "Classes of select_two, label 0 first, or of classes, in the order of labels.",
    )
    binarisation_seed: int | None = option(None, "Seed of merge and random (none: 2 for svhn, otherwise 0).", ge=0)
    balanced: bool = option(True, "Drop images of the more frequent label until both are equally frequent.")


def data_faults(data: ImageDataSettings) -> Iterator[str]:
    """Faults of the data settings, each beginning with its key; files are checked for existence only."""
    if data.source == "files" and data.train is None:
        yield "train: missing, the source files needs a parquet file or a folder of them"
    for split in ("train", "test"):
        path = getattr(data, split)
        if path is not None and not Path(path).exists():
            yield f"{split}: {path}: no such file or folder, name a parquet file of images or a folder of them"
    both = data.train is not None and data.test is not None
    if both and Path(str(data.train)).is_file() and Path(str(data.train)).resolve() == Path(str(data.test)).resolve():
        yield f"test: {data.test}: this is the training file, hold other images out or leave this out"
    if data.test_share != ImageDataSettings.test_share:
        if data.test is not None:
            yield "test_share: counts where no held-out images are named only (test is), leave one of the two out"
        elif data.train is None and SOURCES[data.source].repository is not None:
            yield (
                f"test_share: counts where a source has no held-out images of its own only ({data.source} has), leave"
                " it out"
            )
    if data.binarisation in ("select_two", "classes") and data.binarisation_seed is not None:
        yield (
            f"binarisation_seed: counts with merge and random only (binarisation is {data.binarisation}), leave it out"
        )
    yield from _class_faults(data)


def num_labels(data: ImageDataSettings, num_classes: int | None = None) -> int | None:
    """The number of labels; None if only the files determine it. num_classes: the source's, if known."""
    if data.binarisation != "classes":
        return 2
    known = num_classes or SOURCES[data.source].num_classes
    return known if data.selected_classes is None else len(data.selected_classes)


def _class_faults(data: ImageDataSettings) -> Iterator[str]:
    chosen, count = data.selected_classes, SOURCES[data.source].num_classes
    if chosen is None:
        return
    if data.binarisation not in ("select_two", "classes"):
        yield (
            f"selected_classes: counts with select_two and classes only (binarisation is {data.binarisation}), leave"
            " it out"
        )
    if data.binarisation == "classes" and (len(chosen) < 2 or len(set(chosen)) < len(chosen)):
        yield (
            f"selected_classes: got {list(chosen)}, expected two classes or more, each once, in the order of their"
            " labels"
        )
    elif data.binarisation != "classes" and (len(chosen) != 2 or chosen[0] == chosen[1]):
        yield f"selected_classes: got {list(chosen)}, expected two classes, that of label 0 first"
    wrong = [number for number in chosen if number < 0 or (count is not None and number >= count)]
    if wrong:
        known = "numbers from 0 on" if count is None else f"0 to {count - 1}"
        yield f"selected_classes: got {wrong[0]}, but the classes of {data.source} are {known}"


@dataclass(frozen=True)
class ImageAgentSettings(HeadSettings):
    """Networks of one agent in image classification; the defaults are the published library's."""

    kind: Literal["learned", "random"] = option("learned", "Learned networks, or a uniform random agent.")
    sight: Literal["whole", "coarse"] = option(
        "whole",
        "See the whole image, or only means of latent pixels until another agent names them.",
    )
    initial_num_channels: int = option(16, "Channels before the first group of blocks; every group doubles them.", ge=1)
    building_block_type: Literal["conv2d", "residual_basic"] = option(
        "conv2d", "A block: one 3 x 3 convolution, or a residual block of two."
    )
    num_blocks_per_group: int = option(2, "Blocks in each group.", ge=1)
    pretrained_weights: str | None = option(
        None,
        "Weights of a pretrained timm model: .safetensors, state dict or timm folder (extra `vision`).",
        meaning=FILE,
    )
    pretrained_architecture: str = option(
        "resnet18", "The model's name in timm; a folder's config.json goes before it."
    )
    d_latent_pixel_selector: int = option(16, "Hidden width of the head that chooses a latent pixel.", ge=1)
    legacy_value_initialisation: bool = option(
        False, "Leave the value head out of the orthogonal initialisation, as the published library does."
    )
    history_initialisation: Literal["independent", "shared"] = option(
        "independent",
        "First look of named latent pixels: different by round (independent, as published), or shared.",
    )


@dataclass(frozen=True)
class ImageClassificationSettings:
    """The task: to which of two groups of classes does an image belong? Or with labels of their own: to which class?"""

    __pydantic_config__ = FORBID_UNKNOWN

    name: Literal["image_classification"] = option("image_classification", "The task.")
    data: ImageDataSettings = option(ImageDataSettings, "Source of the images, and the labels of their classes.")
    agents: dict[str, ImageAgentSettings] = option(
        dict, "Agent -> its networks; `_default` serves the agents not named."
    )
    num_block_groups: int = option(
        1,
        "Groups of blocks; each halves the image, and messages name pixels of the rest.",
        ge=1,
    )
    shared_body: bool = option(True, "Policy and value of an agent share a body.")
    central_critic: bool = option(
        False,
        "Critics see the whole state and label in training (needs shared_body false).",
    )
    message_size: int = option(1, "Latent pixels named at once in each channel.", ge=1)
    linear_symbols: int = option(0, "Size of a second, plain message alphabet (0: none).", ge=0)
    normalize_observations: bool = option(True, "Scale message features by their statistics under random play.")
    num_normalization_steps: int = option(1000, "Rounds of random play that these statistics are taken from.", ge=1)
    embedding_cache: str | None = option(
        None,
        "Folder for feature maps of pretrained models (none: nip_ray/embeddings in the user's cache).",
        meaning={**FILE, **FREE},
    )

    def faults(self) -> Iterator[str]:
        """Classes, grids and weights that cannot be; files are looked for, not into."""
        yield from (f"data.{fault}" for fault in data_faults(self.data))
        size = SOURCES[self.data.source].size
        if size is not None and min(size[1:]) >> self.num_block_groups == 0:
            most = min(size[1:]).bit_length() - 1
            yield (
                f"num_block_groups: got {self.num_block_groups}, but nothing would be left of {size[1]} x {size[2]},"
                f" use at most {most}"
            )
        if self.central_critic and self.shared_body:
            yield (
                "central_critic: a value that sees more than the policy needs a body of its own, set shared_body to"
                " false"
            )
        for name, agent in self.agents.items():
            if agent.pretrained_weights is not None and not Path(agent.pretrained_weights).exists():
                yield (
                    f"agents.{name}.pretrained_weights: {agent.pretrained_weights}: no such file or folder, nothing is"
                    " downloaded"
                )
            if agent.pretrained_weights is not None and agent.sight == "coarse":
                yield (
                    f"agents.{name}.sight: coarse would see the whole image in pretrained_weights' feature maps, leave"
                    " one of the two out"
                )
