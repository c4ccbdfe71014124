"""Who speaks when, who sees what, who is paid: protocols as data tables plus one pure batched step. Imports torch only."""

from nip_ray.protocols.conformance import check
from nip_ray.protocols.spec import ACCEPT, CONTINUE, NUM_DECISIONS, NUM_SEEDS, REJECT, Payment, Protocol, ProtocolParams, ZeroKnowledge
from nip_ray.protocols.step import Judgement, ProtocolState, StepOutcome, start, step
from nip_ray.protocols.tables import PROTOCOLS, build, from_settings, register
from nip_ray.protocols.zero_knowledge import wrap

__all__ = [
    "ACCEPT",
    "CONTINUE",
    "NUM_DECISIONS",
    "NUM_SEEDS",
    "PROTOCOLS",
    "REJECT",
    "Judgement",
    "Payment",
    "Protocol",
    "ProtocolParams",
    "ProtocolState",
    "StepOutcome",
    "ZeroKnowledge",
    "build",
    "check",
    "from_settings",
    "register",
    "start",
    "step",
    "wrap",
]
