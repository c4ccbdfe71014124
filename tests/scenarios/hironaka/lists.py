"""The game on plain lists of whole numbers, one game at a time, as slow and as obvious as can be: what the tensor code
is held to."""

from fractions import Fraction
from itertools import combinations
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

Point = tuple[int, ...]


def minimal(points: list[Point]) -> list[Point]:
    """Componentwise-minimal points, each once, largest first."""
    distinct = sorted(set(points), reverse=True)
    return [p for p in distinct if not any(q != p and all(a <= b for a, b in zip(q, p)) for q in distinct)]


def vertices(points: list[Point]) -> list[Point]:
    """Vertices of conv(points) + the positive orthant, exactly: by Caratheodory, trying every basis of generators in
    fractions."""
    distinct = sorted(set(points), reverse=True)
    return [p for p in distinct if not inside(p, [q for q in distinct if q != p])]


def inside(p: Point, others: list[Point]) -> bool:
    """Whether p lies in conv(others) + the positive orthant."""
    d = len(p)
    rays = [(*tuple(int(i == k) for i in range(d)), 0) for k in range(d)]
    generators = [(*q, 1) for q in others] + rays
    return any(
        min(solved) >= 0 for basis in combinations(generators, d + 1) if (solved := solve(basis, (*p, 1))) is not None
    )


def solve(basis: tuple[Point, ...], target: Point) -> list[Fraction] | None:
    """The coefficients of `target` in a basis, None if it is none."""
    n = len(target)
    rows = [[Fraction(b[i]) for b in basis] + [Fraction(target[i])] for i in range(n)]
    for i in range(n):
        pivot = next((r for r in range(i, n) if rows[r][i]), None)
        if pivot is None:
            return None
        rows[i], rows[pivot] = rows[pivot], rows[i]
        rows[i] = [x / rows[i][i] for x in rows[i]]
        for r in range(n):
            if r != i and rows[r][i]:
                rows[r] = [x - rows[r][i] * y for x, y in zip(rows[r], rows[i])]
    return [row[-1] for row in rows]


def shift(points: list[Point], choice: tuple[int, ...], axis: int) -> list[Point]:
    """The move."""
    return [tuple(sum(p[k] for k in choice) if i == axis else x for i, x in enumerate(p)) for p in points]


def zeillinger(points: list[Point]) -> tuple[int, ...]:
    """The published rule and its ties."""
    best: Any = None
    for p, q in combinations(points, 2):
        v = [a - b for a, b in zip(p, q)]
        key = (max(v) - min(v), v.count(max(v)) + v.count(min(v)))
        if best is None or key < best[0]:
            best = (key, v)
    v = best[1]
    pair = {v.index(min(v)), v.index(max(v))}
    return tuple(sorted(pair)) if len(pair) == 2 else (0, 1)


def tensor(games: list[list[Point]], rows: int = 0) -> Tensor:
    """(B, m, d) with padding."""
    rows = max([rows, *(len(game) for game in games)])
    d = len(games[0][0])
    return torch.tensor([[*game, *[(-1,) * d] * (rows - len(game))] for game in games], dtype=torch.float64)


def plain(points_BMD: Tensor) -> list[list[Point]]:
    """The points of each game, in their order."""
    return [[tuple(int(x) for x in point) for point in game if point[0] >= 0] for game in points_BMD.tolist()]


def point_sets(
    most: int = 9, value: int = 6, dimensions: tuple[int, ...] = (2, 3, 4)
) -> st.SearchStrategy[list[list[Point]]]:
    """One to three games of one dimension."""

    def games(d: int) -> st.SearchStrategy[list[list[Point]]]:
        point = st.tuples(*[st.integers(0, value)] * d)
        return st.lists(st.lists(point, min_size=1, max_size=most), min_size=1, max_size=3)

    return st.sampled_from(dimensions).flatmap(games)
