"""Who speaks when, who sees what, who is paid: protocols as data tables plus one pure batched step. Imports torch only."""

from nip_ray.protocols.conformance import check
from nip_ray.protocols.spec import ACCEPT, CONTINUE, NUM_DECISIONS, NUM_SEEDS, REJECT, Payment, Protocol, ProtocolParams
from nip_ray.protocols.step import ProtocolState, StepOutcome, start, step
from nip_ray.protocols.tables import PROTOCOLS, build, from_settings, register

__all__ = [
    "ACCEPT",
    "CONTINUE",
    "NUM_DECISIONS",
    "NUM_SEEDS",
    "PROTOCOLS",
    "REJECT",
    "Payment",
    "Protocol",
    "ProtocolParams",
    "ProtocolState",
    "StepOutcome",
    "build",
    "check",
    "from_settings",
    "register",
    "start",
    "step",
]
