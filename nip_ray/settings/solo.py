"""Settings of training one agent alone, on the labels."""

from dataclasses import dataclass
from typing import Literal

from nip_ray.settings.options import FILE, FORBID_UNKNOWN, FREE, OVER_ITERATIONS, option


@dataclass(frozen=True)
class SupervisedSettings:
    """Supervised training on the labels; the defaults are the published library's."""

    __pydantic_config__ = FORBID_UNKNOWN

    lr: float = option(0.001, "Learning rate of Adam.", gt=0)
    anneal_lr: bool = option(False, "Let the learning rate fall linearly to 0.", meaning=OVER_ITERATIONS)
    minibatch_size: int = option(256, "Instances in a minibatch.", ge=1)
    max_grad_norm: float | None = option(1.0, "Largest gradient norm (none: no clipping).", gt=0)


@dataclass(frozen=True)
class SoloSettings(SupervisedSettings):
    """One agent alone learns the labels with its whole network, before any message."""

    __pydantic_config__ = FORBID_UNKNOWN

    name: Literal["solo"] = option("solo", "The learning rule: supervised training of one agent on the labels.")
    agent: str = option("verifier", "Agent to train alone; it decides in the first round.", min_length=1)
    num_epochs: int = option(1, "Passes over an iteration's instances (play.num_copies of them).", ge=1)


@dataclass(frozen=True)
class PretrainingSettings(SupervisedSettings):
    """Agents whose bodies are trained on the labels, each alone, before the experiment begins."""

    __pydantic_config__ = FORBID_UNKNOWN

    agents: tuple[str, ...] = option((), "Agents to pretrain (default: none).")
    # not over the run's iterations
    anneal_lr: bool = option(False, "Let the learning rate fall linearly to 0 over these passes.")
    num_epochs: int = option(100, "Passes over the training instances.", ge=1)
    in_round: int = option(1, "Round, from 1, in which they learn to decide, without messages.", ge=1)
    include_heads: bool = option(False, "Transfer the deciding head as well as the body (as published).")
    cache: str | None = option(
        None,
        "Folder of pretrained bodies by content (none: `pretrained` beside the run).",
        meaning={**FILE, **FREE},
    )
