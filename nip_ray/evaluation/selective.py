"""Risk against coverage: a verifier's error rate among its most confident verdicts; undecided counts as abstaining.

Decisions that matter here:
- verdicts are included by decreasing confidence, the probability of the given verdict; coverage is the included share
  of all instances, risk the share of wrong verdicts among them (El-Yaniv and Wiener, JMLR 11, 2010). Ties are included
  together, each counting with the mean of all, as if broken at random;
- the area under the curve is the mean risk over the coverages k/N that verdicts reach (Geifman and El-Yaniv, NeurIPS
  2017). An undecided verifier has fewer of them, so the area is reported with the coverage;
- the area's interval is the exact one of a share with the same variance (`intervals.share_ends`). The variance is that
  of its influence function: the effect of an instance on the mean, by its own risk and by that of all later ones. An
  error among the most confident has the largest effect and is the rarest, so its chance at each place is the share of
  errors near it, and never 0. Without any error there is no interval;
- precision at a coverage c is the share of right verdicts among the ceil(c N) most confident; its interval is the exact
  one, given the threshold, as that of every risk on the curve is.
"""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from nip_ray.evaluation.aggregates import Z95
from nip_ray.evaluation.intervals import Mean, proportion, share_ends

COVERAGES = (0.8, 0.9)
_POINTS = 40
"""Maximum number of points of a stored curve."""

Array = npt.NDArray[np.float64]


def selective(sure_N: Array, right_N: npt.ArrayLike, count: int) -> dict[str, Any]:
    """{"area", "coverage" (records), "precision": {"0.8", "0.9"}, "curve": [{"coverage", "risk", "lower", "upper"}]} of
    the verdicts.

    sure_N: (N,) probabilities of the given verdicts, right_N: (N,) whether they are right. count: of all instances. A
    precision is None (of 0 instances) where fewer verdicts were given.
    """
    order_N = np.argsort(-sure_N, kind="stable")
    wrong_N = 1 - np.asarray(right_N, dtype=np.float64)[order_N]
    even_N = _even(sure_N[order_N], wrong_N)
    risk_N = np.cumsum(even_N) / np.arange(1, len(even_N) + 1)
    curve = []
    for k in (
        np.unique(np.linspace(0, len(risk_N) - 1, min(_POINTS, len(risk_N))).round().astype(int)) if len(risk_N) else ()
    ):
        ends = proportion(round(float(risk_N[k] * (k + 1))), int(k) + 1)  # within a tie of the nearest number of errors
        curve.append({"coverage": (k + 1) / count, "risk": float(risk_N[k]), "lower": ends.lower, "upper": ends.upper})
    return {
        "area": area(risk_N, even_N).record(),
        "coverage": proportion(len(sure_N), count).record(),
        "precision": {str(share): _precision(even_N, math.ceil(share * count - 1e-9)).record() for share in COVERAGES},
        "curve": curve,
    }


def area(risk_N: Array, wrong_N: Array) -> Mean:
    """The mean of `risk_N`, the risks of the 1, 2, ..., N most confident, with its interval. wrong_N: in the same
    order, 1 for a wrong verdict."""
    n = len(risk_N)
    if n == 0:
        return Mean(None, None, None, 0)
    estimate = float(risk_N.mean())
    if n == 1 or not 0 < wrong_N.sum() < n:
        return Mean(estimate, None, None, n)
    k_N = np.arange(1, n + 1)
    after_N = np.cumsum((1 / k_N)[::-1])[::-1]  # sum of 1/k over the instances that come no earlier
    risks_after_N = np.cumsum((risk_N / k_N)[::-1])[::-1]
    chance_N = _chances(wrong_N)
    between = float((risk_N + chance_N * after_N - risks_after_N).var())
    within = float((after_N**2 * chance_N * (1 - chance_N)).mean())
    return Mean(estimate, *share_ends(estimate, Z95 * math.sqrt((between + within) / n)), n)


def _chances(wrong_N: Array) -> Array:
    """(N,) share of errors among the fifth of all nearest in confidence, plus half an error and half a right one."""
    n = len(wrong_N)
    reach, place_N, sum_N = max(2, n // 10), np.arange(n), np.concatenate([[0.0], np.cumsum(wrong_N)])
    first_N, last_N = np.maximum(0, place_N - reach), np.minimum(n, place_N + reach + 1)
    return (sum_N[last_N] - sum_N[first_N] + 0.5) / (last_N - first_N + 1)


def _even(sure_N: Array, wrong_N: Array) -> Array:
    """The mean within each group of ties."""
    if len(wrong_N) == 0:
        return wrong_N
    group_N = np.cumsum(np.diff(sure_N, prepend=sure_N[:1]) != 0)
    return (np.bincount(group_N, weights=wrong_N) / np.bincount(group_N))[group_N]


def _precision(even_N: Array, most: int) -> Mean:
    """Precision of the most confident; within a tie its interval is of the nearest number of errors."""
    if most == 0 or most > len(even_N):
        return proportion(0, 0)
    wrong = float(even_N[:most].sum())
    return replace(proportion(most - round(wrong), most), estimate=1 - wrong / most)
