"""Statistics over several runs, or of two protocols on the same instances: paired differences, means of the middle
half, and intervals by resampling.

- `paired_difference`: of two shares seen on the same instances. The interval is method 10 of Newcombe, "Improved
  confidence intervals for the difference between binomial proportions based on paired data", Statistics in Medicine 17,
  1998: the Wilson (1927) intervals of both shares, put together under their correlation.
- `interquartile_mean`: the mean of the middle half, robust to a few lucky or broken seeds; `stratified_interval`: its
  interval, with seeds resampled within each group. Source: Agarwal et al., "Deep reinforcement learning at the edge of
  the statistical precipice", NeurIPS 2021, section 4.
- percentiles of resampled seeds are far too narrow for few seeds (with two, they cover the truth half of the time).
  Both ends are widened by Student's factor, sqrt(L / (L - 1)) t / z (Hesterberg, "What teachers should know about the
  bootstrap", The American Statistician 69, 2015, section 3.2, there for the percentiles); coverage is then nominal if
  scores are about normal;
- seeds that agree by chance do not make a metric more certain than its episodes: where each score is a share of a known
  number of episodes, the interval also covers their uncertainty (each share drawn from its posterior,
  Beta(k + 1/2, n - k + 1/2)).
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from nip_ray.config.experiment import ExperimentConfig
from nip_ray.config.keys import sections
from nip_ray.evaluation.intervals import Mean
from nip_ray.seeding import stable_seed

RESAMPLES = 2000
MIN_SEEDS = 5  # with fewer, normality cannot be checked, so claims are limited to these runs
Z95 = 1.959963984540054  # the normal quantile of 0.975
FREE_KEYS: tuple[str, ...] = ("seed", *{*sections(ExperimentConfig, "affects_numbers", False)} - {"stop"})
"""Config sections in which runs of one group may differ: apart from the seed, none affects learning, or its length."""

Array = npt.NDArray[np.float64]


def paired_difference(first_B: npt.ArrayLike, second_B: npt.ArrayLike) -> Mean:
    """The share of `first_B` minus that of `second_B` ((B,) bool, same instances), with its 95 % interval."""
    first, second = np.asarray(first_B, dtype=bool), np.asarray(second_B, dtype=bool)
    n = len(first)
    if n == 0:
        return Mean(None, None, None, 0)
    both, only, other = (int(np.count_nonzero(x)) for x in (first & second, first & ~second, ~first & second))
    neither = n - both - only - other
    from scipy.stats import binomtest  # here, not above: it takes a second to load

    (lower_1, upper_1), (lower_2, upper_2) = (
        binomtest(k, n).proportion_ci(method="wilson") for k in (both + only, both + other)
    )
    share_1, share_2 = (both + only) / n, (both + other) / n
    phi = _correlation(both, only, other, neither)
    below = (share_1 - lower_1, upper_2 - share_2)
    above = (upper_1 - share_1, share_2 - lower_2)
    difference = share_1 - share_2
    return Mean(difference, difference - _joined(*below, phi), difference + _joined(*above, phi), n)


def interquartile_mean(x_N: npt.ArrayLike) -> float:
    """The mean of the middle half: a quarter of the values (rounded down) is cut off at either end."""
    values = np.sort(np.asarray(x_N, dtype=np.float64).reshape(-1))
    cut = len(values) // 4
    return float(values[cut : len(values) - cut].mean())


def stratified_interval(
    x_KL: Sequence[Sequence[float]],
    seed: int,
    resamples: int = RESAMPLES,
    *,
    n_KL: Sequence[Sequence[int]] | None = None,
) -> Mean:
    """The interquartile mean of all scores of K strata (tasks, or groups) with L_k runs each, with its 95 % interval.

    Runs are resampled within their stratum. n_KL: number of episodes behind each score (None: not a share, or unknown).
    The interval is None where the spread is unknown: no stratum has two runs, or all agree and `n_KL` is None.
    """
    strata = [np.asarray(x_L, dtype=np.float64) for x_L in x_KL if len(x_L)]
    if not strata:
        return Mean(None, None, None, 0)
    everything = np.concatenate(strata)
    estimate = interquartile_mean(everything)
    several = [x_L for x_L in strata if len(x_L) > 1]
    if not several or (n_KL is None and all(np.ptp(x_L) == 0 for x_L in several)):
        return Mean(estimate, None, None, len(everything))
    random = np.random.default_rng(stable_seed(seed, "stratified bootstrap"))
    drawn = [x_L[random.integers(len(x_L), size=(resamples, len(x_L)))] for x_L in strata]
    wider = _student(sum(len(x_L) for x_L in several), len(several))
    shares = (
        None
        if n_KL is None
        else _redrawn(random, everything, np.concatenate([n_L for n_L in n_KL if len(n_L)]), resamples)
    )
    return Mean(estimate, *_ends(estimate, _middles(np.concatenate(drawn, axis=1)), wider, shares), len(everything))


def crossed_interval(
    x_VP: npt.ArrayLike, seed: int, resamples: int = RESAMPLES, *, n_VP: npt.ArrayLike | None = None
) -> Mean:
    """The interquartile mean of the scores (V, P) of every verifier against every prover; NaN marks an excluded pair.

    Verifiers and provers are resampled separately, since the scores of a row, or of a column, are not independent.
    n_VP: number of episodes behind each score (None: not a share, or unknown). The interval is None with fewer than two
    of both, and where all scores agree and `n_VP` is None.
    """
    score_VP = np.asarray(x_VP, dtype=np.float64)
    counts_VP = ~np.isnan(score_VP)
    known = score_VP[counts_VP]
    if known.size == 0:
        return Mean(None, None, None, 0)
    estimate = interquartile_mean(known)
    rows, columns = score_VP.shape
    if max(rows, columns) < 2 or (n_VP is None and np.ptp(known) == 0):
        return Mean(estimate, None, None, known.size)
    random, found = np.random.default_rng(stable_seed(seed, "crossed bootstrap")), []
    for _ in range(resamples):
        drawn = score_VP[np.ix_(random.integers(rows, size=rows), random.integers(columns, size=columns))]
        drawn = drawn[~np.isnan(drawn)]
        if drawn.size:
            found.append(interquartile_mean(drawn))
    wider = _student(min(count for count in (rows, columns) if count > 1))
    shares = None if n_VP is None else _redrawn(random, known, np.asarray(n_VP)[counts_VP], resamples)
    return Mean(estimate, *_ends(estimate, np.asarray(found), wider, shares), known.size)


def _middles(x_RN: Array) -> Array:
    """`interquartile_mean` of each row."""
    cut = x_RN.shape[1] // 4
    return np.sort(x_RN, axis=1)[:, cut : x_RN.shape[1] - cut].mean(1)


def _redrawn(random: np.random.Generator, share_N: Array, n_N: npt.NDArray[Any], resamples: int) -> Array:
    """(R,) interquartile means of shares drawn from their posteriors."""
    hits_N = share_N * n_N
    return _middles(random.beta(hits_N + 0.5, n_N - hits_N + 0.5, size=(resamples, len(share_N))))


def _student(runs: int, strata: int = 1) -> float:
    """The factor by which percentiles of so few runs, resampled within so many strata, are too narrow."""
    from scipy.special import stdtrit  # as in intervals.py: it takes a tenth of a second to load

    free = runs - strata
    return float(stdtrit(free, 0.975)) / Z95 * math.sqrt(runs / free)


def _ends(estimate: float, drawn_R: Array, wider: float, shares_R: Array | None) -> tuple[float, float]:
    """The ends of the interval; between 0 and 1 where the scores are shares."""
    lower, upper = np.percentile(drawn_R, (2.5, 97.5))
    below, above = wider * max(0.0, estimate - lower), wider * max(0.0, upper - estimate)
    if shares_R is None:
        return float(estimate - below), float(estimate + above)
    lower, upper = np.percentile(shares_R, (2.5, 97.5))
    below, above = max(below, estimate - lower), max(above, upper - estimate)
    return max(0.0, float(estimate - below)), min(1.0, float(estimate + above))


def _correlation(both: int, only: int, other: int, neither: int) -> float:
    """Newcombe's phi, corrected for continuity where it is positive."""
    margins = (both + only) * (other + neither) * (both + other) * (only + neither)
    if margins == 0:
        return 0.0
    product, n = both * neither - only * other, both + only + other + neither
    return (max(product - n / 2, 0.0) if product > 0 else product) / math.sqrt(margins)


def _joined(first: float, second: float, phi: float) -> float:
    return math.sqrt(max(0.0, first**2 - 2 * phi * first * second + second**2))
