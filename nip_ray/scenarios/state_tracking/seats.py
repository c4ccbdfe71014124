"""The seats under each protocol: one agent commits to states, one points (at a half, or at a move), the verifier sees
what is pointed at."""

from dataclasses import dataclass

from nip_ray.errors import UserError
from nip_ray.protocols import Protocol
from nip_ray.settings.state_tracking import ChainSettings, chain_faults


@dataclass(frozen=True)
class Seats:
    """committer: commits to states, the middle one of an interval under bisection, else all of the chain in its first
    message; None if the verifier is alone. pointer: keeps a half or names a move, or None. bisects: see `committer`.
    estimator: then estimates the probability of both halves, or None."""

    committer: str | None
    pointer: str | None
    bisects: bool
    estimator: str | None = None


def seats_of(protocol: Protocol, settings: ChainSettings) -> Seats:
    """The seats under `protocol`. Raises UserError for an unsupported one, or one of another length."""
    for fault in chain_faults(settings, protocol.name, protocol.max_rounds):
        raise UserError(fault)
    if not protocol.provers:
        return Seats(None, None, False)
    if protocol.payment.per_error:
        return Seats("prover", "prover", True, "estimator")
    committer = protocol.provers[-1]
    bisects = protocol.name == "bisection"
    if "prover0" in protocol.provers:
        return Seats(committer, "prover0", bisects)
    return Seats(committer, protocol.verifier if protocol.verifier_turns > 1 else None, bisects)


def one_question_is_asked(protocol: Protocol) -> bool:
    """True if the verifier asks once and then decides, in every dialogue."""
    return protocol.name == "nip" and protocol.verifier_turns == 2 and protocol.min_rounds == protocol.max_rounds
