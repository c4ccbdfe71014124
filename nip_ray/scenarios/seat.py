"""Agents' inputs and outputs under a protocol and a scenario, settings, and scenarios whose messages name parts."""

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from nip_ray.errors import UserError
from nip_ray.play.core import turn_masks
from nip_ray.play.rollout import Dialogue
from nip_ray.play.scenario import Scenario
from nip_ray.protocols import Protocol

Settings = TypeVar("Settings")


@dataclass(frozen=True)
class Seat:
    """The seat of one agent: R rounds, its visible channels and the ones it writes to.

    index: its place among the agents. reads, writes: channel indices. message_size: M symbols a message.
    linear_symbols: size of the linear message alphabet, 0 for none. decides: True if its turns have a decision.
    verdicts: their number. answers: True for a prover, which must answer in the graph opposite to the latest message of
    a channel; the others name any node. told: number of features of its knowledge of the episode's role, 0 without any.
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
        """The number of choices of a decision: the verdicts, and continuing."""
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


def agents_of(
    protocol: Protocol, given: Mapping[str, Settings], default: Callable[[], Settings]
) -> dict[str, Settings]:
    """All agents' settings: its own, else those of `_default`, else the result of `default`. Raises UserError for an
    unknown agent."""
    unknown = set(given) - set(protocol.agents) - {"_default"}
    if unknown:
        raise UserError(
            f"scenario.agents: {sorted(unknown)} do not play {protocol.name!r}; its agents are {list(protocol.agents)}"
        )
    serves = given["_default"] if "_default" in given else default()
    return {agent: given.get(agent, serves) for agent in protocol.agents}


class NamingScenario(Scenario):
    """Agents name parts of their observations: nodes of graphs, latent pixels.

    agents: agent -> settings of its networks. shared_body: policy and value share a body. central_critic: values see
    the whole state.
    """

    def __init__(
        self,
        protocol: Protocol,
        agents: Mapping[str, Any],
        *,
        shared_body: bool = False,
        central_critic: bool = False,
        message_size: int = 1,
        linear_symbols: int = 0,
    ) -> None:
        self.protocol, self.agents, self.shared_body, self.central_critic = (
            protocol,
            dict(agents),
            shared_body,
            central_critic,
        )
        self.message_size, self.linear_symbols = message_size, linear_symbols
        self.seats = {agent: seat(protocol, agent, message_size, linear_symbols) for agent in protocol.agents}
        everything = tuple(range(len(protocol.channels)))  # input of a central critic
        self.critic_seats = {
            agent: replace(at, reads=everything) if central_critic else at for agent, at in self.seats.items()
        }

    @abstractmethod
    def shown(self, agent: str, id_N: Tensor, said: Dialogue) -> dict[str, Tensor]:
        """The part of the instances that `agent` sees."""

    @abstractmethod
    def named(self, at: Seat, said: Dialogue, round_N: Tensor) -> tuple[Tensor, Tensor]:
        """Times each part was named, in the channels that seat `at` reads: in each round, and in the latest."""

    def latest(self, at: Seat, by_round_NRLX: Tensor, round_N: Tensor) -> Tensor:
        """(N, L, ...) of counts by round (N, R, L, ...), 0 in future rounds: of the round before, as published.

        For an agent that reads channels separately: the last counts of each channel that are not all 0, so that the
        second of two provers that answer in turns still sees its question.
        """
        # empty in round 0
        last_NL = (round_N - 1).clamp(0, at.rounds - 1)[:, None].expand(-1, at.latest_features)
        if self.agents[at.agent].channels == "apart":
            number_R1 = torch.arange(1, at.rounds + 1, device=round_N.device)[:, None]
            last_NL = ((by_round_NRLX.flatten(3).amax(-1) > 0) * number_R1).amax(1).sub(1).clamp_min(0)
        place = last_NL.view(len(last_NL), 1, at.latest_features, *[1] * (by_round_NRLX.dim() - 3)).expand(
            -1, -1, -1, *by_round_NRLX.shape[3:]
        )
        return by_round_NRLX.gather(1, place).squeeze(1)

    def observe(self, agent: str, id_N: Tensor, said: Dialogue, round_N: Tensor, seed_N: Tensor) -> dict[str, Tensor]:
        """The observation of `agent`: `turn_masks`, `shown`, and history, latest and linear_history of the messages
        that it reads.

        With a central critic, for the value alone: label (N,), and its further inputs, with `state_` before the names.
        """
        at, critic = self.seats[agent], self.critic_seats[agent]
        obs = turn_masks(self.protocol, agent, self.message_size, round_N, seed_N)
        obs |= self.shown(agent, id_N, said)
        obs |= self._messages(at, said, round_N)
        if self.central_critic:
            obs["label"] = self.label_I[id_N]
            if critic != at:
                obs |= {f"state_{name}": value for name, value in self._messages(critic, said, round_N).items()}
        return obs

    def _messages(self, at: Seat, said: Dialogue, round_N: Tensor) -> dict[str, Tensor]:
        history, latest = self.named(at, said, round_N)
        found = {"history": history, "latest": latest}
        if self.linear_symbols and said.linear is not None:
            found["linear_history"] = symbol_counts(said.linear, at.reads, self.linear_symbols).flatten(1)
        return found


def naming_options(settings: Any) -> dict[str, Any]:
    """The options of `NamingScenario` in a scenario's settings."""
    return {
        name: getattr(settings, name) for name in ("shared_body", "central_critic", "message_size", "linear_symbols")
    }


def symbol_counts(said_NRACM: Tensor, reads: tuple[int, ...], num_symbols: int) -> Tensor:
    """(N, R * channels * M, symbols) float: the number of agents that sent each symbol, by round, channel that is read,
    and position."""
    said_NFA = said_NRACM[:, :, :, list(reads)].permute(0, 1, 3, 4, 2).flatten(1, 3)
    spread = torch.zeros(*said_NFA.shape[:2], num_symbols + 1, device=said_NFA.device)
    one = torch.ones((), device=said_NFA.device).expand(said_NFA.shape)
    # silence goes to the end and is cut off
    spread.scatter_add_(2, torch.where(said_NFA < 0, num_symbols, said_NFA), one)
    return spread[..., :num_symbols].contiguous()
