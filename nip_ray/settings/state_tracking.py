"""State tracking: chains of moves and the claim where they end."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from nip_ray.settings.heads import LrFactors, head_faults
from nip_ray.settings.language_agents import LanguageAgentSettings
from nip_ray.settings.options import FORBID_UNKNOWN, option


@dataclass(frozen=True)
class ChainSettings:
    """Chains of moves over five states, drawn from a seed. Splits are disjoint, and no chain occurs twice."""

    __pydantic_config__ = FORBID_UNKNOWN

    length: int = option(16, "Moves of a chain; a power of 2 under bisection and prover_estimator.", ge=2, le=64)
    num_generators: int = option(
        4, "Different moves, each a permutation of the states; two generate all 120.", ge=2, le=8
    )
    num_train: int = option(20_000, "Training chains.", ge=2)
    num_test: int = option(500, "Held-out chains.", ge=2)


@dataclass(frozen=True)
class StateAgentSettings:
    """The network of one agent: a small transformer over states, moves and places."""

    __pydantic_config__ = FORBID_UNKNOWN

    kind: Literal["learned", "random"] = option("learned", "A learned network, or a uniform random agent.")
    d: int = option(64, "Width of a token.", ge=4)
    num_layers: int = option(2, "Layers of the transformer.", ge=1)
    num_heads: int = option(4, "Attention heads of a layer; they divide the width.", ge=1)
    agent_lr_factor: LrFactors = option(LrFactors, "Learning-rate factors of the agent; 0 freezes.")

    def faults(self) -> Iterator[str]:
        """Attention heads that do not fit the width."""
        if self.kind == "learned":
            yield from head_faults(self.num_heads, "d", self.d)


@dataclass(frozen=True)
class StateTrackingSettings(ChainSettings):
    """Where does a chain of permutations lead? The provers know its states, the verifier checks a move."""

    __pydantic_config__ = FORBID_UNKNOWN

    name: Literal["state_tracking"] = option("state_tracking", "The task.")
    num_exact: int = option(
        64,
        "Held-out chains with exact worst case (bisection, prover_estimator, nip with one question; 0: none).",
        ge=0,
    )
    agents: dict[str, StateAgentSettings] = option(
        dict, "Agent -> its network; `_default` serves the agents not named."
    )


@dataclass(frozen=True)
class LanguageStateTrackingSettings(ChainSettings):
    """Where does a chain of permutations lead? Language models as verifier and provers; the experiment's seed makes the
    chains."""

    __pydantic_config__ = FORBID_UNKNOWN

    name: Literal["state_tracking"] = option("state_tracking", "The task.")
    wording: Literal["words", "english"] = option(
        "words",
        "A closed list of words with the true states, or English from which provers work them out.",
    )
    agents: dict[str, LanguageAgentSettings] = option(dict, "Settings by agent; `_default` for agents not named.")


PROTOCOLS = ("solo_verifier", "adp", "nip", "helpful_sneaky", "debate", "bisection", "prover_estimator")
"""Those under which chains are argued about."""


def chain_faults(settings: ChainSettings, protocol: str, max_rounds: int) -> Iterator[str]:
    """Faults of chains of this length under a protocol of so many rounds, each beginning with its key."""
    if protocol not in PROTOCOLS:
        yield (
            f"protocol.name: got {protocol}, but state_tracking is played under {', '.join(PROTOCOLS[:-1])} or"
            f" {PROTOCOLS[-1]} only"
        )
    elif (turns := {"bisection": 2, "prover_estimator": 3}.get(protocol)) and settings.length != 2 ** (
        max_rounds // turns
    ):
        yield (
            f"scenario.length: got {settings.length}, but {protocol} in {max_rounds} rounds comes down to one move of "
            f"{2 ** (max_rounds // turns)}, make it so or set protocol.max_rounds to {turns} log2(length) + 1"
        )
    if protocol == "prover_estimator" and getattr(settings, "wording", "words") != "words":
        yield "scenario.wording: got english, but prover_estimator is played in words only, use words"
