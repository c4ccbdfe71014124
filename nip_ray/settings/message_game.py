"""The message game: its rules and the networks of its agents."""

from dataclasses import dataclass
from typing import Literal

from nip_ray.settings.heads import LrFactors
from nip_ray.settings.options import FORBID_UNKNOWN, option


@dataclass(frozen=True)
class MessageAgentSettings:
    """The small network of one agent in the message game."""

    __pydantic_config__ = FORBID_UNKNOWN

    kind: Literal["learned", "random"] = option("learned", "A learned network, or a uniform random agent.")
    hidden: int = option(64, "Width of the one hidden layer, which policy and value share.", ge=1)
    activation: Literal["tanh", "relu", "sigmoid"] = option("tanh", "Its activation.")
    agent_lr_factor: LrFactors = option(LrFactors, "Learning-rate factors of the agent; 0 freezes.")


@dataclass(frozen=True)
class MessageGameSettings:
    """The smallest game of messages: the prover sees a secret, and the verifier must name its half."""

    __pydantic_config__ = FORBID_UNKNOWN

    name: Literal["message_game"] = option("message_game", "The task.")
    num_symbols: int = option(20, "Message alphabet.", ge=2)
    num_secrets: int = option(4, "Secrets; the label is 1 for the upper half.", ge=2)
    agents: dict[str, MessageAgentSettings] = option(
        dict, "Agent -> its network; `_default` serves the agents not named."
    )
