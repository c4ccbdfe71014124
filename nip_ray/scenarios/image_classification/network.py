"""An agent's networks in image classification: bodies (trunk over image and messages) and heads; and the random agent.

Decisions that matter here:
- messages enter twice, as published: the whole history as maps beside the image, spread to its size, and the latest
  messages as maps beside the latent ones;
- only the inputs of heads are computed: a value needs the image's representation, a prover's policy those of the latent
  pixels.
Axes: N turns (rows), C colours, H x W pixels, h x w latent pixels, F history features, L latest-message features, E
embedding channels. Source of the architecture: Hammond and Adam-Day's library, image classification.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nip_ray.learning.groups import ParameterGroup
from nip_ray.learning.policy import Policy
from nip_ray.networks.basic import initialise
from nip_ray.networks.images import scaled_to, trunk
from nip_ray.scenarios.dialogue_agent import DialogueAgent, Observation, share_rounds
from nip_ray.scenarios.seat import Seat
from nip_ray.settings.image_classification import ImageAgentSettings


@dataclass(frozen=True)
class ImageShape:
    """Sizes of the images, the grid messages point into, and an agent's feature maps (embedding_channels 0: none)."""

    channels: int
    height: int
    width: int
    num_groups: int
    grid: tuple[int, int]
    embedding_channels: int = 0


class ImageBody(nn.Module):
    """From an image and messages to representations of the image and of its latent pixels."""

    def __init__(self, settings: ImageAgentSettings, seat: Seat, shape: ImageShape) -> None:
        super().__init__()
        self.seat, self.shape = seat, shape
        num_in = seat.history_features + seat.told + shape.channels + shape.embedding_channels
        self.trunk = trunk(
            num_in,
            settings.initial_num_channels,
            shape.num_groups,
            settings.num_blocks_per_group,
            settings.building_block_type,
            settings.activation,
        )
        latent = settings.initial_num_channels * 2**shape.num_groups + seat.latest_features
        self.image_output = nn.Linear(latent + seat.history_features * seat.linear_symbols, settings.d_representation)
        self.pixel_output = nn.Linear(latent, settings.d_representation)
        initialise(self, settings.use_orthogonal_initialisation)
        if settings.history_initialisation == "shared":
            first = self.trunk[0]
            assert isinstance(first, nn.Conv2d)
            share_rounds(first.weight[:, : seat.history_features, 0, 0], seat.rounds)

    def latent(
        self, image_NCHW: Tensor, history_NFhw: Tensor, latest_NLhw: Tensor, embedding_NEhw: Tensor | None
    ) -> Tensor:
        """(N, D, h, w): the trunk's map, then the latest messages. image_NCHW: in [0, 1]; the trunk sees [-1, 1]."""
        size = self.shape.height, self.shape.width
        parts = [F.interpolate(history_NFhw, size, mode="nearest"), image_NCHW * 2 - 1]
        if embedding_NEhw is not None:
            parts.append(scaled_to(embedding_NEhw, *size))
        return torch.cat([self.trunk(torch.cat(parts, 1)), latest_NLhw], 1)

    def of_image(self, latent_NDhw: Tensor, linear_NX: Tensor | None) -> Tensor:
        """(N, R): the image's representation, from the mean over its latent pixels and the linear messages."""
        mean = latent_NDhw.mean((2, 3))
        return self.image_output(mean if linear_NX is None else torch.cat([mean, linear_NX], 1))

    def of_pixels(self, latent_NDhw: Tensor) -> Tensor:
        """(N, h * w, R): the latent pixels' representations."""
        return self.pixel_output(latent_NDhw.flatten(2).transpose(1, 2))


class ImageAgent(DialogueAgent):
    """Policy and value of one agent, with separate bodies or a shared one."""

    history_axis = 1

    def __init__(
        self,
        settings: ImageAgentSettings,
        seat: Seat,
        shape: ImageShape,
        shared_body: bool,
        critic_seat: Seat | None = None,
    ) -> None:
        """See `DialogueAgent`."""
        super().__init__(settings, seat, critic_seat)
        self.settings = settings
        self.policy_body = ImageBody(settings, seat, shape)
        self.value_body = None if shared_body else ImageBody(settings, critic_seat or seat, shape)
        self.pixel_selector = self.make_selector(settings.d_latent_pixel_selector)
        self.make_heads(settings.d_representation, self.pixel_selector, not settings.legacy_value_initialisation)

    def body(self) -> nn.Module:
        """The body that the policy reads; with a shared body the value reads it too."""
        return self.policy_body

    def forward(
        self, obs: Observation, want_policy: bool = True, want_value: bool = True
    ) -> tuple[Policy | None, Tensor | None]:
        """The action distribution and the value (N,) of N turns, each only if requested. `obs`: see
        `ImageClassification.observe`."""
        policy = value = None
        image_NR = None
        if want_policy:
            latent, linear = self._latent(self.policy_body, obs)
            if self.reads_whole or (want_value and self.value_body is None):
                image_NR = self.policy_body.of_image(latent, linear)
            message = self.pixel_selector(self.policy_body.of_pixels(latent)).transpose(1, 2)
            policy = self.policy_of(message, image_NR, obs)
        if want_value:
            if self.value_body is not None or image_NR is None:
                body = self.value_body or self.policy_body
                image_NR = body.of_image(*self._latent(body, obs, "state_" if self.apart else ""))
            value = self.value_of(image_NR, obs)
        return policy, value

    def groups(self) -> list[ParameterGroup]:
        """Parameter groups with their learning-rate factors; a shared body belongs to the actor's."""
        agent, body = self.settings.agent_lr_factor, self.settings.body_lr_factor
        made = [ParameterGroup("actor", "body", list(self.policy_body.parameters()), agent.actor * body.actor)]
        if self.value_body is not None:
            made.append(
                ParameterGroup("critic", "body", list(self.value_body.parameters()), agent.critic * body.critic)
            )
        return made + self.head_groups(self.pixel_selector)

    def _latent(self, body: ImageBody, obs: Observation, prefix: str = "") -> tuple[Tensor, Tensor | None]:
        """The output of `body` for the image and normalised messages, and the normalised linear ones."""
        history, latest, linear = self.messages(obs, prefix)
        image = obs.get("state_image", obs["image"]) if body is self.value_body else obs["image"]
        return body.latent(image, history, latest, obs.get("embedding")), linear
