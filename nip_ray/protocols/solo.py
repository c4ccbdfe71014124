"""The protocol in which one agent of another protocol plays alone and decides, for supervised training on labels."""

from dataclasses import replace

from nip_ray.errors import UserError
from nip_ray.protocols.payment import Payment, for_being_right
from nip_ray.protocols.spec import Protocol


def solo_protocol(protocol: Protocol, agent: str) -> Protocol:
    """`protocol` with `agent` alone, as the verifier: a turn in every round in the channels that it writes to (or all
    that it sees).

    Channels seen, rounds and `told` (for roles, here drawn without effect) are unchanged, and so are the widths of the
    agent's inputs: a body trained here fits there. A decision counts from the first round on. Raises UserError for an
    unknown agent.
    """
    if agent not in protocol.agents:
        raise UserError(f"agent {agent!r} does not play {protocol.name!r}; its agents are {list(protocol.agents)}")
    writes = tuple(protocol.channels[c] for c in protocol.writes[agent]) or tuple(protocol.sees[agent])
    verifier, paid = agent if agent in protocol.verifiers else protocol.viewpoint, protocol.payment
    told, by_role = agent in protocol.told, {role: {} for role in protocol.roles}
    judged, asking = (
        paid.payoff.get(verifier, for_being_right(1, -1, -1, paid.verdicts)),
        paid.turns.get(verifier, {}).get(verifier, 0.0),
    )
    return replace(
        protocol,
        agents=(agent,),
        sees={agent: protocol.sees[agent]},
        turns=((tuple((agent, channel) for channel in writes),),),
        min_rounds=1,
        payment=Payment(
            {agent: judged},
            {agent: {agent: asking}} if asking else {},
            by_role=by_role if told else {},
            verdicts=paid.verdicts,
        ),
        verifier=agent,
        force_guess=None,
        zero_knowledge=None,
        roles=protocol.roles if told else (),
        told=(agent,) if told else (),
        chooser=None,
        panel=None,
    )
