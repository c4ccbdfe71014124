"""Ratings from a table of games of rows against columns, such as verifiers against provers.

Bradley-Terry: row r is expected to score 1 / (1 + 10^((column rating - row rating) / 400)). The ratings are of maximum
likelihood (Bradley and Terry, "Rank analysis of incomplete block designs", Biometrika 39, 1952) with one drawn game
added to each pair, so that players who won or lost everything have a rating too; their mean over rows and columns is 0.
All pairs play the same games, so intervals are over games: Student's, of the sum over pairs of each game's effect on a
rating (the sandwich estimate of White, "Maximum likelihood estimation of misspecified models", Econometrica 50, 1982;
also valid where strength is not transitive, for the rating in the limit of many such games). Where all games of a
player ended alike, the interval is from the curvature of the likelihood of independent games.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from nip_ray.evaluation.aggregates import Z95
from nip_ray.evaluation.intervals import Mean

Array = npt.NDArray[np.float64]

_POINTS = 400 / np.log(10)  # rating points per unit of log odds
_STEPS = 50
_SMALL = 1e-10


def ratings(score_RCN: npt.ArrayLike) -> tuple[list[Mean], list[Mean]]:
    """The ratings of rows and of columns, with 95 % intervals. score_RCN: the row's score in each game: 1 for a win,
    1/2 for a draw."""
    from scipy.special import stdtrit

    score = np.asarray(score_RCN, dtype=np.float64)
    rows, _, games = score.shape
    strength, curve = _fit(score.sum(-1), games)
    aside = score - score.mean(-1, keepdims=True)
    inverse = np.linalg.inv(curve)
    moved = inverse @ np.concatenate([aside.sum(1), -aside.sum(0)])
    varies_RC = np.ptp(score, axis=-1) > 0
    steady = ~np.concatenate([varies_RC.any(1), varies_RC.any(0)])
    error = np.sqrt((moved**2).sum(-1) * games / max(1, games - 1))
    error = np.where(steady | (games == 1), np.sqrt(np.diag(inverse)), error)
    half = _POINTS * error * (Z95 if games == 1 else float(stdtrit(games - 1, 0.975)))
    made = [
        Mean(float(x), float(x - side), float(x + side), games)
        for x, side in zip(_POINTS * strength, half, strict=True)
    ]
    return made[:rows], made[rows:]


def fitted(score_RC: npt.ArrayLike, games: int) -> Array:
    """(R + C,) ratings of rows and columns in points, of mean 0. score_RC: of a row in `games` against a column."""
    return _POINTS * _fit(score_RC, games)[0]


def _fit(score_RC: npt.ArrayLike, games: int) -> tuple[Array, Array]:
    """(R + C,) strengths in log odds, of mean 0, and the likelihood's curvature there, with a row of ones added."""
    total = np.asarray(score_RC, dtype=np.float64) + 0.5
    rows, columns = total.shape
    count = games + 1
    strength = np.zeros(rows + columns)
    curve = np.zeros((rows + columns, rows + columns))
    for _ in range(_STEPS):  # Newton's method on a concave likelihood
        chance = 1 / (1 + np.exp(strength[None, rows:] - strength[:rows, None]))
        missing = total - count * chance
        slope = np.concatenate([missing.sum(1), -missing.sum(0)])
        weight = count * chance * (1 - chance)
        curve[:] = 0.0
        curve[:rows, rows:], curve[rows:, :rows] = -weight, -weight.T
        np.fill_diagonal(curve, np.concatenate([weight.sum(1), weight.sum(0)]))
        curve += 1.0  # only differences count: this fixes the mean at 0
        step = np.linalg.solve(curve, slope)
        strength += np.clip(step, -2.0, 2.0)
        if np.abs(step).max() < _SMALL:
            break
    return strength - strength.mean(), curve


def records(names: Sequence[str], found: Sequence[Mean]) -> list[dict[str, object]]:
    """Each name with its rating, for JSON."""
    return [{"name": name, **one.record()} for name, one in zip(names, found, strict=True)]
