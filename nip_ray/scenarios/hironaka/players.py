"""Players without weights, all games at once.

A player is a module ``forward(points, choice, generator) -> score``: points (B, rows, d), the state's own, unscaled;
choice (B, d) bool, the host's, None for a host; score (B, K) floats, whose largest legal one is the move
(K = 2^d - d - 1 classes of a host, d coordinates of an agent). `draws`: True if its moves are random; then it needs a
generator. Scores of finished games are arbitrary.

Decisions that matter here:
- scores instead of moves: the largest of independent uniform numbers is a uniform choice, masks work on all players
  alike, and networks are players unchanged;
- scripted hosts read unscaled points, so that their ties are ties of whole numbers;
- the published Zeillinger host takes the first of tied pairs in the order of its list, which is ours (`rules.ordered`):
  pairs (i, j), i < j, in lexicographic order. Only an unreduced start has another order there, that of the draw;
- the published weak Spivakovsky host uses the supports of points that are not moved to the coordinate planes. They are
  full after the first moves, and it repeats its first answer forever. Here points are moved first; points of zeros
  alone, which no subset meets, are left out, and subsets are taken from all coordinates.
"""

from collections.abc import Callable
from itertools import combinations
from typing import Literal

import torch
from torch import Tensor, nn

from nip_ray.errors import UserError
from nip_ray.scenarios.hironaka import encode, rules
from nip_ray.scenarios.hironaka.game import Game, State

Role = Literal["host", "agent"]


class Player(nn.Module):
    """The base of the players below: `draws` and the number of coordinates."""

    draws = False

    def __init__(self, dimension: int) -> None:
        super().__init__()
        self.dimension, self.classes = dimension, encode.num_choices(dimension)

    def noise(self, points_BMD: Tensor, width: int, generator: torch.Generator | None) -> Tensor:
        """(B, width) uniform numbers. Raises UserError without a generator: torch's global one is never used."""
        if generator is None:
            raise UserError(f"{type(self).__name__}: draws its moves and needs a generator")
        return torch.rand(len(points_BMD), width, generator=generator, device=points_BMD.device)

    def only(self, class_B: Tensor, width: int) -> Tensor:
        """(B, width) scores: 1 for one move per game, else 0."""
        return torch.zeros(len(class_B), width, device=class_B.device).scatter_(1, class_B[:, None], 1.0)


class RandomHost(Player):
    """A uniform subset, or a uniform pair."""

    draws = True
    unfit_1K: Tensor

    def __init__(self, dimension: int, pairs: bool = True) -> None:
        super().__init__(dimension)
        sizes_1K = encode.choices(dimension).sum(1)[None]
        self.register_buffer("unfit_1K", (sizes_1K > 2) & pairs)

    def forward(self, points: Tensor, choice: Tensor | None = None, generator: torch.Generator | None = None) -> Tensor:
        """See the module."""
        return self.noise(points, self.classes, generator).masked_fill(self.unfit_1K, -1.0)


class Fixed(Player):
    """The same order of preference in every game, given by the scores."""

    score_1K: Tensor

    def __init__(self, score_K: Tensor, dimension: int) -> None:
        super().__init__(dimension)
        self.register_buffer("score_1K", score_K.float()[None], persistent=False)  # not a weight: not in checkpoints

    def forward(self, points: Tensor, choice: Tensor | None = None, generator: torch.Generator | None = None) -> Tensor:
        """See the module."""
        return self.score_1K.to(points.device).expand(len(points), -1)


