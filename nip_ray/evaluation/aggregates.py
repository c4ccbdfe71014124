"""What several runs, or two ways of asking one, come to: paired differences, means of the middle half, and intervals by resampling.

- `paired_difference`: of two shares seen on the same instances; the interval is method 10 of Newcombe, "Improved confidence intervals for
  the difference between binomial proportions based on paired data", Statistics in Medicine 17, 1998: the Wilson (1927) intervals of
  both shares, put together under their correlation.
- `interquartile_mean`: the mean of the middle half, of which a few lucky or broken seeds move little; `stratified_interval`: what it does
  when seeds are drawn again within each group. Source: Agarwal et al., "Deep reinforcement learning at the edge of the statistical
  precipice", NeurIPS 2021, section 4.
- `bootstrap_interval`: percentiles of a statistic of instances drawn again (Efron, 1979).
"""

import math
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from nip_ray.evaluation.intervals import Mean
from nip_ray.seeding import stable_seed

RESAMPLES = 2000
_Z95 = 1.959963984540054  # the normal quantile of 0.975

Array = npt.NDArray[np.float64]


def paired_difference(first_B: npt.ArrayLike, second_B: npt.ArrayLike) -> Mean:
    """The share of `first_B` minus that of `second_B` (both (B,) bool, of the same instances), with its 95 % interval."""
    first, second = np.asarray(first_B, dtype=bool), np.asarray(second_B, dtype=bool)
    n = len(first)
    if n == 0:
        return Mean(None, None, None, 0)
    both, only, other = (int(np.count_nonzero(x)) for x in (first & second, first & ~second, ~first & second))
    neither = n - both - only - other
    lower_1, upper_1 = _wilson(both + only, n)
    lower_2, upper_2 = _wilson(both + other, n)
    share_1, share_2 = (both + only) / n, (both + other) / n
    phi = _correlation(both, only, other, neither)
    below = (share_1 - lower_1, upper_2 - share_2)
    above = (upper_1 - share_1, share_2 - lower_2)
    difference = share_1 - share_2
    return Mean(difference, difference - _joined(*below, phi), difference + _joined(*above, phi), n)


def interquartile_mean(x_N: npt.ArrayLike) -> float:
    """The mean of the middle half: a quarter of the values is cut off at either end (of few values, whole ones, rounded down)."""
    values = np.sort(np.asarray(x_N, dtype=np.float64).reshape(-1))
    cut = len(values) // 4
    return float(values[cut : len(values) - cut].mean())


def stratified_interval(x_KL: Sequence[Sequence[float]], seed: int, resamples: int = RESAMPLES) -> Mean:
    """The interquartile mean of all scores of K strata (tasks, or groups) with L_k runs each, with its 95 % interval.

    Runs are drawn again within their stratum. The interval is None where no stratum has two runs: nothing is known of their spread.
    """
    strata = [np.asarray(x_L, dtype=np.float64) for x_L in x_KL if len(x_L)]
    if not strata:
        return Mean(None, None, None, 0)
    everything = np.concatenate(strata)
    estimate = interquartile_mean(everything)
    if all(len(x_L) < 2 for x_L in strata):
        return Mean(estimate, None, None, len(everything))
    random = np.random.default_rng(stable_seed(seed, "stratified bootstrap"))
    found = [interquartile_mean(np.concatenate([random.choice(x_L, len(x_L)) for x_L in strata])) for _ in range(resamples)]
    return Mean(estimate, *_percentiles(found), len(everything))


def crossed_interval(x_VP: npt.ArrayLike, seed: int, resamples: int = RESAMPLES) -> Mean:
    """The interquartile mean of the scores (V, P) of every verifier against every prover, NaN where a pair does not count.

    Verifiers and provers are each drawn again, since the scores of a row, or of a column, are not independent. The interval is None with
    fewer than two of both.
    """
    score_VP = np.asarray(x_VP, dtype=np.float64)
    known = score_VP[~np.isnan(score_VP)]
    if known.size == 0:
        return Mean(None, None, None, 0)
    estimate = interquartile_mean(known)
    rows, columns = score_VP.shape
    if max(rows, columns) < 2:
        return Mean(estimate, None, None, known.size)
    random, found = np.random.default_rng(stable_seed(seed, "crossed bootstrap")), []
    for _ in range(resamples):
        drawn = score_VP[np.ix_(random.integers(rows, size=rows), random.integers(columns, size=columns))]
        drawn = drawn[~np.isnan(drawn)]
        if drawn.size:
            found.append(interquartile_mean(drawn))
    return Mean(estimate, *_percentiles(found), known.size)


def bootstrap_interval(statistic: Callable[[npt.NDArray[np.int64]], float], n: int, seed: int, resamples: int = RESAMPLES) -> Mean:
    """`statistic` of all of n instances, with the percentile interval of it on instances drawn again.

    statistic: takes indices (n,) of instances. The interval is None for fewer than two.
    """
    if n == 0:
        return Mean(None, None, None, 0)
    estimate = float(statistic(np.arange(n)))
    if n == 1:
        return Mean(estimate, None, None, 1)
    random = np.random.default_rng(stable_seed(seed, "bootstrap"))
    return Mean(estimate, *_percentiles([statistic(random.integers(n, size=n)) for _ in range(resamples)]), n)


def _percentiles(found: Sequence[float]) -> tuple[float, float]:
    lower, upper = np.percentile(np.asarray(found), (2.5, 97.5))
    return float(lower), float(upper)


def _wilson(successes: int, n: int) -> tuple[float, float]:
    """Wilson's score interval of a share."""
    share, z2 = successes / n, _Z95**2
    middle = (share + z2 / (2 * n)) / (1 + z2 / n)
    half = _Z95 * math.sqrt(share * (1 - share) / n + z2 / (4 * n * n)) / (1 + z2 / n)
    return max(0.0, middle - half), min(1.0, middle + half)


def _correlation(both: int, only: int, other: int, neither: int) -> float:
    """Newcombe's phi: of the two answers, corrected for continuity where it is positive."""
    margins = (both + only) * (other + neither) * (both + other) * (only + neither)
    if margins == 0:
        return 0.0
    product, n = both * neither - only * other, both + only + other + neither
    return (max(product - n / 2, 0.0) if product > 0 else product) / math.sqrt(margins)


def _joined(first: float, second: float, phi: float) -> float:
    return math.sqrt(max(0.0, first**2 - 2 * phi * first * second + second**2))
