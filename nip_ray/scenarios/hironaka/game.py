"""Many polyhedra games as one state: start, step, and payments.

Decisions that matter here:
- the state holds the points themselves, whole numbers at the start, and only observations are scaled. The published
  code scales the state, whose rounding then decides which points are equal (`scale_state` does so, to repeat its
  results);
- a game that has ended stays bit-identical, and is paid nothing; so does a game with an illegal move, except that the
  round counts;
- a step limit cuts a game (`cut_B`), it does not end it (`over_B`): learners have to bootstrap there;
- a step reads nothing back from the device. `trimmed` and `select` do or need it; callers may use them between steps.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from nip_ray.errors import UserError
from nip_ray.scenarios.hironaka import encode, polytope, rules
from nip_ray.scenarios.hironaka.thom import thom_points
from nip_ray.settings.hironaka import MAX_POINTS, HironakaSettings


@dataclass(frozen=True)
class State:
    """B games. points: (B, rows, d), ordered, rows at most the settings' `max_points`; count_B: points of each;
    round_B: rounds played.

    over_B: one point is left, the host has won. cut_B: cut off by the round limit.
    """

    points: Tensor
    count_B: Tensor
    round_B: Tensor
    over_B: Tensor
    cut_B: Tensor

    @property
    def games(self) -> int:
        """B."""
        return len(self.round_B)

    @property
    def open_B(self) -> Tensor:
        """(B,) bool: neither over nor cut."""
        return ~(self.over_B | self.cut_B)

    def select(self, index_N: Tensor) -> "State":
        """Some of the games."""
        points = rules.from_planes(rules.planes(self.points).index_select(2, index_N))
        return State(points, *(part[index_N] for part in (self.count_B, self.round_B, self.over_B, self.cut_B)))

    def trimmed(self) -> "State":
        """The same games without rows that none of them uses. Reads one number back from the device."""
        rows = max(1, int(self.count_B.max())) if self.games else 1
        return replace(self, points=self.points[:, :rows])

    def put(self, index_N: Tensor, fresh: "State") -> "State":
        """These games, with `fresh` ones (N of them) at the places `index_N`."""
        rows = max(self.points.shape[1], fresh.points.shape[1])
        x_MDB = _padded(self.points, rows).index_copy(2, index_N, _padded(fresh.points, rows))
        pairs = [(getattr(self, name), getattr(fresh, name)) for name in ("count_B", "round_B", "over_B", "cut_B")]
        return State(rules.from_planes(x_MDB), *(old.index_copy(0, index_N, new) for old, new in pairs))


@dataclass(frozen=True)
class Outcome:
    """The outcome of one step of B games. Games that had ended before have zeros and False throughout.

    host_reward_B, agent_reward_B: the pay. terminated_B: the game ended in this round. truncated_B: it was cut in this
    round. moved_B: the move was legal.
    """

    host_reward_B: Tensor
    agent_reward_B: Tensor
    terminated_B: Tensor
    truncated_B: Tensor
    moved_B: Tensor


class Game:
    """The game of `settings` on one device. choices_KD: (K, d) bool, the host's classes."""

    def __init__(self, settings: HironakaSettings | None = None, device: torch.device | str = "cpu") -> None:
        """Raises UserError for an impossible dimension or number of points."""
        self.settings, self.device = settings or HironakaSettings(), torch.device(device)
        if self.settings.max_points > MAX_POINTS:
            raise UserError(f"max_points: got {self.settings.max_points}, expected at most {MAX_POINTS}")
        if self.settings.starts != "random":
            thom_points(self.settings)  # raises if there are none
        self.dtype = torch.float32 if self.settings.precision == "single" else torch.float64
        self.choices_KD = encode.choices(self.settings.dimension).to(self.device)
        self._reduce: Callable[[Tensor], Tensor] = rules.minimal_ordered
        if self.settings.polytope == "exact":
            self._reduce = lambda points: rules.ordered(polytope.exact(points))

    def start(self, points_BMD: Tensor) -> State:
        """Games that start from these points, of at most `max_points` rows; negative rows are padding.

        Raises UserError for another shape, numbers that are not finite or too large, rows of mixed sign and games
        without a point.
        """
        points_BMD = points_BMD.to(self.device, self.dtype)
        self._check(points_BMD)
        return self._start(points_BMD)

    def random_points(self, games: int, generator: torch.Generator) -> Tensor:
        """(games, max_points, d): whole numbers from 0 to `max_value`, uniform and independent; or `same_points`."""
        if self.settings.starts != "random":
            return self.same_points(games)
        shape = (self.settings.max_points, self.settings.dimension, games)
        high = self.settings.max_value + 1
        return rules.from_planes(torch.randint(high, shape, generator=generator, device=self.device, dtype=self.dtype))

    def same_points(self, games: int) -> Tensor:
        """(games, points, d): the points that all games start with if `starts` is not random."""
        return torch.tensor(thom_points(self.settings), dtype=self.dtype, device=self.device).repeat(games, 1, 1)

    def random_start(self, games: int, generator: torch.Generator) -> State:
        """Games that start from `random_points`. Some may be over after the reduction."""
        return self._start(self.random_points(games, generator))

    def step(self, state: State, class_B: Tensor, axis_B: Tensor) -> tuple[State, Outcome]:
        """One round of every game: the host's choices as classes (B,), the agent's coordinates (B,), both int64.

        Numbers that are not a class, or not a coordinate of the choice, are illegal moves.
        """
        choice_BD = self.chosen(class_B)
        open_B = state.open_B
        moved_B = open_B & rules.legal(choice_BD, axis_B)
        new = rules.shift(state.points, choice_BD, axis_B)
        if self.settings.reposition:
            new = rules.reposition(new)
        new = self._scaled(self._reduce(rules.guard(new)))
        points = rules.from_planes(torch.where(moved_B, rules.planes(new), rules.planes(state.points)))
        count_B = rules.count(points)
        over_B = state.over_B | (open_B & (count_B <= 1))
        round_B = state.round_B + open_B
        cut_B = state.cut_B | (open_B & ~over_B & (round_B >= self.settings.max_rounds))
        return State(points, count_B, round_B, over_B, cut_B), self._outcome(
            state, open_B, moved_B, count_B, over_B, cut_B
        )

    def chosen(self, class_B: Tensor) -> Tensor:
        """(B, d) bool: the coordinates of the host's choices, none for an invalid class."""
        known_B = (class_B >= 0) & (class_B < len(self.choices_KD))
        return self.choices_KD[class_B.clamp(0, len(self.choices_KD) - 1)] & known_B[:, None]

    def _outcome(
        self, old: State, open_B: Tensor, moved_B: Tensor, count_B: Tensor, over_B: Tensor, cut_B: Tensor
    ) -> Outcome:
        ended_B = open_B & over_B
        host_B = ended_B.float()
        if self.settings.host_reward == "win_and_points":
            host_B = host_B + (old.count_B - count_B)  # points only leave in games that move
        if self.settings.agent_reward == "survive":
            agent_B = (open_B & ~over_B).float()
        else:
            agent_B = -ended_B.float()
            if self.settings.agent_reward == "lose_and_points":
                agent_B = agent_B - (old.count_B - count_B)
        return Outcome(host_B, agent_B, ended_B, open_B & cut_B, moved_B)

    def features(self, state: State) -> Tensor:
        """(B, max_points, d): the players' observation of the points."""
        return rules.features(state.points, self.settings.max_points, self.settings.scale_observation)

    def _start(self, points_BMD: Tensor) -> State:
        points = self._scaled(self._reduce(points_BMD) if self.settings.reduce_start else rules.ordered(points_BMD))
        count_B = rules.count(points)
        none_B = torch.zeros_like(count_B, dtype=torch.bool)
        return State(points, count_B, torch.zeros_like(count_B), count_B <= 1, none_B)

    def _scaled(self, points_BMD: Tensor) -> Tensor:
        return rules.rescale(points_BMD) if self.settings.scale_state else points_BMD

    def _check(self, points_BMD: Tensor) -> None:
        most, dimension = self.settings.max_points, self.settings.dimension
        if points_BMD.dim() != 3 or not 1 <= points_BMD.shape[1] <= most or points_BMD.shape[2] != dimension:
            raise UserError(
                f"points: got shape {tuple(points_BMD.shape)}, expected (games, 1 to {most} points, {dimension}"
                " coordinates)"
            )
        if not bool((points_BMD.abs() <= rules.LARGEST).all()):  # also false for NaN
            raise UserError(f"points: expected finite numbers of at most {rules.LARGEST:g}")
        negative_BMD = points_BMD < 0
        if bool((negative_BMD.any(-1) != negative_BMD.all(-1)).any()):
            raise UserError(
                f"points: expected coordinates of at least 0, or rows of {rules.PADDING:g} throughout as padding"
            )
        if bool(negative_BMD.all(-1).all(-1).any()):
            raise UserError("points: expected at least one point in each game")


def _padded(points_BMD: Tensor, rows: int) -> Tensor:
    """(rows, d, B): planes with padding up to `rows`."""
    x_MDB = rules.planes(points_BMD)
    if len(x_MDB) == rows:
        return x_MDB
    return torch.cat((x_MDB, x_MDB.new_full((rows - len(x_MDB), *x_MDB.shape[1:]), rules.PADDING)))
