"""An agent's networks in image classification: bodies (a trunk over image and messages) and heads; and the agent that chooses at random.

Decisions that matter here:
- what was said enters twice, as published: the whole history as maps beside the image, spread to its size, and the latest messages as
  maps beside the latent ones;
- only what a head reads is computed: a value needs the image's representation, a prover's policy those of the latent pixels.
Axes: N turns (rows), C colours, H x W pixels, h x w latent pixels, F history features, L latest-message features, E embedding channels.
Source of the architecture: Hammond and Adam-Day's library, image classification.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nip_ray.learning.groups import ParameterGroup
from nip_ray.learning.policy import Policy
from nip_ray.networks.basic import initialise, mlp, round_one_hot
from nip_ray.networks.images import scaled_to, trunk
from nip_ray.protocols import NUM_DECISIONS
from nip_ray.scenarios.seat import Seat
from nip_ray.settings.image_classification import ImageAgentSettings

Observation = Mapping[str, Tensor]


@dataclass(frozen=True)
class ImageShape:
    """What the images, the grid that messages point into, and an agent's feature maps (embedding_channels 0: none) measure."""

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
        num_in = seat.history_features + shape.channels + shape.embedding_channels
        self.trunk = trunk(
            num_in,
            settings.initial_num_channels,
            shape.num_groups,
            settings.num_blocks_per_group,
            settings.building_block_type,
            settings.kernel_size,
            settings.activation,
        )
        latent = settings.initial_num_channels * 2**shape.num_groups + seat.latest_features
        self.image_output = nn.Linear(latent + seat.history_features * seat.linear_symbols, settings.d_representation)
        self.pixel_output = nn.Linear(latent, settings.d_representation)
        initialise(self, settings.orthogonal_initialisation_gain if settings.use_orthogonal_initialisation else None)
        if settings.history_initialisation == "shared":
            self._share_rounds()

    def latent(self, image_NCHW: Tensor, history_NFhw: Tensor, latest_NLhw: Tensor, embedding_NEhw: Tensor | None) -> Tensor:
        """(N, D, h, w): the trunk's map, and the latest messages behind it. image_NCHW: from 0 to 1; the trunk sees -1 to 1."""
        size = self.shape.height, self.shape.width
        parts = [F.interpolate(history_NFhw, size, mode="nearest"), image_NCHW * 2 - 1]
        if embedding_NEhw is not None:
            parts.append(scaled_to(embedding_NEhw, *size))
        return torch.cat([self.trunk(torch.cat(parts, 1)), latest_NLhw], 1)

    def of_image(self, latent_NDhw: Tensor, linear_NX: Tensor | None) -> Tensor:
        """(N, R): the image's representation, from the mean over its latent pixels and what was said in linear messages."""
        mean = latent_NDhw.mean((2, 3))
        return self.image_output(mean if linear_NX is None else torch.cat([mean, linear_NX], 1))

    def of_pixels(self, latent_NDhw: Tensor) -> Tensor:
        """(N, h * w, R): the latent pixels' representations."""
        return self.pixel_output(latent_NDhw.flatten(2).transpose(1, 2))

    @torch.no_grad()
    def _share_rounds(self) -> None:
        """Start with one way to mark a latent pixel, whatever the round in which it was named."""
        first = self.trunk[0]
        assert isinstance(first, nn.Conv2d)
        weight_DRL = first.weight[:, : self.seat.history_features, 0, 0].unflatten(1, (self.seat.rounds, -1))
        weight_DRL.copy_(weight_DRL[:, :1].clone().expand_as(weight_DRL))


