"""How strong a pair of players is: games per round, counted in the published ways.

Decisions that matter here:
- the published validator plays game after game and counts those begun within a fixed number of rounds. Games are independent of
  each other, so their lengths can be drawn in any order: here many games are played side by side, each to its end, and then lined up
  by their number, as if the next began when the one before had ended. The count has exactly the distribution of the sequential one.
  Lining them up in the order in which they *end* would not do: short games would come first;
- a game that is not over after 1000 rounds is cut by the published validator after its 1001st round, which counts; so here;
- numbers are of double precision, whole and exact up to 2^53; starts are not reduced. The published validator's list is unordered
  before the first move, ours is ordered, which matters to nobody but a host that breaks ties by order, in the first round.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from nip_ray.errors import UserError
from nip_ray.scenarios.hironaka.game import Game
from nip_ray.scenarios.hironaka.players import Player
from nip_ray.scenarios.hironaka.rollout import choose
from nip_ray.seeding import generator
from nip_ray.settings.hironaka import HironakaSettings

PUBLISHED = HironakaSettings(max_rounds=1000, reduce_start=False, scale_state=True, precision="double")
"""20 points in three dimensions, values 0 to 19, not reduced at the start, cut off beyond 1000 rounds."""

_SMALLEST, _LARGEST = 64, 4096  # games side by side


@dataclass(frozen=True)
class Played:
    """G games played to their end. length_G: rounds (0: over at the start); over_G: the host won (else cut off).

    host_GK, agent_GD: how often each class and each coordinate was chosen.
    """

    length_G: Tensor
    over_G: Tensor
    host_GK: Tensor
    agent_GD: Tensor

    def first(self, games: int) -> "Played":
        """The first of them."""
        return Played(*(part[:games] for part in (self.length_G, self.over_G, self.host_GK, self.agent_GD)))


@dataclass(frozen=True)
class MatchResult:
    """A match of `rounds` rounds.

    games: games begun, the published count. lengths: the rounds of each within the match; the last one may be unfinished. unfinished:
    games that were cut off by the round limit. host_actions, agent_actions: how often each class and each coordinate was chosen
    in these games, the last one played to its end. standard_error: of `games`, by renewal theory, from the lengths' spread.
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
        """As plain JSON."""
        return {
            "rounds": self.rounds,
            "games": self.games,
            "games_per_round": self.per_round,
            "standard_error": self.standard_error,
            "unfinished": self.unfinished,
            "mean_length": sum(self.lengths) / len(self.lengths),
            "longest": max(self.lengths),
            "host_actions": list(self.host_actions),
            "agent_actions": list(self.agent_actions),
        }


@dataclass(frozen=True)
class Rho:
    """Games per round of N games that began together.

    published: unfinished games count as games (so it is never below 1 / rounds). finished: they do not. Both are NaN where every game
    was over at the start. over_at_start, unfinished: how many games. length_histogram: number of games by rounds, 0 to the limit.
    """

    published: float
    finished: float
    over_at_start: int
    unfinished: int
    length_histogram: tuple[int, ...]


@torch.no_grad()
def play_out(game: Game, host: Player, agent: Player, games: int, draw: torch.Generator) -> Played:
    """Play `games` random games until each is over or cut off."""
    device, (classes, dimension) = game.device, game.choices_KD.shape
    length_G = torch.zeros(games, dtype=torch.int64, device=device)
    over_G = torch.zeros(games, dtype=torch.bool, device=device)
    host_GK = torch.zeros(games, classes, dtype=torch.int32, device=device)
    agent_GD = torch.zeros(games, dimension, dtype=torch.int32, device=device)
    state, number_B = game.random_start(games, draw), torch.arange(games, device=device)
    while True:
        open_B = state.open_B
        index_N = open_B.nonzero()[:, 0]
        if len(index_N) < len(open_B):
            length_G[number_B], over_G[number_B] = state.round_B, state.over_B
            state, number_B = state.select(index_N).trimmed(), number_B[index_N]
        if len(index_N) == 0:
            return Played(length_G, over_G, host_GK, agent_GD)
        class_B = choose(host, game, state, None, None, draw)
        axis_B = choose(agent, game, state, None, game.choices_KD[class_B], draw)
        host_GK[number_B, class_B] += 1
        agent_GD[number_B, axis_B] += 1
        state, _ = game.step(state, class_B, axis_B)


