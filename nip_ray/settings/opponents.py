"""Opponents from the past: who plays against frozen earlier checkpoints of the others, and which of these are kept and
drawn."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from nip_ray.settings.options import FORBID_UNKNOWN, option


@dataclass(frozen=True)
class OpponentSettings:
    """A pool of earlier checkpoints of all agents that learn. In some episodes one agent learns, and the others are one
    of these.

    The default of `latest` is OpenAI Five's (Berner et al. 2019), those of priorities are AlphaStar's (Vinyals et al.
    2019).
    """

    __pydantic_config__ = FORBID_UNKNOWN

    latest: float = option(0.8, "Share of episodes among the current agents, where every agent learns.", ge=0, lt=1)
    every: int = option(20, "Iterations between two snapshots for the pool.", ge=1)
    size: int = option(
        10,
        "Most snapshots; above it one that is close in time to its neighbour is dropped.",
        ge=2,
    )
    sampling: Literal["uniform", "prioritised"] = option(
        "uniform", "Draw snapshots uniformly, or by a priority of the agent's win rate."
    )
    priority: Literal["hard", "even"] = option(
        "hard",
        "(1 - x) ^ priority_exponent (hardest) or x (1 - x) (own level), x the win rate.",
    )
    priority_exponent: float = option(2.0, "Exponent of the priority hard.", gt=0)
    win_rate_decay: float = option(
        0.9, "Decay of a win rate's earlier games when its snapshot plays again.", ge=0, lt=1
    )
    draws: int = option(1, "Snapshots that an agent draws in an iteration for each env runner.", ge=1)
    agents: tuple[str, ...] | None = option(
        None, "Agents that play against the past (none: every agent that learns).", min_length=1
    )

    def faults(self) -> Iterator[str]:
        """Settings of another way to draw."""
        if self.sampling == "uniform":
            for key in ("priority", "priority_exponent"):
                if (given := getattr(self, key)) != getattr(OpponentSettings, key):
                    yield f"{key}: got {given}, but it counts with sampling prioritised only, leave it out"
        if self.priority == "even" and self.priority_exponent != OpponentSettings.priority_exponent:
            yield (
                f"priority_exponent: got {self.priority_exponent:g}, but it counts with priority hard only, leave"
                " it out"
            )