class ImageAgent(nn.Module):
    """Policy and value of one agent, with separate bodies or a shared one."""

    def __init__(
        self, settings: ImageAgentSettings, seat: Seat, shape: ImageShape, shared_body: bool, critic_seat: Seat | None = None
    ) -> None:
        """critic_seat: of a central critic, what its value reads instead, beside the label; it needs a body of its own."""
        super().__init__()
        self.settings, self.seat, self.critic_seat = settings, seat, critic_seat
        self.apart = critic_seat not in (None, seat)  # the value reads other messages than the policy
        rounds, width, activation = seat.rounds + 1, settings.d_representation, settings.activation
        self.policy_body = ImageBody(settings, seat, shape)
        self.value_body = None if shared_body else ImageBody(settings, critic_seat or seat, shape)
        self.pixel_selector = mlp(
            width, settings.d_latent_pixel_selector, seat.num_factors, settings.num_latent_pixel_selector_layers, activation
        )
        self.decider = self.linear_selector = None
        if seat.decides:
            num_in = width + (rounds if settings.include_round_in_decider else 0)
            self.decider = mlp(num_in, settings.d_decider, NUM_DECISIONS, settings.num_decider_layers, activation)
        if seat.linear_symbols:
            outputs = seat.num_factors * seat.linear_symbols
            layers = settings.num_linear_message_selector_layers
            self.linear_selector = mlp(width, settings.d_linear_message_selector, outputs, layers, activation)
        num_in = width + (rounds if settings.include_round_in_value else 0) + (2 if critic_seat is not None else 0)
        self.value_head = mlp(num_in, settings.d_value, 1, settings.num_value_layers, activation)
        self._initialise_heads()
        # mean and standard deviation of history, latest message and linear history; identity until `set_normalisation`
        self.register_buffer("normalisation", torch.tensor([[0.0, 1.0]] * 3))
        self.normalisation: Tensor

    def set_normalisation(self, statistics: Mapping[str, tuple[float, float]]) -> None:
        """Set mean and standard deviation of "history", "latest" and "linear"; they travel with the weights."""
        for row, name in enumerate(("history", "latest", "linear")):
            if name in statistics:
                self.normalisation[row] = torch.tensor(statistics[name])

    def body(self) -> nn.Module:
        """The body that the policy reads; with a shared body the value reads it too."""
        return self.policy_body

    def forward(self, obs: Observation, want_policy: bool = True, want_value: bool = True) -> tuple[Policy | None, Tensor | None]:
        """The action distribution and the value (N,) of N turns; each only if wanted. `obs`: see `ImageClassification.observe`."""
        policy = value = None
        image_NR = None
        if want_policy:
            latent, linear = self._latent(self.policy_body, obs)
            if self.decider is not None or self.linear_selector is not None or (want_value and self.value_body is None):
                image_NR = self.policy_body.of_image(latent, linear)
            policy = self._policy(image_NR, self.policy_body.of_pixels(latent), obs)
        if want_value:
            if self.value_body is not None or image_NR is None:
                body = self.value_body or self.policy_body
                image_NR = body.of_image(*self._latent(body, obs, "state_" if self.apart else ""))
            known = self._with_round(image_NR, obs, self.settings.include_round_in_value)
            if self.critic_seat is not None:
                known = torch.cat([known, F.one_hot(obs["label"], 2).to(known.dtype)], 1)
            value = self.value_head(known).squeeze(-1)
        return policy, value

    def groups(self) -> list[ParameterGroup]:
        """Parameter groups with their learning-rate factors; a shared body belongs to the actor's."""
        agent, body = self.settings.agent_lr_factor, self.settings.body_lr_factor
        made = [ParameterGroup("actor", "body", list(self.policy_body.parameters()), agent.actor * body.actor)]
        if self.value_body is not None:
            made.append(ParameterGroup("critic", "body", list(self.value_body.parameters()), agent.critic * body.critic))
        heads = [head for head in (self.pixel_selector, self.decider, self.linear_selector) if head is not None]
        made.append(ParameterGroup("actor", "heads", [p for head in heads for p in head.parameters()], agent.actor))
        made.append(ParameterGroup("critic", "heads", list(self.value_head.parameters()), agent.critic))
        return made

    def _initialise_heads(self) -> None:
        gain = self.settings.orthogonal_initialisation_gain if self.settings.use_orthogonal_initialisation else None
        for head in (self.pixel_selector, self.decider, self.linear_selector):
            if head is not None:
                initialise(head, gain)
        initialise(self.value_head, None if self.settings.legacy_value_initialisation else gain)

    def _latent(self, body: ImageBody, obs: Observation, prefix: str = "") -> tuple[Tensor, Tensor | None]:
        """What `body` makes of the image and of normalised messages, and the normalised linear ones."""
        (history_mean, history_std), (latest_mean, latest_std), (linear_mean, linear_std) = self.normalisation
        spoken_N = obs["round"] > 0
        history = (obs[f"{prefix}history"] - history_mean) / history_std
        latest = (obs[f"{prefix}latest"] - latest_mean) / latest_std * spoken_N[:, None, None, None]
        linear = None
        if self.seat.linear_symbols:
            linear = (obs[f"{prefix}linear_history"] - linear_mean) / linear_std * spoken_N[:, None]
        image = obs.get("state_image", obs["image"]) if body is self.value_body else obs["image"]
        return body.latent(image, history, latest, obs.get("embedding")), linear

    def _policy(self, image_NR: Tensor | None, pixels_NSR: Tensor, obs: Observation) -> Policy:
        message = self.pixel_selector(pixels_NSR).transpose(1, 2)
        decision = linear = None
        if self.decider is not None:
            assert image_NR is not None
            decision = self.decider(self._with_round(image_NR, obs, self.settings.include_round_in_decider))
        if self.linear_selector is not None:
            linear = self.linear_selector(image_NR).view(len(pixels_NSR), self.seat.num_factors, -1)
        return Policy(message, linear, decision, obs["speaks"], obs["may_decide"] if self.seat.decides else None)

    def _with_round(self, image_NR: Tensor, obs: Observation, include: bool) -> Tensor:
        return torch.cat([image_NR, round_one_hot(obs["round"], self.seat.rounds, image_NR.dtype)], 1) if include else image_NR


class RandomAgent(nn.Module):
    """Uniform over latent pixels, linear symbols and decisions; its value is 0."""

    def __init__(self, seat: Seat, num_symbols: int) -> None:
        super().__init__()
        self.seat, self.num_symbols = seat, num_symbols
        self.register_buffer("unused", torch.zeros(1))  # a module without any state confuses checkpoints

    def forward(self, obs: Observation, want_policy: bool = True, want_value: bool = True) -> tuple[Policy | None, Tensor | None]:
        """Uniform policy and zero value; see `ImageAgent.forward`."""
        count, seat = len(obs["round"]), self.seat
        message = torch.zeros(count, seat.num_factors, self.num_symbols, device=obs["round"].device)
        linear = message.new_zeros(count, seat.num_factors, seat.linear_symbols) if seat.linear_symbols else None
        decision = message.new_zeros(count, NUM_DECISIONS) if seat.decides else None
        policy = Policy(message, linear, decision, obs["speaks"], obs["may_decide"] if seat.decides else None)
        return (policy if want_policy else None), (message.new_zeros(count) if want_value else None)

    def groups(self) -> list[ParameterGroup]:
        """Nothing to train."""
        return []

    def set_normalisation(self, statistics: Mapping[str, tuple[float, float]]) -> None:
        """It reads no messages."""

    def body(self) -> None:
        """It has none."""
