"""The rules of the polyhedra game as pure functions on B games at once.

Points are (B, m, d) floating-point tensors, d >= 2. A row whose first coordinate is negative is padding, PADDING in
every coordinate. No function changes its input, and none reads a number back from the device.

Decisions that matter here:
- results are (B, m, d) views of memory with the layout (m, d, B): with the games innermost every elementary operation
  runs along contiguous memory. Any layout is accepted; results of these functions are passed on without a copy;
- points are compared coordinate by coordinate, in (m, m, B) booleans: there is no tensor of size B m m d, and beyond
  `PAIRS_AT_ONCE` pairs the games are taken in parts. Booleans are summed as bytes, which is some forty times faster on
  a CPU;
- rows of a game are ordered by their coordinates, first coordinate first, largest first, padding last; equal rows keep
  their order. So the order is a function of the set of points;
- sums are taken over the coordinates in rising order. Floating-point addition is monotone, so a point below another
  stays below it even with rounded sums; rounding can make points equal, but cannot reverse an order;
- values that outgrow `LARGEST` are scaled down by a power of two, which rounds nothing. Only a coordinate below about
  2^-200 of the game's largest is lost (it becomes 0).
"""

from collections.abc import Callable

import torch
from torch import Tensor

PADDING = -1.0
LARGEST = 2.0**64
PAIRS_AT_ONCE = 2**22


def planes(points_BMD: Tensor) -> Tensor:
    """(m, d, B), contiguous: the same points with the games innermost. No copy if they are so already."""
    return points_BMD.permute(1, 2, 0).contiguous()


def from_planes(x_MDB: Tensor) -> Tensor:
    """(B, m, d): the inverse of `planes`, a view."""
    return x_MDB.permute(2, 0, 1)


def live(points_BMD: Tensor) -> Tensor:
    """(B, m) bool: mask of points."""
    return points_BMD[..., 0] >= 0


def count(points_BMD: Tensor) -> Tensor:
    """(B,) int64: the number of points of each game."""
    return _sum(planes(points_BMD)[:, 0] >= 0).long()


def legal(choice_BD: Tensor, axis_B: Tensor) -> Tensor:
    """(B,) bool: the host chose at least two coordinates (`choice_BD`, bool), and the agent one of them (`axis_B`,
    int64, of any value)."""
    inside_B = choice_BD.gather(1, axis_B.clamp(0, choice_BD.shape[1] - 1)[:, None])[:, 0]
    return inside_B & (axis_B >= 0) & (axis_B < choice_BD.shape[1]) & (choice_BD.sum(1) >= 2)


def shift(points_BMD: Tensor, choice_BD: Tensor, axis_B: Tensor) -> Tensor:
    """The move: coordinate `axis_B` of each point becomes the sum of its chosen ones. Illegal moves change nothing."""
    x_MDB = planes(points_BMD)
    factor_DB = choice_BD.T.to(x_MDB.dtype)
    total_MB = x_MDB[:, 0] * factor_DB[0]
    for k in range(1, len(factor_DB)):
        total_MB.addcmul_(x_MDB[:, k], factor_DB[k])
    axes_D = torch.arange(len(factor_DB), device=x_MDB.device)
    target_DB = (axes_D[:, None] == axis_B) & legal(choice_BD, axis_B)
    live_MB = x_MDB[:, 0] >= 0
    return from_planes(torch.where(target_DB & live_MB[:, None], total_MB[:, None], x_MDB))


def reposition(points_BMD: Tensor) -> Tensor:
    """Each coordinate less its minimum over the game's points, so that every coordinate plane is touched."""
    x_MDB = planes(points_BMD)
    live_M1B = (x_MDB[:, 0] >= 0)[:, None]
    least_DB = torch.where(live_M1B, x_MDB, torch.inf).amin(0)
    return from_planes(torch.where(live_M1B, x_MDB - least_DB, x_MDB))


def rescale(points_BMD: Tensor) -> Tensor:
    """Each game divided by its largest coordinate; games of zeros alone, and padding, are unchanged."""
    x_MDB = planes(points_BMD)
    largest_B = x_MDB.amax((0, 1))
    divisor_B = torch.where(largest_B > 0, largest_B, 1)
    return from_planes(torch.where(x_MDB < 0, x_MDB, x_MDB / divisor_B))


def guard(points_BMD: Tensor) -> Tensor:
    """Games with a coordinate above LARGEST divided by LARGEST, a power of two; the others unchanged."""
    x_MDB = planes(points_BMD)
    factor_B = torch.where(x_MDB.amax((0, 1)) > LARGEST, 1 / LARGEST, 1.0).to(x_MDB.dtype)
    return from_planes(torch.where(x_MDB < 0, x_MDB, x_MDB * factor_B))


