"""Who the agents are to each other: names in chats, headers of questions, the order of reading, and what is said before the last turn.

Decisions that matter here:
- the protocols that ship have their roles as data (`ROLES`); a protocol of a user's own gets roles by rule (`roles_of`), so that it needs
  templates and nothing else;
- whom a prover argues for is not here: it is the protocol's payment (`Protocol.payment.goals`), or the item's own stance.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from nip_ray.protocols import Protocol


@dataclass(frozen=True)
class Role:
    """One agent, as the others meet it.

    name: in prompts and in the "name" field of chat messages, of [a-zA-Z0-9_-]. headers: channel -> the words that its message there
    starts with; needed where it writes to several channels in one round. reads: the channels that it sees, in the order in which messages
    of one round are shown. shuffled: that order is drawn again for each round. anonymous: its messages carry no name.
    last_notice: it is told before its last turn that no other will follow.
    """

    name: str
    headers: Mapping[str, str] = field(default_factory=dict)
    reads: tuple[str, ...] = ("main",)
    shuffled: bool = False
    anonymous: bool = False
    last_notice: bool = False


_FIRST, _SECOND = "prover0_channel", "prover1_channel"
_ASKS_BOTH = Role(
    "Verifier",
    {_FIRST: "Question for Expert_1:", _SECOND: "Question for Expert_2:"},
    reads=(_FIRST, _SECOND),
    shuffled=True,
    last_notice=True,
)

_UNNAMED = {"prover0": Role("Expert_1", anonymous=True), "prover1": Role("Expert_2", anonymous=True)}
_ASKS_ONE = Role("Verifier", {"main": "Question for Expert:"}, last_notice=True)

_DEBATE = {
    "verifier": _ASKS_BOTH,
    "prover0": Role("Expert_1", reads=(_SECOND, _FIRST)),  # the other's channel first, so that its own ends the round
    "prover1": Role("Expert_2", reads=(_FIRST, _SECOND)),
}

ROLES: dict[str, dict[str, Role]] = {
    "nip": {"verifier": _ASKS_ONE, "prover": Role("Expert")},
    "adp": {"verifier": Role("Verifier"), "prover": Role("Expert")},
    "debate": _DEBATE,
    "open_debate": _DEBATE,
    "critique": {"verifier": Role("Judge"), "proposer": Role("Proposer"), "critic": Role("Critic")},
    "helpful_sneaky": {"verifier": Role("Verifier"), "prover": Role("Expert")},
    "merlin_arthur": {"verifier": Role("Verifier"), **_UNNAMED},
    "consultancy": {"verifier": _ASKS_ONE, **_UNNAMED},
    "open_consultancy": {"verifier": _ASKS_ONE, "prover": Role("Expert")},
    "mnip": {
        "verifier": _ASKS_BOTH,
        "prover0": Role("Expert_1", reads=(_FIRST,)),
        "prover1": Role("Expert_2", reads=(_SECOND,)),
    },
    "solo_verifier": {"verifier": Role("Verifier")},
}
"""Protocol -> agent -> role, for the protocols that ship."""

LAST_NOTICE = "This is your last turn. You cannot ask anything more: state your decision now, in the required form and with nothing else."


def roles_of(protocol: Protocol) -> dict[str, Role]:
    """Agent -> role. In a protocol that is not in `ROLES`: "prover" is Expert, "prover0" Expert_1 and so on, others go by their own name;
    a header says who else reads the channel; channels are read in the protocol's order; the verifier is told of its last turn if it has
    several.
    """
    shipped = ROLES.get(protocol.name, {})
    if set(shipped) == set(protocol.agents):
        return shipped
    names = {agent: generic_name(agent) for agent in protocol.agents}
    if len(set(names.values())) < len(names):  # two names that differ in forbidden characters alone
        names = {agent: f"{name[:58]}_{index}" for index, (agent, name) in enumerate(names.items())}
    return {agent: _generic_role(protocol, agent, names) for agent in protocol.agents}


def generic_name(agent: str) -> str:
    """What an agent is called in chats: of [a-zA-Z0-9_-], at most 64 characters."""
    numbered = re.fullmatch(r"prover([0-9]{0,9})", agent)
    if numbered:
        return f"Expert_{int(numbered[1]) + 1}" if numbered[1] else "Expert"
    name = re.sub(r"[^a-zA-Z0-9_-]", "_", agent)[:64]
    return name[:1].upper() + name[1:]


def _generic_role(protocol: Protocol, agent: str, names: Mapping[str, str]) -> Role:
    channels = tuple(channel for channel in protocol.channels if channel in protocol.sees[agent])
    headers = {}
    for channel in channels:
        readers = [names[other] for other in protocol.agents if other != agent and channel in protocol.sees[other]]
        headers[channel] = f"To {readers[0]}:" if len(readers) == 1 else f"In {channel}:"
    if len(set(headers.values())) < len(headers):  # several channels with the same only reader
        headers = {channel: f"In {channel}:" for channel in channels}
    last_notice = agent in protocol.verifiers and protocol.verifier_turns > 1
    return Role(names[agent], headers, reads=channels, last_notice=last_notice)
