"""Bodies for images: convolutional and residual trunks that halve sides group by group, and maps brought to one size.

Decisions that matter here:
- a block is one convolution or a residual block of two; batch norms are `BatchNorm1d` over (N, C, pixels), which is the
  same function as `BatchNorm2d` and is supported by learners;
- convolutions keep the size and pooling halves it, rounding down, so that the size of the last map depends on the
  number of groups alone and all agents point into one grid.
Source: Hammond and Adam-Day's library, image classification; residual blocks after He et al., 2015.
"""

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nip_ray.networks.basic import ACTIVATIONS

BlockType = Literal["conv2d", "residual_basic"]


class PixelNorm(nn.BatchNorm1d):
    """Batch norm of maps (N, C, h, w), over copies and pixels."""

    def forward(self, input: Tensor) -> Tensor:
        """The same shape."""
        return super().forward(input.flatten(2)).view_as(input)


class ResidualBlock(nn.Module):
    """Two 3 x 3 convolutions with batch norms around ReLU, added to the input, which a 1 x 1 one widens if needed."""

    def __init__(self, num_in: int, num_out: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(num_in, num_out, 3, padding=1, bias=False)
        self.first_norm = PixelNorm(num_out)
        self.second = nn.Conv2d(num_out, num_out, 3, padding=1, bias=False)
        self.second_norm = PixelNorm(num_out)
        self.widen = (
            None if num_in == num_out else nn.Sequential(nn.Conv2d(num_in, num_out, 1, bias=False), PixelNorm(num_out))
        )

    def forward(self, x_NCHW: Tensor) -> Tensor:
        """(N, num_out, H, W)."""
        inner = torch.relu(self.first_norm(self.first(x_NCHW)))
        return torch.relu(self.second_norm(self.second(inner)) + (x_NCHW if self.widen is None else self.widen(x_NCHW)))


def trunk(
    num_in: int, initial: int, num_groups: int, blocks_per_group: int, kind: BlockType, activation: str
) -> nn.Sequential:
    """(N, num_in, H, W) to (N, initial * 2^groups, H / 2^groups, W / 2^groups), sides rounded down.

    A perceptron of two layers for every pixel, then groups of [block, activation] that end in a 2 x 2 max-pooling; the
    first block of a group doubles the channels.
    """
    layers: list[nn.Module] = [nn.Conv2d(num_in, num_in, 1), ACTIVATIONS[activation](), nn.Conv2d(num_in, initial, 1)]
    width = initial
    for _ in range(num_groups):
        for position in range(blocks_per_group):
            wider = 2 * width if position == 0 else width
            residual = kind == "residual_basic"
            layers.append(ResidualBlock(width, wider) if residual else nn.Conv2d(width, wider, 3, padding="same"))
            layers.append(ACTIVATIONS[activation]())
            width = wider
        layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers)


def latent_size(height: int, width: int, num_groups: int) -> tuple[int, int]:
    """(h, w) of the map after a trunk of `num_groups` groups."""
    return height >> num_groups, width >> num_groups


def scaled_to(map_NCHW: Tensor, height: int, width: int) -> Tensor:
    """A map resized: by means if it is larger, by repeating its nearest pixels if it is smaller.

    Raises ValueError for a map that is larger along one side and smaller along the other.
    """
    h, w = map_NCHW.shape[-2:]
    if (h, w) == (height, width):
        return map_NCHW
    if h >= height and w >= width:
        return F.adaptive_avg_pool2d(map_NCHW, (height, width))
    if h <= height and w <= width:
        return F.interpolate(map_NCHW, (height, width), mode="nearest")
    raise ValueError(f"a map of {h} x {w} pixels is neither larger nor smaller than {height} x {width}")


def part_means(map_NCHW: Tensor, height: int, width: int) -> Tensor:
    """(N, C, height, width): the mean of every part of a map; `scaled_to` maps parts back to the map's size."""
    h, w = map_NCHW.shape[-2:]
    if h % height == 0 and w % width == 0:
        return F.adaptive_avg_pool2d(map_NCHW, (height, width))
    # adaptive pooling's parts overlap here
    rows = torch.stack([part.mean(2) for part in map_NCHW.split(_lengths(h, height), 2)], 2)
    return torch.stack([part.mean(3) for part in rows.split(_lengths(w, width), 3)], 3)


def _lengths(side: int, parts: int) -> list[int]:
    """The number of pixels of each part along a side."""
    part_L = scaled_to(torch.arange(parts, dtype=torch.float32).view(1, 1, 1, -1), 1, side)
    return torch.bincount(part_L.flatten().long()).tolist()
