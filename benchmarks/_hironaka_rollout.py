"""Two players play many games at once, and the observations and moves of one are kept as transitions.

Decisions that matter here:
- only open games are played and kept. Finished ones leave the batch, or are replaced by new random ones (`refill`);
- exploration is uniform over legal moves, and only the player whose transitions are kept explores;
- the agent's next observation has the host's actual next choice, in the following round, not a second answer of it. If
  a game ended there is no next choice: every coordinate is marked, and `terminated` is set. If it was cut, the host
  chooses anyway;
- between rounds one number is read back from the device (the open games); inside a round nothing is.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from nip_ray.errors import UserError
from nip_ray.scenarios.hironaka import encode
from nip_ray.scenarios.hironaka.game import Game, State
from nip_ray.scenarios.hironaka.players import Player, Role, choose
from nip_ray.scenarios.hironaka.starts import open_start


@dataclass(frozen=True)
class Transitions:
    """N moves of one role, those of a round together, rounds in order. K: classes of a host, coordinates of an agent.

    points_NMD: the features before the move. choice_ND: bool, the host's choice that the agent saw, None for the host.
    mask_NK: bool, legal moves. action_N: int64. reward_N: float32. terminated_N, truncated_N: bool, the game ended, or
    was cut off. next_*: the same after the round. game_N: int64, the number of the game in this rollout. round_N:
    int64, rounds played before the move.
    """

    points_NMD: Tensor
    choice_ND: Tensor | None
    mask_NK: Tensor
    action_N: Tensor
    reward_N: Tensor
    terminated_N: Tensor
    truncated_N: Tensor
    next_points_NMD: Tensor
    next_choice_ND: Tensor | None
    next_mask_NK: Tensor
    game_N: Tensor
    round_N: Tensor

    def __len__(self) -> int:
        return len(self.action_N)

    @classmethod
    def joined(cls, parts: Sequence["Transitions"]) -> "Transitions":
        """Several concatenated (at least one)."""
        columns: dict[str, Any] = {field.name: [getattr(part, field.name) for part in parts] for field in fields(cls)}
        whole: dict[str, Any] = {
            name: None if column[0] is None else torch.cat(column) for name, column in columns.items()
        }
        return cls(**whole)


def explored(
    player: Player, game: Game, state: State, choice_BD: Tensor | None, generator: torch.Generator, epsilon: float
) -> Tensor:
    """(B,) int64: the player's best legal moves, or with probability `epsilon` per game a uniform legal one."""
    best_B = choose(player, game, state, choice_BD, generator)
    if epsilon <= 0:
        return best_B
    moves = len(game.choices_KD) if choice_BD is None else game.settings.dimension
    noise_BK = torch.rand(len(best_B), moves, generator=generator, device=best_B.device)
    other_B = encode.masked(noise_BK, choice_BD).argmax(1)
    explores_B = torch.rand(len(best_B), generator=generator, device=best_B.device) < epsilon
    return torch.where(explores_B, other_B, best_B)


