"""How much an agent's first message says of the label."""

from dataclasses import dataclass
from typing import Literal

from nip_ray.settings.options import FORBID_UNKNOWN, option


@dataclass(frozen=True)
class MessageRegressionSettings:
    """At each evaluation, and for each agent, a perceptron that reads the label off the first message that the agent sends.

    The defaults are the published library's.
    """

    __pydantic_config__ = FORBID_UNKNOWN

    enabled: bool = option(False, "Whether it is done.")
    agents: tuple[str, ...] | None = option(None, "Whose messages are read (none: everyone's).")
    test_share: float = option(0.2, "Share of the messages that the perceptron is examined on; it learns from the others.", gt=0, lt=1)
    num_layers: int = option(2, "Its layers (1 and 2 are the same).", ge=1)
    hidden: int = option(64, "Its hidden width.", ge=1)
    activation: Literal["tanh", "relu", "sigmoid"] = option("relu", "Its activation.")
    num_epochs: int = option(10, "Passes over the messages that it learns from; few messages, or a subtle code, need more.", ge=1)
    minibatch_size: int = option(512, "Messages in a minibatch.", ge=1)
    lr: float = option(0.001, "Learning rate of Adam.", gt=0)
