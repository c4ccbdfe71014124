"""Image classification: where the images come from, what a message is, and the networks of each agent."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from nip_ray.settings.heads import HeadSettings
from nip_ray.settings.image_data import SOURCES, ImageDataSettings, data_faults
from nip_ray.settings.options import FILE, FORBID_UNKNOWN, FREE, option


@dataclass(frozen=True)
class ImageAgentSettings(HeadSettings):
    """Networks of one agent in image classification; the defaults are the published library's."""

    kind: Literal["learned", "random"] = option("learned", "Learned networks, or a uniform random agent.")
    sight: Literal["whole", "coarse"] = option(
        "whole",
        "It sees the whole image (as published); or of every part, a latent pixel's, the mean alone, until another agent names that part.",
    )
    initial_num_channels: int = option(16, "Channels before the first group of blocks; every group doubles them.", ge=1)
    building_block_type: Literal["conv2d", "residual_basic"] = option("conv2d", "A block: one convolution, or a residual block of two.")
    num_blocks_per_group: int = option(2, "Blocks in each group.", ge=1)
    kernel_size: int = option(3, "Side of a convolution of the type conv2d (residual blocks have 3).", ge=1)
    pretrained_weights: str | None = option(
        None,
        "Weights of a pretrained timm model whose last feature map the agent sees too: a .safetensors file, a state dict, or a folder "
        "as timm writes it (extra `vision`).",
        meaning=FILE,
    )
    pretrained_architecture: str = option("resnet18", "The model's name in timm; a folder's config.json goes before it.")
    d_latent_pixel_selector: int = option(16, "Hidden width of the head that chooses a latent pixel.", ge=1)
    num_latent_pixel_selector_layers: int = option(2, "Layers of that head.", ge=1)
    legacy_value_initialisation: bool = option(
        False, "Leave the value head out of the orthogonal initialisation, as the published library did by mistake."
    )
    history_initialisation: Literal["independent", "shared"] = option(
        "independent",
        "At the start a latent pixel that was named looks different by round (independent, as published), or the same in all.",
    )


@dataclass(frozen=True)
class ImageClassificationSettings:
    """The task: to which of two groups of classes does an image belong?"""

    __pydantic_config__ = FORBID_UNKNOWN

    name: Literal["image_classification"] = option("image_classification", "The task.")
    data: ImageDataSettings = option(ImageDataSettings, "Where the images come from, and how their classes become labels.")
    agents: dict[str, ImageAgentSettings] = option(dict, "Agent -> its networks; `_default` serves the agents not named.")
    num_block_groups: int = option(
        1,
        "Groups of blocks in every body. Each halves the sides of the image, and what is left is the grid that messages point into.",
        ge=1,
    )
    shared_body: bool = option(True, "Policy and value of an agent share a body.")
    central_critic: bool = option(
        False, "The value sees the whole state, every channel and the label, in training alone (needs shared_body false)."
    )
    message_size: int = option(1, "Latent pixels named at once in each channel.", ge=1)
    linear_symbols: int = option(0, "Size of a second, plain message alphabet (0: none).", ge=0)
    normalize_observations: bool = option(
        True, "Scale message features by their statistics under random play, the same in training and test."
    )
    num_normalization_steps: int = option(1000, "Rounds of random play that these statistics are taken from.", ge=1)
    embedding_cache: str | None = option(
        None,
        "Folder for the feature maps of pretrained models, by content (none: nip_ray/embeddings in the user's cache folder).",
        meaning={**FILE, **FREE},
    )


def image_faults(settings: ImageClassificationSettings) -> Iterator[str]:
    """What cannot be, each beginning with its key below `scenario`; files are looked for, not into."""
    yield from (f"data.{fault}" for fault in data_faults(settings.data))
    size = SOURCES[settings.data.source].size
    if size is not None and min(size[1:]) >> settings.num_block_groups == 0:
        most = min(size[1:]).bit_length() - 1
        yield f"num_block_groups: got {settings.num_block_groups}, but nothing would be left of {size[1]} x {size[2]}, use at most {most}"
    if settings.central_critic and settings.shared_body:
        yield "central_critic: a value that sees more than the policy needs a body of its own, set shared_body to false"
    for name, agent in settings.agents.items():
        if agent.pretrained_weights is not None and not Path(agent.pretrained_weights).exists():
            yield f"agents.{name}.pretrained_weights: {agent.pretrained_weights}: no such file or folder, nothing is downloaded"
        if agent.pretrained_weights is not None and agent.sight == "coarse":
            yield f"agents.{name}.sight: coarse would see the whole image in pretrained_weights' feature maps, leave one of the two out"
