"""The strength of a pair of players: games per round, counted in the published ways.

Decisions that matter here:
- the published validator plays game after game and counts those started within a fixed number of rounds. Games are
  independent, so their lengths can be drawn in any order: here many games are played side by side to their ends, and
  then lined up by number, as if the next started when the one before had ended. The count has exactly the distribution
  of the sequential one. Lining them up in the order in which they *end* would be wrong: short games would come first;
- a game that is not over after 1000 rounds is cut by the published validator after its 1001st round, which counts; so
  it is here;
- numbers are of double precision, whole and exact up to 2^53; starts are not reduced. The published validator's list is
  unordered before the first move, ours is ordered, which only affects a host that breaks ties by order, in the first
  round.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from nip_ray.errors import UserError
from nip_ray.scenarios.hironaka.game import Game
from nip_ray.scenarios.hironaka.players import Player, choose
from nip_ray.seeding import generator
from nip_ray.settings.hironaka import HironakaSettings

PUBLISHED = HironakaSettings(max_rounds=1000, reduce_start=False, scale_state=True, precision="double")
"""20 points in three dimensions, values 0 to 19, not reduced at the start, cut off beyond 1000 rounds."""

_SMALLEST, _LARGEST = 64, 4096  # games side by side


@dataclass(frozen=True)
class Played:
    """G games played to their end. length_G: rounds (0: over at the start); over_G: the host won (else cut off).

    game_T, class_T, axis_T: all their rounds, in order by game: the game, the host's class, the agent's coordinate.
    """

    length_G: Tensor
    over_G: Tensor
    game_T: Tensor
    class_T: Tensor
    axis_T: Tensor

    @property
    def taken_G(self) -> Tensor:
        """Rounds of a match that each game takes: at least the one in which it is found to be over."""
        return self.length_G.clamp(min=1)

    @classmethod
    def joined(cls, parts: Sequence["Played"]) -> "Played":
        """Several concatenated (at least one)."""
        first_P = [0, *accumulate(len(part.length_G) for part in parts)]
        return cls(
            torch.cat([part.length_G for part in parts]),
            torch.cat([part.over_G for part in parts]),
            torch.cat([part.game_T + first for part, first in zip(parts, first_P)]),
            torch.cat([part.class_T for part in parts]),
            torch.cat([part.axis_T for part in parts]),
        )


@dataclass(frozen=True)
class MatchResult:
    """A match of `rounds` rounds.

    games: games begun, the published count. lengths: the rounds of each within the match; the last one may be
    unfinished. unfinished: games that were cut off by the round limit. host_actions, agent_actions: counts of each
    class and each coordinate within the match. standard_error: of `games`, by renewal theory, from the lengths' spread.
    """

    rounds: int
    games: int
    lengths: tuple[int, ...]
    unfinished: int
    host_actions: tuple[int, ...]
    agent_actions: tuple[int, ...]
    standard_error: float

    @property
    def per_round(self) -> float:
        """Games begun per round: the validator's estimate of rho."""
        return self.games / self.rounds

    def record(self) -> dict[str, Any]:
        """As plain JSON. mean_length and longest are of the games that ended within the match, None if none did."""
        ended = self.lengths[:-1]
        return {
            "rounds": self.rounds,
            "games": self.games,
            "games_per_round": self.per_round,
            "standard_error": self.standard_error,
            "unfinished": self.unfinished,
            "mean_length": sum(ended) / len(ended) if ended else None,
            "longest": max(ended, default=None),
            "host_actions": list(self.host_actions),
            "agent_actions": list(self.agent_actions),
        }


@torch.no_grad()
def play_out(game: Game, host: Player, agent: Player, games: int, draw: torch.Generator) -> Played:
    """Play `games` random games until each is over or cut off."""
    device = game.device
    length_G = torch.zeros(games, dtype=torch.int64, device=device)
    over_G = torch.zeros(games, dtype=torch.bool, device=device)
    rounds: list[tuple[Tensor, ...]] = [(torch.zeros(0, dtype=torch.int64, device=device),) * 3]
    state, number_B = game.random_start(games, draw), torch.arange(games, device=device)
    while True:
        open_B = state.open_B
        index_N = open_B.nonzero()[:, 0]
        if len(index_N) < len(open_B):
            length_G[number_B], over_G[number_B] = state.round_B, state.over_B
            state, number_B = state.select(index_N).trimmed(), number_B[index_N]
        if len(index_N) == 0:
            return Played(length_G, over_G, *(torch.cat(column) for column in zip(*rounds, strict=True)))
        class_B = choose(host, game, state, None, draw)
        axis_B = choose(agent, game, state, game.choices_KD[class_B], draw)
        rounds.append((number_B, class_B, axis_B))
        state, _ = game.step(state, class_B, axis_B)


def match(
    host: Player,
    agent: Player,
    rounds: int = 10_000,
    seed: int = 0,
    settings: HironakaSettings = PUBLISHED,
    device: str = "cpu",
) -> MatchResult:
    """Play game after game for `rounds` rounds. Raises UserError for fewer than one.

    settings.max_rounds: as in the published validator a game is cut after the following round.
    """
    if rounds < 1:
        raise UserError(f"rounds: got {rounds}, expected at least 1")
    game = Game(replace(settings, max_rounds=settings.max_rounds + 1), device)
    draw = generator(seed, "match", device=game.device)
    parts, played, spent = [], 0, 0
    while spent <= rounds:  # one more game than fills them, which starts as the match ends
        wanted = rounds / 100 if not spent else 1.1 * (rounds - spent) * played / spent
        parts.append(play_out(game, host, agent, max(_SMALLEST, min(_LARGEST, round(wanted))), draw))
        played, spent = played + len(parts[-1].length_G), spent + int(parts[-1].taken_G.sum())
    return _counted(Played.joined(parts), rounds, *game.choices_KD.shape)


def _counted(played: Played, rounds: int, classes: int, dimension: int) -> MatchResult:
    """The first games that fit into `rounds`, the last of them in part or not at all. There must be one more game than
    fills them."""
    taken_G = played.taken_G.double()
    end_G = taken_G.cumsum(0)
    finished = int((end_G <= rounds).sum())
    # a game that starts as the match ends is counted too, as published
    lengths = taken_G[: finished + 1].long().tolist()
    lengths[-1] = min(lengths[-1], rounds - sum(lengths[:-1]))
    last_T = (played.game_T == finished).nonzero()[: lengths[-1], 0]
    within_T = torch.cat(((played.game_T < finished).nonzero()[:, 0], last_T))
    mean, spread = float(taken_G.mean()), float(taken_G.std(correction=0))
    return MatchResult(
        rounds=rounds,
        games=len(lengths),
        lengths=tuple(lengths),
        unfinished=int((~played.over_G[:finished]).sum()),
        host_actions=tuple(torch.bincount(played.class_T[within_T], minlength=classes).tolist()),
        agent_actions=tuple(torch.bincount(played.axis_T[within_T], minlength=dimension).tolist()),
        standard_error=(rounds * spread**2 / mean**3) ** 0.5,
    )
