"""Turns, visibility and payments: protocols as data tables plus one pure batched step.

The tables need no torch; `step` and `check` are imported on first use.
"""

from typing import TYPE_CHECKING, Any

from nip_ray.protocols.panel import Panel
from nip_ray.protocols.payment import Ends, Payment, Stake, for_being_right, for_verdict
from nip_ray.protocols.spec import (
    ACCEPT,
    CONTINUE,
    DECISIONS,
    NUM_DECISIONS,
    NUM_SEEDS,
    REJECT,
    VERDICTS,
    Protocol,
    ProtocolParams,
    ZeroKnowledge,
)
from nip_ray.protocols.tables import AMOUNTS, PROTOCOLS, build, from_settings, reads, register
from nip_ray.protocols.zero_knowledge import wrap

if TYPE_CHECKING:
    from nip_ray.protocols.batched_step import Judgement, ProtocolState, StepOutcome, start, step
    from nip_ray.protocols.conformance import check

__all__ = [
    "ACCEPT",
    "AMOUNTS",
    "CONTINUE",
    "DECISIONS",
    "NUM_DECISIONS",
    "NUM_SEEDS",
    "PROTOCOLS",
    "REJECT",
    "VERDICTS",
    "Ends",
    "Judgement",
    "Panel",
    "Payment",
    "Protocol",
    "ProtocolParams",
    "ProtocolState",
    "Stake",
    "StepOutcome",
    "ZeroKnowledge",
    "build",
    "check",
    "for_being_right",
    "for_verdict",
    "from_settings",
    "reads",
    "register",
    "start",
    "step",
    "wrap",
]


def __getattr__(name: str) -> Any:
    if name == "check":
        from nip_ray.protocols import conformance

        return conformance.check
    if name in ("Judgement", "ProtocolState", "StepOutcome", "start", "step"):
        from nip_ray.protocols import batched_step

        return getattr(batched_step, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
