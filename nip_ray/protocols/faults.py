"""Faults in a config's payments and verdicts of a protocol: `KEY: reason, remedy`."""

from collections.abc import Iterator

from nip_ray.protocols.payment import ENTRIES
from nip_ray.protocols.spec import TWO_VERDICTS, Protocol, ProtocolParams
from nip_ray.protocols.zero_knowledge import ADVERSARY, SIMULATOR


def payoff_faults(name: str, params: ProtocolParams, table: Protocol) -> Iterator[str]:
    """Entries of `payoff` for unknown agents or turns, and those that the protocol does not use."""
    for agent, entries in params.payoff.items():
        if table.verifier is None:
            yield f"payoff.{agent}: {name} has no verifier, and its scenario pays, leave it out"
            continue
        if params.zero_knowledge and agent in (ADVERSARY, SIMULATOR):
            yield f"payoff.{agent}: it is paid for similarity alone (simulator_reward_coefficient), leave it out"
            continue
        for other, place in ((agent, ""), *((speaker, ".turns") for speaker in entries.turns)):
            if other not in table.agents:
                yield (
                    f"payoff.{agent if place else other}{place}: no agent {other!r} of {name}, expected one of"
                    f" {', '.join(table.agents)}"
                )
        unknown = [role for role in entries.by_role if role not in table.roles]
        known = f"expected one of {', '.join(table.roles)}" if table.roles else f"{name} draws none, leave it out"
        yield from (f"payoff.{agent}.by_role.{role}: no such role, {known}" for role in unknown)
        if agent in table.agents and not unknown and not table.payment.grants(agent, entries):
            yield f"payoff.{agent}: {name} has no use for it, leave it out"


def verdict_faults(name: str, params: ProtocolParams) -> Iterator[str]:
    """Verdict names other than the two usual ones, and tables of the wrong shape."""
    count = len(params.verdicts)
    if count < 3 and params.verdicts != TWO_VERDICTS:
        yield (
            f"verdicts: got {', '.join(params.verdicts) or 'none'}, expected {' and '.join(TWO_VERDICTS)}, or more"
            " than two"
        )
    for agent, entries in params.payoff.items():
        by_role = {f"payoff.{agent}.by_role.{role}": own for role, own in entries.by_role.items()}
        for key, own in {f"payoff.{agent}": entries, **by_role}.items():
            if own.table is not None and [len(row) for row in own.table] != [count + 1] * count:
                yield f"{key}.table: must have {count} rows (labels) of {count + 1} amounts (verdicts, then undecided)"
            if count > 2 and (named := [entry for entry in ENTRIES if getattr(own, entry) is not None]):
                yield f"{key}.{named[0]}: is for two verdicts, and {name} has {count} here; use table"
