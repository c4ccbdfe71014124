"""Settings shared by networks of graph isomorphism and image classification: heads and learning rate factors."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from nip_ray.settings.options import FORBID_UNKNOWN, option


@dataclass(frozen=True)
class LrFactors:
    """Factors on the learning rate, for the parameters that the actor loss trains and for those that only the critic
    loss trains."""

    __pydantic_config__ = FORBID_UNKNOWN

    actor: float = option(1.0, "Factor for the policy (and a shared body).", ge=0)
    critic: float = option(1.0, "Factor for the value function.", ge=0)


@dataclass(frozen=True)
class HeadSettings:
    """Heads of one agent, of two layers each, on whatever body; the defaults are the published library's."""

    __pydantic_config__ = FORBID_UNKNOWN

    kind: str = option("learned", "Kind of player.")
    channels: Literal["together", "apart"] = option(
        "together",
        "Encode the channels together, as published, or apart, weighed by learned gates.",
    )
    activation: Literal["tanh", "relu", "sigmoid"] = option("tanh", "Activation of the body and of the heads.")
    d_representation: int = option(16, "Width of the representation that the body returns to the heads.", ge=1)
    d_decider: int = option(16, "Hidden width of the head that decides.", ge=1)
    d_linear_message_selector: int = option(16, "Hidden width of the head that sends linear messages.", ge=1)
    d_value: int = option(16, "Hidden width of the value head.", ge=1)
    use_orthogonal_initialisation: bool = option(True, "Orthogonal weights and zero biases.")
    agent_lr_factor: LrFactors = option(LrFactors, "Learning-rate factors of the whole agent; 0 freezes.")
    body_lr_factor: LrFactors = option(LrFactors, "Further factors of its body.")


def head_faults(num_heads: int, key: str, width: int) -> Iterator[str]:
    """Attention heads that do not share a token's width, the setting `key`, evenly."""
    if width % num_heads:
        other = nearest_divisor(width, num_heads)
        yield f"num_heads: got {num_heads}, which does not divide {key} {width}, use {other} heads or another width"


def nearest_divisor(number: int, wanted: int) -> int:
    """The divisor of `number` that is nearest to `wanted`."""
    return min((d for d in range(1, number + 1) if number % d == 0), key=lambda d: (abs(d - wanted), d))
