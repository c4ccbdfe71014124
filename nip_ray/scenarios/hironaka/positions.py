"""The game for the batched core: one protocol round for the host's choice, one for the agent's coordinate.

Decisions that matter here:
- the state is `Game`'s own, carried along: a round is bit-identical to `Game.step`;
- an illegal symbol is not an error but a lost round: nothing moves, and the round counts. Our networks and scripted
  players cannot choose one: "legal" masks their logits;
- players without weights see the points unscaled, so that ties are ties of whole numbers; a network sees
  `Game.features`.
"""

from collections.abc import Collection
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from nip_ray.play.core import turn_masks
from nip_ray.play.rollout import GameRules
from nip_ray.protocols import Judgement, Protocol
from nip_ray.scenarios.hironaka import rules
from nip_ray.scenarios.hironaka.game import Game, State
from nip_ray.scenarios.hironaka.starts import mixed, start

_LUCK = 2**16  # number of values of an episode's luck


@dataclass(frozen=True)
class Position:
    """B games. state: the points. class_B: the host's choice that the agent must answer, -1 if the host's turn."""

    id_B: Tensor
    state: State
    class_B: Tensor


class Rules(GameRules[Position]):
    """The rules under `protocol`. seed: of the random starts. scripted: the roles played without weights."""

    def __init__(
        self, game: Game, protocol: Protocol, num_symbols: int, seed: int = 0, scripted: Collection[str] = ()
    ) -> None:
        self.game, self.protocol, self.num_symbols, self.seed, self.scripted = (
            game,
            protocol,
            num_symbols,
            seed,
            frozenset(scripted),
        )

    def start(self, id_B: Tensor) -> Position:
        """See `starts.start`."""
        return Position(id_B, start(self.game, self.seed, id_B), torch.full_like(id_B, -1))

    def advance(self, position: Position, said_BACM: Tensor) -> tuple[Position, Judgement]:
        """The host's symbol is its class, the agent's its coordinate. Both are paid when the agent has moved."""
        host_B, axis_B = said_BACM[..., 0].amax(-1).unbind(1)
        class_B = torch.where(host_B >= 0, host_B, position.class_B)
        moved_B = axis_B >= 0
        if not bool(moved_B.any()):
            nothing_B2 = torch.zeros(len(class_B), 2, device=class_B.device)
            return replace(position, class_B=class_B), Judgement(nothing_B2, torch.zeros_like(moved_B))
        held = replace(position.state, cut_B=~moved_B)  # a game that is cut off stays unchanged
        state, outcome = self.game.step(held, class_B, axis_B)
        state = replace(state, cut_B=torch.where(moved_B, state.cut_B, position.state.cut_B)).trimmed()
        after = Position(position.id_B, state, torch.where(moved_B, -1, class_B))
        paid_B2 = torch.stack((outcome.host_reward_B, outcome.agent_reward_B), 1)
        return after, Judgement(paid_B2.float(), outcome.terminated_B)

    def select(self, position: Position, index_N: Tensor) -> Position:
        """Some of the games."""
        return Position(position.id_B[index_N], position.state.select(index_N), position.class_B[index_N])

    def put(self, position: Position, index_N: Tensor, other: Position) -> Position:
        """The games with `other` at the places `index_N`."""
        return Position(
            position.id_B.index_copy(0, index_N, other.id_B),
            position.state.put(index_N, other.state),
            position.class_B.index_copy(0, index_N, other.class_B),
        )

    def view(self, agent: str, position: Position, round_N: Tensor, seed_N: Tensor) -> dict[str, Tensor]:
        """ "points" (N, m, d): features, or for a player without weights the points; padding -1. "scale" (N,): their
        divisor. "legal" (N, S) bool. "luck" (N,) int64: one number for each episode, for players that draw. The
        agent also has "choice" (N, d), the host's choice; all zeros, with every coordinate legal, if it is the
        host's turn."""
        state, game = position.state, self.game
        scaled = game.settings.scale_observation and agent not in self.scripted
        points = rules.features(state.points, game.settings.max_points, scaled)
        obs = turn_masks(self.protocol, agent, 1, round_N, seed_N)
        obs["points"] = points if agent in self.scripted else points.float()
        largest_N = state.points.amax((1, 2)).float()
        obs["scale"] = torch.where(largest_N > 0, largest_N, 1.0) if scaled else torch.ones_like(largest_N)
        obs["luck"] = mixed(mixed(position.id_B) + seed_N) & (_LUCK - 1)
        if agent == "host":
            legal_NK = torch.ones(len(round_N), len(game.choices_KD), dtype=torch.bool, device=round_N.device)
        else:
            choice_ND = (
                game.choices_KD[position.class_B.clamp(0, len(game.choices_KD) - 1)] & (position.class_B >= 0)[:, None]
            )
            obs["choice"] = choice_ND.float()
            legal_NK = choice_ND | ~choice_ND.any(1, keepdim=True)
        obs["legal"] = torch.nn.functional.pad(legal_NK, (0, self.num_symbols - legal_NK.shape[1]))
        return obs
