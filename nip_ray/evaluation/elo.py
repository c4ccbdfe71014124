"""Ratings of those who met each other in a table of games: rows against columns, as verifiers against provers.

Bradley-Terry: row r is expected to score 1 / (1 + 10^((column rating - row rating) / 400)). The ratings are of maximum likelihood (Bradley
and Terry, "Rank analysis of incomplete block designs", Biometrika 39, 1952) with one drawn game added to each pair, without which one that
won or lost everything would have no rating; their mean over rows and columns is 0. Intervals are percentiles of a bootstrap over games: all
pairs play the same ones, so they are drawn again for all pairs together.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from nip_ray.evaluation.intervals import Mean
from nip_ray.seeding import stable_seed

Array = npt.NDArray[np.float64]

RESAMPLES = 500
_POINTS = 400 / np.log(10)  # a rating's points for one unit of log odds
_STEPS = 50
_SMALL = 1e-10


def ratings(score_RCN: npt.ArrayLike, seed: int) -> tuple[list[Mean], list[Mean]]:
    """The ratings of rows and of columns, with 95 % intervals. score_RCN: what the row scored in each game, 1 for a win, 1/2 for a draw."""
    score = np.asarray(score_RCN, dtype=np.float64)
    rows, columns, games = score.shape
    found = fitted(score.sum(-1), games)
    chances = np.random.default_rng(stable_seed(seed, "elo"))
    weight_NK = chances.multinomial(games, np.full(games, 1 / games), size=RESAMPLES).T.astype(np.float64)
    total_RCK = (score.reshape(rows * columns, games) @ weight_NK).reshape(rows, columns, RESAMPLES)
    again = np.stack([fitted(total_RCK[:, :, k], games) for k in range(RESAMPLES)])
    lower, upper = np.percentile(again, [2.5, 97.5], axis=0)
    made = [Mean(float(x), float(low), float(high), games) for x, low, high in zip(found, lower, upper, strict=True)]
    return made[:rows], made[rows:]


def fitted(score_RC: npt.ArrayLike, games: int) -> Array:
    """(R + C,) ratings of rows and columns in points, of mean 0. score_RC: what each row scored in `games` against each column."""
    total = np.asarray(score_RC, dtype=np.float64) + 0.5
    rows, columns = total.shape
    count = games + 1
    strength = np.zeros(rows + columns)
    for _ in range(_STEPS):  # Newton's method on a concave likelihood
        chance = 1 / (1 + np.exp(strength[None, rows:] - strength[:rows, None]))
        missing = total - count * chance
        slope = np.concatenate([missing.sum(1), -missing.sum(0)])
        weight = count * chance * (1 - chance)
        curve = np.zeros((rows + columns, rows + columns))
        curve[:rows, rows:], curve[rows:, :rows] = -weight, -weight.T
        np.fill_diagonal(curve, np.concatenate([weight.sum(1), weight.sum(0)]))
        curve += 1.0  # only differences count: this fixes the mean at 0
        step = np.linalg.solve(curve, slope)
        strength += np.clip(step, -2.0, 2.0)
        if np.abs(step).max() < _SMALL:
            break
    return _POINTS * (strength - strength.mean())


def records(names: Sequence[str], found: Sequence[Mean]) -> list[dict[str, object]]:
    """Each name with its rating, as JSON takes it."""
    return [{"name": name, **one.record()} for name, one in zip(names, found, strict=True)]
