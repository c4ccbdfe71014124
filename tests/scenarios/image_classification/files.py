"""Small image files of the hub's layouts, and small scenarios, that several tests need."""

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from PIL import Image

from nip_ray.protocols import Protocol, build
from nip_ray.scenarios.image_classification.images import ImageSet
from nip_ray.scenarios.image_classification.scenario import ImageClassification, LabelledImages
from nip_ray.settings.image_classification import ImageAgentSettings

TINY: dict[str, Any] = dict(
    initial_num_channels=2,
    num_blocks_per_group=1,
    d_representation=5,
    d_latent_pixel_selector=4,
    d_decider=4,
    d_linear_message_selector=4,
    d_value=4,
)
"""Settings of an image agent of a few hundred parameters."""


def random_pixels(count: int, size: tuple[int, int, int], seed: int = 0) -> np.ndarray:
    """(I, H, W, C) uint8."""
    channels, height, width = size
    return np.random.default_rng(seed).integers(0, 256, (count, height, width, channels), dtype=np.uint8)


def encoded(pixels: np.ndarray, kind: str = "PNG") -> bytes:
    """One image (H, W, C) as the bytes of a file."""
    buffer = io.BytesIO()
    Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels).save(buffer, kind)
    return buffer.getvalue()


def table(
    pixels: np.ndarray, classes: Sequence[int], image: str = "image", label: str = "label", **more: Sequence[Any]
) -> pa.Table:
    """An arrow table of the hub's layout."""
    images = [{"bytes": encoded(one), "path": f"{i}.png"} for i, one in enumerate(pixels)]
    return pa.table({image: pa.array(images), label: pa.array(list(classes), pa.int64()), **more})


def write(path: Path, pixels: np.ndarray, classes: Sequence[int], **columns: Any) -> Path:
    """The same as a parquet file at `path`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table(pixels, classes, **columns), path)
    return path


def random_images(
    count: int = 12, size: tuple[int, int, int] = (1, 6, 7), num_classes: int = 4, seed: int = 0
) -> ImageSet:
    """Noise with classes 0, 1, 2 ... in turn."""
    pixels = torch.from_numpy(random_pixels(count, size, seed)).permute(0, 3, 1, 2).contiguous()
    return ImageSet(pixels, torch.arange(count) % num_classes)


def image_scenario(
    protocol: Protocol | str,
    images: ImageSet | None = None,
    agents: Mapping[str, Mapping[str, Any]] | None = None,
    **options: Any,
) -> ImageClassification:
    """A scenario on noise; the last quarter is held out. agents: agent -> changes of the `TINY` settings."""
    protocol = build(protocol) if isinstance(protocol, str) else protocol
    images = random_images() if images is None else images
    made = {agent: ImageAgentSettings(**{**TINY, **(agents or {}).get(agent, {})}) for agent in protocol.agents}
    data = LabelledImages(images, (images.class_I >= 2).long(), len(images) * 3 // 4)
    return ImageClassification(protocol, data, made, **options)
