"""Zero knowledge: a wrapper around any protocol with one verifier, as one more table, and its payments.

A proof has zero knowledge if the verifier learns nothing but the verdict: it could have made up its conversation with
the provers alone. So an episode has two conversations, with the same provers: the verifier's, and that of an
*adversarial verifier*, which follows no rule and wants to learn what it can. A *simulator*, which reads no prover, must
reproduce the adversarial verifier's messages. The closer it gets, the less was revealed: the similarity of the two
agents' choices is paid to the simulator and, in part, to the provers, and taken from the adversarial verifier.

An episode:
- every channel exists three times: ``_standard``, ``_adversarial`` and ``_simulator``, in this order;
- verifier and adversarial verifier each end their own conversation, by the same rule
  (`nip_ray.protocols.batched_step`): the first decision in an own turn from round ``min_rounds - 1`` on. An agent that
  has decided has no more turns, and no further payments;
- provers have their turns in both conversations until the episode is over, also in one that has ended. They see both.
  The simulator continues until the episode is over; its decision, if it has one, ends nothing;
- the episode is over when both have decided, or when the rounds run out.
Source: Hammond and Adam-Day, "Neural Interactive Proofs", ICLR 2025, section on zero-knowledge proofs; the library's
rules.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from nip_ray.errors import UserError
from nip_ray.protocols.spec import Protocol, ProtocolParams, Turn, ZeroKnowledge

if TYPE_CHECKING:
    from torch import Tensor

ADVERSARY, SIMULATOR = "adversarial_verifier", "simulator"
"""The agents that zero knowledge adds."""
STANDARD, ADVERSARIAL, SIMULATED = "_standard", "_adversarial", "_simulator"


def wrap(protocol: Protocol, params: ProtocolParams) -> Protocol:
    """`protocol` with two conversations and a simulated one, and the amounts of `params`; limits, payment and seed
    classes are unchanged.

    Raises UserError if `protocol` has no verifier, or several, draws roles, is already wrapped, or has agents of the
    two added names.
    """
    if protocol.verifier is None:
        raise UserError(
            f"protocol.zero_knowledge: {protocol.name!r} has no verifier, so there is nothing to learn; set it to false"
        )
    if protocol.roles:
        raise UserError(
            f"protocol.zero_knowledge: not defined where roles are drawn, as in {protocol.name!r}; set it to false"
        )
    if protocol.panel is not None:
        raise UserError(
            f"protocol.zero_knowledge: not defined with several deciders, as in {protocol.name!r}, set it to false"
        )
    if protocol.zero_knowledge is not None:
        raise UserError(f"protocol.zero_knowledge: {protocol.name!r} has it already; wrap it once")
    taken = {ADVERSARY, SIMULATOR} & set(protocol.agents)
    if taken:
        raise UserError(f"protocol.zero_knowledge: {protocol.name!r} has agents called {sorted(taken)}; rename them")
    asked = protocol.sees[protocol.verifier]
    sees = {agent: (*_copies(seen, STANDARD), *_copies(seen, ADVERSARIAL)) for agent, seen in protocol.sees.items()}
    sees |= {
        protocol.verifier: _copies(asked, STANDARD),
        ADVERSARY: _copies(asked, ADVERSARIAL),
        SIMULATOR: _copies(asked, SIMULATED),
    }
    return replace(
        protocol,
        agents=(*protocol.agents, ADVERSARY, SIMULATOR),
        channels=tuple(channel + end for end in (STANDARD, ADVERSARIAL, SIMULATED) for channel in protocol.channels),
        sees=sees,
        turns=tuple(tuple(_turns(protocol, turns) for turns in table) for table in protocol.turns),
        zero_knowledge=ZeroKnowledge(
            ADVERSARY,
            SIMULATOR,
            simulator_reward=params.simulator_reward_coefficient,
            prover_reward=params.aux_prover_reward_coefficient,
            legacy=params.zero_knowledge_legacy,
        ),
    )


def pay(protocol: Protocol, reward_BA: Tensor, similarity_B: Tensor) -> Tensor:
    """(B, A): the protocol's own payments of a round, `reward_BA`, plus those for similarity.

    similarity_B: (B,) of the adversarial verifier's and the simulator's choices, 0 if either was silent; with
    s = `simulator_reward` times it the simulator gets s, the adversarial verifier -s, each prover s times
    `prover_reward`.
    """
    extra = protocol.zero_knowledge
    assert extra is not None
    shares = {extra.simulator: 1.0, extra.adversary: -1.0, **dict.fromkeys(protocol.provers, extra.prover_reward)}
    paid_BA = reward_BA.clone()
    for agent, share in shares.items():
        paid_BA[:, protocol.agents.index(agent)] += similarity_B * (share * extra.simulator_reward)
    return paid_BA


def _copies(channels: tuple[str, ...], end: str) -> tuple[str, ...]:
    return tuple(channel + end for channel in channels)


def _turns(protocol: Protocol, turns: tuple[Turn, ...]) -> tuple[Turn, ...]:
    """One round of the base protocol in all its conversations."""
    made: list[Turn] = []
    for agent, channel in turns:
        if agent == protocol.verifier:
            made += [(agent, channel + STANDARD), (ADVERSARY, channel + ADVERSARIAL), (SIMULATOR, channel + SIMULATED)]
        else:
            made += [(agent, channel + STANDARD), (agent, channel + ADVERSARIAL)]
    return tuple(made)