def match(
    host: Player, agent: Player, rounds: int = 10_000, seed: int = 0, settings: HironakaSettings = PUBLISHED, device: str = "cpu"
) -> MatchResult:
    """Game after game for `rounds` rounds. Raises UserError for fewer than one.

    settings.max_rounds: as in the published validator a game is cut after the round that follows these.
    """
    if rounds < 1:
        raise UserError(f"rounds: got {rounds}, expected at least 1")
    game = Game(replace(settings, max_rounds=settings.max_rounds + 1), device)
    draw = generator(seed, "match", device=game.device)
    parts, played, spent = [], 0, 0
    while spent < rounds:
        wanted = rounds / 100 if not spent else 1.1 * (rounds - spent) * played / spent
        parts.append(play_out(game, host, agent, max(_SMALLEST, min(_LARGEST, round(wanted))), draw))
        played, spent = played + len(parts[-1].length_G), spent + int(_rounds_taken(parts[-1]).sum())
    columns = ([getattr(part, name) for part in parts] for name in ("length_G", "over_G", "host_GK", "agent_GD"))
    return _counted(Played(*(torch.cat(column) for column in columns)), rounds)


def _rounds_taken(played: Played) -> Tensor:
    """(G,) what a game takes of a match: at least the round in which it is found to be over."""
    return played.length_G.clamp(min=1)


def _counted(played: Played, rounds: int) -> MatchResult:
    """The first games that fit into `rounds`, the last of them perhaps in part. The games must fill them."""
    taken_G = _rounds_taken(played).double()
    end_G = taken_G.cumsum(0)
    finished = int((end_G <= rounds).sum())
    begun = played.first(finished + 1)  # a game that begins as the match ends is counted too, as published
    lengths = [int(length) for length in _rounds_taken(begun)]
    lengths[-1] = min(lengths[-1], rounds - sum(lengths[:-1]))
    mean, spread = float(taken_G.mean()), float(taken_G.std(correction=0))
    return MatchResult(
        rounds=rounds,
        games=len(lengths),
        lengths=tuple(lengths),
        unfinished=int((~begun.over_G[:finished]).sum()),
        host_actions=tuple(begun.host_GK.sum(0).tolist()),
        agent_actions=tuple(begun.agent_GD.sum(0).tolist()),
        standard_error=(rounds * spread**2 / mean**3) ** 0.5,
    )


def rho(host: Player, agent: Player, games: int = 100, seed: int = 0, settings: HironakaSettings | None = None, device: str = "cpu") -> Rho:
    """Both estimates from `games` random games of at most `settings.max_rounds` rounds (100 without settings)."""
    game = Game(settings or HironakaSettings(max_rounds=100), device)
    return rho_of(play_out(game, host, agent, games, generator(seed, "rho", device=game.device)), game.settings.max_rounds)


def rho_of(played: Played, max_rounds: int) -> Rho:
    """Both estimates from games that were played out, of at most `max_rounds` rounds each."""
    games = len(played.length_G)
    histogram_L = torch.bincount(played.length_G.cpu(), minlength=max_rounds + 1)
    at_start, unfinished = int((played.length_G == 0).sum()), int((~played.over_G).sum())
    total = int(played.length_G.sum())
    begun = games - at_start
    return Rho(
        published=begun / total if total else float("nan"),
        finished=(begun - unfinished) / total if total else float("nan"),
        over_at_start=at_start,
        unfinished=unfinished,
        length_histogram=tuple(histogram_L.tolist()),
    )