def minimal_mask(points_BMD: Tensor) -> Tensor:
    """(B, m) bool: the points that no other point is below in every coordinate; of equal points only the first."""
    return _in_parts(lambda x_MDB: _minimal(x_MDB, _at_most(x_MDB)), planes(points_BMD)).T


def keep(points_BMD: Tensor, keep_BM: Tensor) -> Tensor:
    """The points of some rows, in place; all other rows are padding."""
    return from_planes(torch.where(keep_BM.T[:, None], planes(points_BMD), PADDING))


def ordered(points_BMD: Tensor) -> Tensor:
    """The points of each game in their order (see above), padding last."""
    return from_planes(_in_parts(lambda x_MDB: _place(x_MDB, _at_most(x_MDB), x_MDB[:, 0] >= 0), planes(points_BMD)))


def minimal_ordered(points_BMD: Tensor) -> Tensor:
    """The points of `minimal_mask` in their order, padding last, for the price of one comparison of all pairs."""

    def reduce(x_MDB: Tensor) -> Tensor:
        at_most = _at_most(x_MDB)
        return _place(x_MDB, at_most, _minimal(x_MDB, at_most))

    return from_planes(_in_parts(reduce, planes(points_BMD)))


def features(points_BMD: Tensor, max_points: int, scale: bool = True) -> Tensor:
    """(B, max_points, d), contiguous: the points for observations, with rows unchanged, scaled (`rescale`) and padded
    to `max_points`.

    The points of a game in progress are ordered; pass other points through `ordered` first.
    """
    x_MDB = planes(rescale(points_BMD) if scale else points_BMD)
    rows, dimension, games = x_MDB.shape
    flat_BX = x_MDB.view(rows * dimension, games).T  # a plain transposition, which torch copies in tiles
    if rows == max_points:
        return flat_BX.contiguous().view(games, rows, dimension)
    out_BX = flat_BX.new_full((games, max_points * dimension), PADDING)
    out_BX[:, : rows * dimension] = flat_BX.contiguous()
    return out_BX.view(games, max_points, dimension)


def _sum(mask_MB: Tensor) -> Tensor:
    """Sum over the first axis, of at most 255 booleans, as bytes."""
    return mask_MB.view(torch.uint8).sum(0, dtype=torch.uint8)


def _in_parts(function: Callable[[Tensor], Tensor], x_MDB: Tensor) -> Tensor:
    """`function` of the games, in parts small enough for their pairs; its result has the games on the last axis."""
    games = max(1, PAIRS_AT_ONCE // len(x_MDB) ** 2)
    if x_MDB.shape[-1] <= games:
        return function(x_MDB)
    return torch.cat([function(part.contiguous()) for part in x_MDB.split(games, -1)], -1)


def _at_most(x_MDB: Tensor) -> list[Tensor]:
    """For each coordinate (m, m, B) bool: [p, q] says that it is at most as large in row p as in row q."""
    return [x_MDB[:, None, k] <= x_MDB[None, :, k] for k in range(x_MDB.shape[1])]


def _earlier(rows: int, device: torch.device) -> Tensor:
    """(m, m, 1) bool: [p, q] says p < q."""
    row_M = torch.arange(rows, device=device)
    return (row_M[:, None] < row_M)[..., None]


def _minimal(x_MDB: Tensor, at_most: list[Tensor]) -> Tensor:
    """(m, B) bool: `minimal_mask`."""
    live_MB = x_MDB[:, 0] >= 0
    below = at_most[0] & live_MB[:, None]  # p is a point, and at or below q
    for one in at_most[1:]:
        below &= one
    # among equal points the first stays; q itself is neither before q nor strictly below it
    strictly = below & (_earlier(len(x_MDB), x_MDB.device) | ~below.transpose(0, 1))
    return live_MB & ~strictly.view(torch.uint8).amax(0).view(torch.bool)


def _place(x_MDB: Tensor, at_most: list[Tensor], keep_MB: Tensor) -> Tensor:
    """(m, d, B): the rows to keep in their order, then padding."""
    rows, dimension, games = x_MDB.shape
    before = _earlier(rows, x_MDB.device)
    for one in reversed(at_most):  # p before q: larger here, or not smaller here and before q in what follows
        before = ~one | (one.transpose(0, 1) & before)
    rank_MB = _sum(before & keep_MB[:, None])
    row_MB = torch.where(keep_MB, rank_MB, rows).long()  # dropped rows go to a row beyond the last
    out_MDB = x_MDB.new_full((rows + 1, dimension, games), PADDING)
    return out_MDB.scatter_(0, row_MB[:, None].expand(rows, dimension, games), x_MDB)[:rows]
