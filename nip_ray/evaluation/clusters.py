"""How sure a share or a mean is when several trials belong to one data point, and so are not independent.

Decisions that matter here:
- the figure is pooled: the sum over data points of x_I divided by the sum of n_I (I data points, n_I trials in each);
- its interval is over data points, by the linearised variance of a ratio: with residuals d_I = x_I - figure * n_I,
  var = I / (I - 1) * sum(d_I ** 2) / sum(n_I) ** 2, and Student's quantile with I - 1 degrees of freedom. With equally many trials in
  each this is Student's interval of the data points' own means;
- a share has the exact interval (Clopper-Pearson, over data points) where every data point speaks with one voice: always where each was
  tried once, and where all trials of all data points came out alike. Else it has the exact one of as many independent trials as vary as
  much (see `intervals.share_ends`).
Source of the variance: Cochran, "Sampling Techniques", 3rd edition, 1977, sections 2.11 and 3.12.
"""

import math

import numpy as np
import numpy.typing as npt

from nip_ray.evaluation.intervals import Mean, Proportion, proportion, share_ends

Array = npt.NDArray[np.float64]


def clustered_mean(x_I: npt.ArrayLike, n_I: npt.ArrayLike, level: float = 0.95) -> Mean:
    """sum(x_I) / sum(n_I) with its interval; data points with n_I = 0 are left out, and `n` counts the others.

    The interval is None with fewer than two data points, or where all have the same mean: they say nothing of their spread.
    """
    if not 0 < level < 1:
        raise ValueError(f"level is {level}, expected between 0 and 1")
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
    half = float(stdtrit(count - 1, (1 + level) / 2)) * error
    return Mean(estimate, estimate - half, estimate + half, count)


def clustered_share(successes_I: npt.ArrayLike, n_I: npt.ArrayLike, level: float = 0.95) -> Mean | Proportion:
    """The same for successes in n_I trials, with the interval of a share (see above).

    Without trials `estimate` is None and the interval is [0, 1]. Raises ValueError for impossible counts.
    """
    x_I, n_I = _tried(successes_I, n_I)
    if bool(((x_I < 0) | (x_I > n_I)).any()):
        raise ValueError("more successes than trials, or fewer than none, in a data point")
    unanimous = bool(((x_I == 0) | (x_I == n_I)).all())
    alike = not x_I.any() or bool((x_I == n_I).all())
    if unanimous and (alike or len(set(n_I.tolist())) == 1):
        return proportion(int(np.count_nonzero(x_I)), len(n_I), level)
    found = clustered_mean(x_I, n_I, level)
    if found.lower is None or found.upper is None:
        return found
    assert found.estimate is not None
    return Mean(found.estimate, *share_ends(found.estimate, found.upper - found.estimate, level), found.n)


def _tried(x_I: npt.ArrayLike, n_I: npt.ArrayLike) -> tuple[Array, Array]:
    x, n = np.asarray(x_I, dtype=np.float64), np.asarray(n_I, dtype=np.float64)
    return x[n > 0], n[n > 0]
