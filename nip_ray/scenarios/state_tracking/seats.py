"""Who does what under each protocol: one commits to states, one points (at a half, or at a move), the verifier sees
what is pointed at."""

from dataclasses import dataclass

from nip_ray.errors import UserError
from nip_ray.protocols import Protocol
from nip_ray.settings.state_tracking import ChainSettings, chain_faults


@dataclass(frozen=True)
class Seats:
    """committer: who commits to states, the middle one of an interval under bisection, else all of the chain in its
    first message; None where the verifier is alone. pointer: who keeps a half or names a move, None where nobody does.
    bisects: see `committer`. estimator: who then says how likely both halves are, None where nobody does."""

    committer: str | None
    pointer: str | None
    bisects: bool
    estimator: str | None = None


def seats_of(protocol: Protocol, settings: ChainSettings) -> Seats:
    """Who does what under `protocol`. Raises UserError for one under which chains are not argued about, or of another
    length."""
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
    """Whether the verifier asks once and then decides, in every dialogue."""
    return protocol.name == "nip" and protocol.verifier_turns == 2 and protocol.min_rounds == protocol.max_rounds