class _Table:
    """The games on the table between two rounds: their state, features, numbers, and (for the agent) the host's next
    choice."""

    def __init__(self, game: Game, host: Player, role: Role, generator: torch.Generator, state: State) -> None:
        self.game, self.host, self.asks_ahead, self.generator = game, host, role == "agent", generator
        self.numbers = state.games
        self.put(state, game.features(state), torch.arange(state.games, device=game.device))

    def put(self, state: State, seen: Tensor, number_B: Tensor, class_B: Tensor | None = None) -> None:
        """Set everything; the host chooses where it has not chosen yet."""
        self.state, self.seen, self.number_B = state, seen, number_B
        self.class_B = self.ask(state) if class_B is None and self.asks_ahead else class_B

    def ask(self, state: State) -> Tensor:
        """The host's choices, without exploration."""
        return choose(self.host, self.game, state, None, self.generator)

    def advance(self, state: State, seen: Tensor, class_B: Tensor | None, refill: bool) -> None:
        """After a round: drop finished games, or replace them by new ones."""
        open_B = state.open_B
        if refill:
            index_N = (~open_B).nonzero()[:, 0]
            if len(index_N):
                self._refill(state, seen, class_B, index_N)
                return
        else:
            index_N = open_B.nonzero()[:, 0]
            if len(index_N) < len(open_B):
                chosen = None if class_B is None else class_B[index_N]
                self.put(state.select(index_N), seen.index_select(0, index_N), self.number_B[index_N], chosen)
                return
        self.put(state, seen, self.number_B, class_B)

    def _refill(self, state: State, seen: Tensor, class_B: Tensor | None, index_N: Tensor) -> None:
        fresh = open_start(self.game, len(index_N), self.generator)
        fresh_seen = self.game.features(fresh)
        if class_B is not None:
            class_B = class_B.index_copy(0, index_N, self.ask(fresh))
        number_N = torch.arange(self.numbers, self.numbers + len(index_N), device=self.game.device)
        self.numbers += len(index_N)
        number_B = self.number_B.index_copy(0, index_N, number_N)
        self.put(state.put(index_N, fresh), seen.index_copy(0, index_N, fresh_seen), number_B, class_B)


@torch.no_grad()
def roll_out(
    game: Game,
    host: Player,
    agent: Player,
    role: Role,
    generator: torch.Generator,
    *,
    games: int,
    rounds: int,
    epsilon: float = 0.0,
    refill: bool = False,
    state: State | None = None,
) -> tuple[Transitions, State]:
    """Play up to `rounds` rounds and keep the observations, moves and rewards of `role`.

    games: number of random games to start, unless `state` has them (finished ones are left out). epsilon: exploration
    rate of `role`. refill: replace finished games, so that every round has as many. Networks keep their mode. Returns
    the transitions and the open games, for continuing. Raises UserError for fewer than one round.
    """
    if rounds < 1:
        raise UserError(f"rounds: got {rounds}, expected at least 1")
    start = open_start(game, games, generator) if state is None else state
    if state is not None:
        start = state.select(state.open_B.nonzero()[:, 0]).trimmed()
    table = _Table(game, host, role, generator, start)
    parts = []
    for _ in range(rounds):
        parts.append(_round(game, host, agent, role, table, epsilon, refill))
        if table.state.games == 0:
            break
    return Transitions.joined(parts), table.state


def _round(
    game: Game, host: Player, agent: Player, role: Role, table: _Table, epsilon: float, refill: bool
) -> Transitions:
    """Play one round and move the table on."""
    state, seen, number_B, generator = table.state, table.seen, table.number_B, table.generator
    class_B = table.class_B
    if class_B is None:
        class_B = explored(host, game, state, None, generator, epsilon)
    choice_BD = game.choices_KD[class_B]
    axis_B = explored(agent, game, state, choice_BD, generator, epsilon if role == "agent" else 0.0)
    new, outcome = game.step(state, class_B, axis_B)
    new = new.trimmed()
    next_seen = game.features(new)
    if role == "host":
        mask_BK = next_mask_BK = torch.ones(1, 1, dtype=torch.bool, device=game.device).expand(
            new.games, len(game.choices_KD)
        )
        next_class_B, seen_choice, next_choice, action_B, reward_B = None, None, None, class_B, outcome.host_reward_B
    else:
        next_class_B = table.ask(new)
        next_mask_BK = game.choices_KD[next_class_B] | outcome.terminated_B[:, None]
        mask_BK, seen_choice, next_choice, action_B, reward_B = (
            choice_BD,
            choice_BD,
            next_mask_BK,
            axis_B,
            outcome.agent_reward_B,
        )
    table.advance(new, next_seen, next_class_B, refill)
    return Transitions(
        points_NMD=seen,
        choice_ND=seen_choice,
        mask_NK=mask_BK,
        action_N=action_B,
        reward_N=reward_B,
        terminated_N=outcome.terminated_B,
        truncated_N=outcome.truncated_B,
        next_points_NMD=next_seen,
        next_choice_ND=next_choice,
        next_mask_NK=next_mask_BK,
        game_N=number_B,
        round_N=state.round_B,
    )
