"""What several runs, or two ways of asking one, come to: paired differences, means of the middle half, and intervals by
resampling.

- `paired_difference`: of two shares seen on the same instances; the interval is method 10 of Newcombe, "Improved
  confidence intervals for the difference between binomial proportions based on paired data", Statistics in Medicine 17,
  1998: the Wilson (1927) intervals of both shares, put together under their correlation.
- `interquartile_mean`: the mean of the middle half, of which a few lucky or broken seeds move little;
  `stratified_interval`: what it does when seeds are drawn again within each group. Source: Agarwal et al., "Deep
  reinforcement learning at the edge of the statistical precipice", NeurIPS 2021, section 4.
- percentiles of seeds drawn again are far too close for few seeds: of two they hold the truth every second time. So
  both ends are moved out by Student's factor, sqrt(L / (L - 1)) t / z (Hesterberg, "What teachers should know about the
  bootstrap", The American Statistician 69, 2015, section 3.2, there for the percentiles), after which they hold it as
  often as they say if scores are about normal;
- seeds that agree by chance do not make a figure surer than its episodes: where it is known of how many episodes each
  score is a share, an end is at least as far as these leave open (each share drawn from what is to be thought of it,
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
MIN_SEEDS = 5  # of fewer it cannot be seen whether scores are about normal, so nothing is said of more than these runs
Z95 = 1.959963984540054  # the normal quantile of 0.975
FREE_KEYS: tuple[str, ...] = ("seed", *sections(ExperimentConfig, "affects_numbers", False))
"""Sections of a config in which runs of one group may differ: none but the seed changes what is learned."""

Array = npt.NDArray[np.float64]


def paired_difference(first_B: npt.ArrayLike, second_B: npt.ArrayLike) -> Mean:
    """The share of `first_B` minus that of `second_B` (both (B,) bool, of the same instances), with its 95 %
    interval."""
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
    """The mean of the middle half: a quarter of the values is cut off at either end (of few values, whole ones, rounded
    down)."""
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

    Runs are drawn again within their stratum. n_KL: of how many episodes each score is a share (None: it is none, or
    this is unknown). The interval is None where nothing is known of the spread: no stratum has two runs, or all agree
    and `n_KL` is None.
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
    """The interquartile mean of the scores (V, P) of every verifier against every prover, NaN where a pair does not
    count.

    Verifiers and provers are each drawn again, since the scores of a row, or of a column, are not independent. n_VP: of
    how many episodes each score is a share (None: it is none, or this is unknown). The interval is None with fewer than
    two of both, and where all scores agree and `n_VP` is None.
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
    """(R,) interquartile means of shares that could stand behind those that were seen."""
    hits_N = share_N * n_N
    return _middles(random.beta(hits_N + 0.5, n_N - hits_N + 0.5, size=(resamples, len(share_N))))


def _student(runs: int, strata: int = 1) -> float:
    """By how much percentiles of so few runs, drawn again within so many strata, are too close."""
    from scipy.special import stdtrit  # as in intervals.py: it takes a tenth of a second to load

    free = runs - strata
    return float(stdtrit(free, 0.975)) / Z95 * math.sqrt(runs / free)


def _ends(estimate: float, drawn_R: Array, wider: float, shares_R: Array | None) -> tuple[float, float]:
    """Where the interval ends; between 0 and 1 where the scores are shares."""
    lower, upper = np.percentile(drawn_R, (2.5, 97.5))
    below, above = wider * max(0.0, estimate - lower), wider * max(0.0, upper - estimate)
    if shares_R is None:
        return float(estimate - below), float(estimate + above)
    lower, upper = np.percentile(shares_R, (2.5, 97.5))
    below, above = max(below, estimate - lower), max(above, upper - estimate)
    return max(0.0, float(estimate - below)), min(1.0, float(estimate + above))


def _correlation(both: int, only: int, other: int, neither: int) -> float:
    """Newcombe's phi: of the two answers, corrected for continuity where it is positive."""
    margins = (both + only) * (other + neither) * (both + other) * (only + neither)
    if margins == 0:
        return 0.0
    product, n = both * neither - only * other, both + only + other + neither
    return (max(product - n / 2, 0.0) if product > 0 else product) / math.sqrt(margins)


def _joined(first: float, second: float, phi: float) -> float:
    return math.sqrt(max(0.0, first**2 - 2 * phi * first * second + second**2))
