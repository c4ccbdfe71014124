"""Games whose position follows from a start and the moves made: positions are carried along in play and walked through once in learning.

Decisions that matter here:
- a position is still a pure function of id and tokens (`position_at` replays them), so that observations can be rebuilt anywhere;
  carrying it along only saves the work of doing so in every round;
- copies in which nobody has spoken stay as they are and are paid nothing: that is how ended copies look, and rounds yet to come.
"""

from abc import ABC, abstractmethod
from typing import Generic, TypeVar

import torch
from torch import Tensor

from nip_ray.play.scenario import Dialogue
from nip_ray.protocols import Judgement

Position = TypeVar("Position")


class GameRules(ABC, Generic[Position]):
    """The rules of a game with positions, for B copies at once."""

    @abstractmethod
    def start(self, id_B: Tensor) -> Position:
        """The first position of the instances `id_B`."""

    @abstractmethod
    def advance(self, position: Position, said_BACM: Tensor) -> tuple[Position, Judgement]:
        """The position after one protocol round in which `said_BACM` was said (-1: nothing), what that pays, and which games it ends."""

    @abstractmethod
    def select(self, position: Position, index_N: Tensor) -> Position:
        """Some of the copies, in this order; one may come several times."""

    @abstractmethod
    def view(self, agent: str, position: Position, round_N: Tensor, seed_N: Tensor) -> dict[str, Tensor]:
        """What `agent` sees of the N copies of `position` before `round_N`; see `Scenario.observe`."""


def position_at(rules: GameRules[Position], id_N: Tensor, said: Dialogue) -> Position:
    """Where N copies stand after all that `said` holds."""
    position = rules.start(id_N)
    spoken_R = (said.main >= 0).flatten(2).any(-1).any(0)
    for r in range(int(spoken_R.nonzero().amax()) + 1 if bool(spoken_R.any()) else 0):
        position, _ = rules.advance(position, said.main[:, r])
    return position


def views_along(
    rules: GameRules[Position], agent: str, id_B: Tensor, seed_B: Tensor, said: Dialogue, copy_N: Tensor, round_N: Tensor
) -> dict[str, Tensor]:
    """What `agent` saw in the copies `copy_N` before the rounds `round_N` (each (N,)), N at least 1, by one walk through B games."""
    position, parts, places = rules.start(id_B), [], []
    last = int(round_N.max())
    for r in range(last + 1):
        place_K = (round_N == r).nonzero().flatten()
        if len(place_K):
            copy_K = copy_N[place_K]
            parts.append(rules.view(agent, rules.select(position, copy_K), round_N[place_K], seed_B[copy_K]))
            places.append(place_K)
        if r < last:
            position, _ = rules.advance(position, said.main[:, r])
    back_N = torch.empty_like(copy_N)
    back_N[torch.cat(places)] = torch.arange(len(copy_N), device=copy_N.device)
    return {name: torch.cat([part[name] for part in parts])[back_N] for name in parts[0]}
