"""Zero knowledge: a wrapper around any protocol with one verifier, as one more table, and what it pays.

A proof has zero knowledge if whoever asks learns nothing but the verdict: everything that a verifier sees in a
conversation with the provers it could have made up alone. So there are two conversations in an episode, with the same
provers: the verifier's, and that of an *adversarial verifier*, who follows no rule and wants to learn what it can. A
*simulator*, who hears no prover, must say what the adversarial verifier says. The nearer it comes, the less was given
away: the similarity of the two agents' choices is paid to the simulator and, in part, to the provers, and taken from
the adversarial verifier.

How an episode goes:
- every channel exists three times: ``_standard``, ``_adversarial`` and ``_simulator``, in this order;
- verifier and adversarial verifier each end their own conversation, by the same rule
  (`nip_ray.protocols.batched_step`): the first decision in an own turn from round ``min_rounds - 1`` on. Who has
  decided has no more turns, and is neither paid nor punished again;
- provers speak in both conversations, in their turns, until the episode is over: also in one that has ended, where
  nobody asks any more. They see both. The simulator continues until the episode is over; its decision, where it has
  one, ends nothing;
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
    classes are its own.

    Raises UserError where `protocol` has no verifier, or several, draws roles, has been wrapped before, or has agents
    of the two names that are added.
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
    """(B, A): what a round of the protocol itself pays, `reward_BA`, and what is paid for similarity.

    similarity_B: (B,) of the adversarial verifier's and the simulator's choices, 0 where either was silent; with s its
    `simulator_reward` fold the simulator gets s, the adversarial verifier -s, each prover s times `prover_reward`.
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
