"""The trend of a metric over training: slope of a line through its evaluations, with intervals for autocorrelation.

Decisions that matter here:
- successive evaluations are correlated, so the least-squares interval for independent values is far too narrow. Their
  number n is replaced by n (1 - r) / (1 + r), with r the correlation of neighbouring residuals (Santer et al.,
  "Statistical significance of trends and trend differences in layer-average atmospheric temperature time series", J.
  Geophys. Res. 105, 2000, equations 3 to 6);
- fitting a line lowers that correlation by about (2 + 4 r) / n. (3 + 4 r) / n is added back, since an interval that is
  too narrow does more harm than one that is too wide; a negative correlation counts as 0;
- with correlations of 0 to 0.6, the interval covers the truth in 94 to 97 of 100 runs with 40 evaluations or more; with
  20 in 97 (correlation 0) to 92 (0.6).
"""

import math

import numpy as np
import numpy.typing as npt

from nip_ray.evaluation.intervals import Mean

_LEAST = 4
_SMALL = 1e-24


def slope(x_N: npt.ArrayLike, y_N: npt.ArrayLike) -> Mean:
    """The least-squares slope of y over x, with its 95 % interval.

    The estimate is None with fewer than two different x; the interval with fewer than four values, where all are on the
    line, and where neighbours are so correlated that no two count as independent.
    """
    x, y = np.asarray(x_N, dtype=np.float64), np.asarray(y_N, dtype=np.float64)
    n = len(x)
    aside_N = x - x.mean() if n else x
    spread = float((aside_N**2).sum())
    if spread == 0:
        return Mean(None, None, None, n)
    estimate = float((aside_N * y).sum()) / spread
    left_N = y - y.mean() - estimate * aside_N
    squares = float((left_N**2).sum())
    if n < _LEAST or squares <= _SMALL * max(1.0, float((y**2).sum())):
        return Mean(estimate, None, None, n)
    alike = float((left_N[1:] * left_N[:-1]).sum()) / squares
    alike = max(0.0, alike + (3 + 4 * alike) / n)
    free = n * (1 - alike) / (1 + alike) - 2
    if free <= 0.5:
        return Mean(estimate, None, None, n)
    from scipy.special import stdtrit

    half = float(stdtrit(free, 0.975)) * math.sqrt(squares / free / spread)
    return Mean(estimate, estimate - half, estimate + half, n)