class Zeillinger(Player):
    """Of all pairs of points the difference v with the smallest (L, S): coordinates {of its minimum, of its maximum}.

    L = max v - min v; S = joint count of the maximum and the minimum in v. The first of several minima, and of several
    pairs; coordinates 0 and 1 if v is constant.
    """

    def forward(self, points: Tensor, choice: Tensor | None = None, generator: torch.Generator | None = None) -> Tensor:
        """See the module."""
        x_MDB = rules.planes(points)
        if len(x_MDB) == 1:  # no pair: every game is over
            return self.only(torch.zeros(len(points), dtype=torch.int64, device=points.device), self.classes)
        first_P, second_P = torch.triu_indices(len(x_MDB), len(x_MDB), 1, device=points.device)
        pair_B = self._pair(x_MDB, first_P, second_P)[None, None].expand(1, self.dimension, -1)
        v_DB = (x_MDB.gather(0, first_P[pair_B]) - x_MDB.gather(0, second_P[pair_B]))[0]
        low_B, high_B = v_DB.T.argmin(1), v_DB.T.argmax(1)
        constant_B = low_B == high_B
        low_B, high_B = torch.where(constant_B, 0, low_B), torch.where(constant_B, 1, high_B)
        class_B = (1 << low_B) + (1 << high_B) - torch.maximum(low_B, high_B) - 2
        return self.only(class_B, self.classes)

    def _pair(self, x_MDB: Tensor, first_P: Tensor, second_P: Tensor) -> Tensor:
        """(B,) int64: the number of the pair with the smallest (L, S), the first such one."""
        planes = [(x_MDB[first_P, k], x_MDB[second_P, k]) for k in range(self.dimension)]
        least_PB = most_PB = planes[0][0] - planes[0][1]
        for p_PB, q_PB in planes[1:]:
            v_PB = p_PB - q_PB
            least_PB, most_PB = torch.minimum(least_PB, v_PB), torch.maximum(most_PB, v_PB)
        length_PB = (most_PB - least_PB).masked_fill_(x_MDB[second_P, 0] < 0, torch.inf)  # padding comes last in a game
        ends_PB = torch.zeros(length_PB.shape, dtype=torch.int32, device=x_MDB.device)
        for p_PB, q_PB in planes:
            v_PB = p_PB - q_PB
            ends_PB += v_PB == most_PB
            ends_PB += v_PB == least_PB
        pairs = len(first_P)
        place_P1 = torch.arange(pairs, dtype=torch.int32, device=x_MDB.device)[:, None]
        unfit = torch.iinfo(torch.int32).max
        key_PB = torch.where(length_PB == length_PB.amin(0), ends_PB * pairs + place_P1, unfit)
        return (key_PB.amin(0) % pairs).long()


class WeakSpivakovsky(Player):
    """The smallest subset (of at least two coordinates) in which every point, moved to the coordinate planes, has a
    nonzero coordinate.

    The first of several in lexicographic order of their coordinates.
    """

    binary_K: Tensor

    def __init__(self, dimension: int) -> None:
        super().__init__(dimension)
        subsets = [c for size in range(2, dimension + 1) for c in combinations(range(dimension), size)]
        self.register_buffer("binary_K", torch.tensor([sum(1 << k for k in subset) for subset in subsets]))

    def forward(self, points: Tensor, choice: Tensor | None = None, generator: torch.Generator | None = None) -> Tensor:
        """See the module."""
        x_MDB = rules.planes(rules.reposition(points))
        support_MB = torch.zeros_like(x_MDB[:, 0], dtype=torch.int64)
        for k in range(self.dimension):
            support_MB += (x_MDB[:, k] > 0).long() << k
        free_MB = support_MB == 0  # points of zeros, and padding
        best_B = self.binary_K[-1].expand(len(points))
        for binary in self.binary_K.flip(0)[1:]:  # the last one to fit is the first in order
            fits_B = (((support_MB & binary) != 0) | free_MB).all(0)
            best_B = torch.where(fits_B, binary, best_B)
        return self.only(encode.class_of(encode.bits(best_B, self.dimension)), self.classes)


class RandomAgent(Player):
    """A uniform coordinate of the host's choice (masked by the caller)."""

    draws = True

    def forward(self, points: Tensor, choice: Tensor | None = None, generator: torch.Generator | None = None) -> Tensor:
        """See the module."""
        return self.noise(points, self.dimension, generator)


HOSTS: dict[str, Callable[[int], Player]] = {
    "random": RandomHost,
    "random_all": lambda dimension: RandomHost(dimension, pairs=False),
    # the last class
    "all_coordinates": lambda dimension: Fixed(torch.arange(encode.num_choices(dimension)), dimension),
    "zeillinger": Zeillinger,
    "weak_spivakovsky": WeakSpivakovsky,
}
"""Hosts by name, made from the dimension."""

AGENTS: dict[str, Callable[[int], Player]] = {
    "random": RandomAgent,
    "choose_first": lambda dimension: Fixed(-torch.arange(dimension), dimension),
    "choose_last": lambda dimension: Fixed(torch.arange(dimension), dimension),
}
"""Agents by name."""


def scripted(role: Role, name: str, dimension: int) -> Player:
    """The scripted player of a name with underscores or hyphens. Raises UserError for an unknown name or role."""
    tables = {"host": HOSTS, "agent": AGENTS}
    if role not in tables:
        raise UserError(f"role: got {role!r}, expected host or agent")
    table = tables[role]
    if (found := name.replace("-", "_")) not in table:
        raise UserError(f"{role}: unknown player {name!r}, expected one of {', '.join(table)}")
    return table[found](dimension)


def choose(player: Player, game: Game, state: State, choice_BD: Tensor | None, generator: torch.Generator) -> Tensor:
    """(B,) int64: the player's best legal moves. choice_BD: the host's choice, None for the host."""
    return encode.masked(player(state.points, choice_BD, generator), choice_BD).argmax(1)
