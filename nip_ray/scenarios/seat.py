"""What protocol and scenario say of an agent's inputs and outputs, and whose settings it has."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

import torch
from torch import Tensor

from nip_ray.errors import UserError
from nip_ray.protocols import Protocol

Settings = TypeVar("Settings")


@dataclass(frozen=True)
class Seat:
    """What protocol and scenario say of one agent: R rounds, its visible channels and those that it ever writes to.

    index: its place among the agents. reads, writes: channel indices. message_size: M symbols a message.
    linear_symbols: size of the linear message alphabet, 0 for none. decides: whether its turns carry a decision. verdicts: how many there
    are. answers: whether it is
    a prover, who must answer in the graph opposite to the latest message of a channel; the others name any node. told: features of what it
    is told of the episode's role, 0 where it is told none.
    """

    agent: str
    index: int
    rounds: int
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    message_size: int
    linear_symbols: int
    decides: bool
    answers: bool
    told: int = 0
    verdicts: int = 2

    @property
    def decisions(self) -> int:
        """How many choices a decision has: the verdicts, and to continue."""
        return self.verdicts + 1

    @property
    def history_features(self) -> int:
        """Input features of a node: one for each round, visible channel and position."""
        return self.rounds * len(self.reads) * self.message_size

    @property
    def latest_features(self) -> int:
        """Features of a node's latest message: one for each visible channel and position."""
        return len(self.reads) * self.message_size

    @property
    def num_factors(self) -> int:
        """Main-message choices of one turn: one for each writable channel and position."""
        return len(self.writes) * self.message_size


def seat(protocol: Protocol, agent: str, message_size: int, linear_symbols: int) -> Seat:
    """The seat of `agent` in `protocol`."""
    index = protocol.agents.index(agent)
    return Seat(
        agent=agent,
        index=index,
        rounds=protocol.max_rounds,
        reads=tuple(c for c, name in enumerate(protocol.channels) if name in protocol.sees[agent]),
        writes=protocol.writes[agent],
        message_size=message_size,
        linear_symbols=linear_symbols,
        decides=agent in protocol.deciders,
        answers=agent in protocol.provers,
        told=len(protocol.roles) if agent in protocol.told else 0,
        verdicts=len(protocol.verdicts),
    )


def agents_of(protocol: Protocol, given: Mapping[str, Settings], default: Callable[[], Settings]) -> dict[str, Settings]:
    """Everybody's settings: its own, else those of `_default`, else what `default` makes. Raises UserError for one that does not play."""
    unknown = set(given) - set(protocol.agents) - {"_default"}
    if unknown:
        raise UserError(f"scenario.agents: {sorted(unknown)} do not play {protocol.name!r}; its agents are {list(protocol.agents)}")
    serves = given["_default"] if "_default" in given else default()
    return {agent: given.get(agent, serves) for agent in protocol.agents}


def seats(protocol: Protocol, message_size: int, linear_symbols: int, central_critic: bool) -> tuple[dict[str, Seat], dict[str, Seat]]:
    """The seats of all agents, and those of their values, which read every channel where `central_critic`."""
    made = {agent: seat(protocol, agent, message_size, linear_symbols) for agent in protocol.agents}
    everything = tuple(range(len(protocol.channels)))
    return made, {agent: replace(at, reads=everything) if central_critic else at for agent, at in made.items()}


def symbol_counts(said_NRACM: Tensor, reads: tuple[int, ...], num_symbols: int) -> Tensor:
    """(N, R * channels * M, symbols) float: how many agents said each symbol, by round, channel that is read, and position."""
    said_NFA = said_NRACM[:, :, :, list(reads)].permute(0, 1, 3, 4, 2).flatten(1, 3)
    spread = torch.zeros(*said_NFA.shape[:2], num_symbols + 1, device=said_NFA.device)
    one = torch.ones((), device=said_NFA.device).expand(said_NFA.shape)
    spread.scatter_add_(2, torch.where(said_NFA < 0, num_symbols, said_NFA), one)  # nothing said lands behind and is cut off
    return spread[..., :num_symbols].contiguous()
