"""Image classification as a scenario: a message names one latent pixel, and the label is the image's class or group of
classes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from nip_ray.networks.images import latent_size, part_means, scaled_to
from nip_ray.play.rollout import Dialogue
from nip_ray.protocols import Protocol
from nip_ray.scenarios.channelwise import assembled
from nip_ray.scenarios.dialogue_agent import RandomAgent
from nip_ray.scenarios.image_classification.images import ImageSet
from nip_ray.scenarios.image_classification.network import ImageAgent, ImageShape
from nip_ray.scenarios.seat import NamingScenario, Seat, symbol_counts
from nip_ray.seeding import seeded
from nip_ray.settings.image_classification import ImageAgentSettings


@dataclass(frozen=True)
class LabelledImages:
    """The data. images: training images first, then held-out ones. label_I: (I,) int64. num_train: number of training
    images. embeddings: agent -> (I, E, h, w) float16 feature maps, for the agents that see any."""

    images: ImageSet
    label_I: Tensor
    num_train: int
    embeddings: Mapping[str, Tensor] = field(default_factory=dict)


class ImageClassification(NamingScenario):
    """Images under `protocol`. Ids number the training images first, then the held-out ones.

    num_groups: how often the sides of an image are halved to get the grid that messages point into, in rows of latent
    pixels.
    """

    name = "image_classification"
    tables = ("pixels_ICHW", "label_I", "class_I")  # feature maps may be larger than a device, and are not moved

    def __init__(
        self,
        protocol: Protocol,
        data: LabelledImages,
        agents: Mapping[str, ImageAgentSettings],
        *,
        num_groups: int = 1,
        **options: Any,
    ) -> None:
        """options: see `NamingScenario`."""
        super().__init__(protocol, agents, **options)
        self.num_train = data.num_train
        self.pixels_ICHW, self.levels = data.images.pixels_ICHW, data.images.levels
        self.label_I, self.class_I = data.label_I, data.images.class_I
        self.embeddings = dict(data.embeddings)
        channels, height, width = self.pixels_ICHW.shape[1:]
        self.grid = latent_size(height, width, num_groups)
        self.shape = ImageShape(channels, height, width, num_groups, self.grid)
        self.num_symbols = self.grid[0] * self.grid[1]

    def shown(self, agent: str, id_N: Tensor, said: Dialogue) -> dict[str, Tensor]:
        """Image (N, C, H, W) float from 0 to 1, in which an agent with coarse sight sees means, and in full the parts
        that others have named in the channels that it reads, or (N, K + 1, C, H, W) for each of these separately and
        for none; embedding (N, E, h', w') for an agent with a pretrained model; state_image, the whole image, for a
        central critic whose agent does not see it."""
        whole = self.pixels_ICHW[id_N].float() / self.levels
        coarse = self.agents[agent].sight == "coarse"
        reads = self.seats[agent].reads
        if not coarse:
            found = {"image": whole}
        elif self.agents[agent].channels == "apart":
            found = {
                "image": torch.stack(
                    [self._in_part(whole, agent, part, said) for part in (*((c,) for c in reads), ())], 1
                )
            }
        else:
            found = {"image": self._in_part(whole, agent, reads, said)}
        if agent in self.embeddings:
            maps = self.embeddings[agent]
            found["embedding"] = maps[id_N.to(maps.device)].to(id_N.device).float()
        return {**found, "state_image": whole} if coarse and self.central_critic else found

    def build_agent(self, agent: str, seed: int) -> nn.Module:
        """The networks of `agent`, initialised from `seed` without touching the global generator."""
        settings, at = self.agents[agent], self.seats[agent]
        with seeded(seed):
            if settings.kind == "random":
                return RandomAgent(at, self.num_symbols)
            maps = self.embeddings.get(agent)
            shape = self.shape if maps is None else replace(self.shape, embedding_channels=maps.shape[1])

            def make(seat: Seat, critic_seat: Seat | None) -> ImageAgent:
                return ImageAgent(settings, seat, shape, self.shared_body, critic_seat)

            return assembled(self, agent, make)

    def group_I(self) -> Mapping[str, Tensor]:
        """The class of each image."""
        return {"class": self.class_I}

    def occurring(self) -> Tensor:
        """Held-out images that equal a training image, pixel by pixel."""
        rows = [pixels.tobytes() for pixels in self.pixels_ICHW.cpu().numpy()]
        trained = set(rows[: self.num_train])
        return torch.tensor([row in trained for row in rows[self.num_train :]], dtype=torch.bool)

    def instance_content(self, id_N: Tensor) -> dict[str, Tensor]:
        """Instances independent of agents: pixels (N, C, H, W) from 0 to 1, class and label (N,)."""
        pixels_NCHW = self.pixels_ICHW[id_N].float() / self.levels
        return {"pixels": pixels_NCHW, "class": self.class_I[id_N], "label": self.label_I[id_N]}

    def instance_picture(self, id: int) -> dict[str, Any]:
        """The image `id` for drawing, in plain JSON values:

        {"kind": "image", "pixels": (H, W, C) nested lists from 0 to 1, "grid": [h, w], "class": number, "label":
        number, "coarse": names of agents with coarse sight}. A main symbol s of a message is the latent pixel in row s
        // w and column s % w of the grid, which covers the image.
        """
        pixels_HWC = self.pixels_ICHW[id].permute(1, 2, 0).double().cpu() / self.levels
        return {
            "kind": "image",
            "pixels": [[[round(value, 3) for value in pixel] for pixel in row] for row in pixels_HWC.tolist()],
            "grid": list(self.grid),
            "class": int(self.class_I[id]),
            "label": int(self.label_I[id]),
            "coarse": [agent for agent in self.protocol.agents if self.agents[agent].sight == "coarse"],
        }

    def _in_part(self, whole_NCHW: Tensor, agent: str, reads: Sequence[int], said: Dialogue) -> Tensor:
        """The images with means for all parts but those that others than `agent` named in the channels `reads`."""
        others = [index for index, other in enumerate(self.protocol.agents) if other != agent]
        named_NX = said.main[:, :, others][:, :, :, list(reads)].flatten(1)
        shown = torch.zeros(len(named_NX), self.num_symbols + 1, device=named_NX.device)
        shown.scatter_(1, torch.where(named_NX < 0, self.num_symbols, named_NX), 1.0)
        size = self.shape.height, self.shape.width
        shown_N1HW = scaled_to(shown[:, :-1].unflatten(1, (1, *self.grid)), *size)
        return torch.where(shown_N1HW > 0, whole_NCHW, scaled_to(part_means(whole_NCHW, *self.grid), *size))

    def named(self, at: Seat, said: Dialogue, round_N: Tensor) -> tuple[Tensor, Tensor]:
        """(N, F, h, w) by round, channel and position, and (N, L, h, w) of the latest ones."""
        named_NFS = symbol_counts(said.main, at.reads, self.num_symbols)
        by_round = named_NFS.view(len(round_N), at.rounds, at.latest_features, *self.grid)
        return named_NFS.unflatten(-1, self.grid), self.latest(at, by_round, round_N)
