"""95 % intervals: exact for shares, Student's for means, and a combination for shares of dependent trials.

Decisions that matter here:
- the binomial interval of Clopper and Pearson (1934) covers the true share in at least 95 % of all experiments, for
  every share and n. The interval of a mean (Student, 1908) is approximate for values that are not normally distributed;
- where a data point is tried several times (`clustered_mean`), the estimate is pooled: the sum over data points of x_I
  divided by that of n_I (I data points, n_I trials in each). Its interval is over data points, by the linearised
  variance of a ratio: with residuals d_I = x_I - estimate * n_I, var = I / (I - 1) * sum(d_I ** 2) / sum(n_I) ** 2
  (Cochran, "Sampling Techniques", 1977, sections 2.11 and 3.12), and Student's quantile. With equally many trials in
  each this is Student's interval of the data points' own means;
- a share so pooled has the exact interval, over data points, where all trials of each data point agree (always so with
  one trial each). Else it has the exact one of the number of independent trials with the same variance (`share_ends`).
"""

import math
from dataclasses import asdict, dataclass

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

LEVEL = 0.95


@dataclass(frozen=True)
class Mean:
    """A mean or a share of n trials with its interval. The interval of a mean is None where the spread is unknown:
    fewer than two values, or all equal. Of a share without trials `estimate` is None and the interval is [0, 1]."""

    estimate: float | None
    lower: float | None
    upper: float | None
    n: int

    def record(self) -> dict[str, float | int | None]:
        """The values as a JSON record."""
        return asdict(self)


def proportion(successes: int, n: int) -> Mean:
    """The exact two-sided interval (Clopper-Pearson) of the share `successes` / `n` of independent trials.

    Each side errs with probability at most 2.5 %. Raises ValueError for impossible counts.
    """
    if not 0 <= successes <= n:
        raise ValueError(f"{successes} successes in {n} trials: expected 0 <= successes <= n")
    if n == 0:
        return Mean(None, 0.0, 1.0, 0)
    from scipy.special import betaincinv  # scipy.stats takes a second to load, this a tenth

    tail = (1 - LEVEL) / 2
    lower = 0.0 if successes == 0 else float(betaincinv(successes, n - successes + 1, tail))
    upper = 1.0 if successes == n else float(betaincinv(successes + 1, n - successes, 1 - tail))
    return Mean(successes / n, lower, upper, int(n))


def mean(x_B: npt.ArrayLike) -> Mean:
    """The mean of independent values (B,) with Student's interval."""
    values_B = np.asarray(x_B, dtype=np.float64)
    n = values_B.size
    if n == 0:
        return Mean(None, None, None, 0)
    estimate = float(values_B.mean())
    if n == 1 or bool((values_B == values_B.flat[0]).all()):
        return Mean(estimate, None, None, n)
    from scipy.special import stdtrit

    half = float(stdtrit(n - 1, (1 + LEVEL) / 2)) * float(values_B.std(ddof=1)) / math.sqrt(n)
    return Mean(estimate, estimate - half, estimate + half, n)


def ratio(numerator_G: npt.ArrayLike, denominator_G: npt.ArrayLike) -> Mean:
    """The ratio of two sums over G independent draws: games per round, a share of all moves.

    Its interval is that of the linearised ratio (the delta method; Cochran, "Sampling Techniques", 1977, equation 2.39)
    with Student's quantile, cut off at 0 where no numerator is negative. Where no numerator is above its denominator
    either, the ratio is a share and has the interval of `share_ends`. A share of draws (each denominator 1, each
    numerator 0 or 1) has the exact one of `proportion`.
    """
    top_G, bottom_G = np.asarray(numerator_G, dtype=np.float64), np.asarray(denominator_G, dtype=np.float64)
    if bool((bottom_G == 1).all()) and bool(np.isin(top_G, (0, 1)).all()):
        return proportion(int(top_G.sum()), top_G.size)
    total = float(bottom_G.sum())
    if total == 0:
        return Mean(None, None, None, top_G.size)
    estimate = float(top_G.sum()) / total
    rest_G = top_G - estimate * bottom_G  # of mean 0, up to rounding
    if float(np.abs(rest_G).max()) <= 1e-12 * max(1.0, float(np.abs(top_G).max())):  # all draws have the same ratio
        return Mean(estimate, None, None, top_G.size)
    spread = mean(rest_G * (top_G.size / total))
    half = None if spread.upper is None or spread.estimate is None else spread.upper - spread.estimate
    if half is None:
        return Mean(estimate, None, None, top_G.size)
    least = 0.0 if bool((top_G >= 0).all()) and bool((bottom_G >= 0).all()) else -math.inf
    if least == 0 and bool((top_G <= bottom_G).all()):
        return Mean(estimate, *share_ends(estimate, half), top_G.size)
    return Mean(estimate, max(least, estimate - half), estimate + half, top_G.size)


