"""Provers that search while they learn."""

from dataclasses import dataclass

from nip_ray.settings.options import FORBID_UNKNOWN, OVER_ITERATIONS, option


@dataclass(frozen=True)
class SearchSettings:
    """Before a prover speaks it tries its messages on the current verifier, sends the best one, and its network
    imitates it.

    Expert iteration (Anthony, Tian and Barber 2017) with a search of one message; the defaults are this library's,
    measured on graph isomorphism (benchmarks/results.md).
    """

    __pydantic_config__ = FORBID_UNKNOWN

    share: float = option(1.0, "Share of episodes in which provers search.", ge=0, le=1)
    last_share: float | None = option(
        None,
        "Share in the last iteration, reached linearly (none: unchanged).",
        meaning=OVER_ITERATIONS,
        ge=0,
        le=1,
    )
    temperature: float = option(0.02, "Temperature of the softmax over a message's expected pay.", ge=1e-6)
    candidates: int = option(
        144,
        "Messages tried in a turn: all, or the likeliest of them.",
        ge=4,
        le=65536,
    )
    agents: tuple[str, ...] | None = option(None, "Provers that search (none: every prover that learns).", min_length=1)


def share_at(settings: SearchSettings, iteration: int, iterations: int) -> float:
    """The share of episodes with a search in an iteration (from 0) of so many."""
    if settings.last_share is None or iterations < 2:
        return settings.share
    return settings.share + (settings.last_share - settings.share) * min(1.0, iteration / (iterations - 1))