def share_ends(estimate: float, half: float) -> tuple[float, float]:
    """The interval of a share, strictly between 0 and 1, whose symmetric interval would reach `half` to either side.

    This is the exact interval of the number of independent trials with the same variance: Korn and Graubard,
    "Confidence intervals for proportions with small expected number of positive counts estimated from survey data",
    Survey Methodology 24, 1998. The symmetric one is far too narrow where a share is near 0 or 1, since the few that
    differ also determine the variance.
    """
    from scipy.special import betaincinv, ndtri

    trials = estimate * (1 - estimate) * (float(ndtri((1 + LEVEL) / 2)) / half) ** 2
    successes, failures, tail = estimate * trials, (1 - estimate) * trials, (1 - LEVEL) / 2
    return float(betaincinv(successes, failures + 1, tail)), float(betaincinv(successes + 1, failures, 1 - tail))


def clustered_mean(x_I: npt.ArrayLike, n_I: npt.ArrayLike) -> Mean:
    """sum(x_I) / sum(n_I) with its interval; data points with n_I = 0 are left out, and `n` counts the others.

    The interval is None with fewer than two data points, or where all have the same mean.
    """
    x_I, n_I = _tried(x_I, n_I)
    count = len(n_I)
    if count == 0:
        return Mean(None, None, None, 0)
    estimate = float(x_I.sum() / n_I.sum())
    mean_I = x_I / n_I
    if count == 1 or bool((mean_I == mean_I[0]).all()):
        return Mean(estimate, None, None, count)
    from scipy.special import stdtrit

    error = math.sqrt(count / (count - 1) * float(((x_I - estimate * n_I) ** 2).sum())) / float(n_I.sum())
    half = float(stdtrit(count - 1, (1 + LEVEL) / 2)) * error
    return Mean(estimate, estimate - half, estimate + half, count)


def clustered_share(successes_I: npt.ArrayLike, n_I: npt.ArrayLike) -> Mean:
    """The same for successes in n_I trials, with the interval of a share.

    Without trials `estimate` is None and the interval is [0, 1]. Raises ValueError for impossible counts.
    """
    x_I, n_I = _tried(successes_I, n_I)
    if bool(((x_I < 0) | (x_I > n_I)).any()):
        raise ValueError("more successes than trials, or fewer than none, in a data point")
    unanimous = bool(((x_I == 0) | (x_I == n_I)).all())
    alike = not x_I.any() or bool((x_I == n_I).all())
    if unanimous and (alike or len(set(n_I.tolist())) == 1):
        return proportion(int(np.count_nonzero(x_I)), len(n_I))
    found = clustered_mean(x_I, n_I)
    if found.lower is None or found.upper is None:
        return found
    assert found.estimate is not None
    return Mean(found.estimate, *share_ends(found.estimate, found.upper - found.estimate), found.n)


def _tried(x_I: npt.ArrayLike, n_I: npt.ArrayLike) -> tuple[Array, Array]:
    x, n = np.asarray(x_I, dtype=np.float64), np.asarray(n_I, dtype=np.float64)
    return x[n > 0], n[n > 0]
