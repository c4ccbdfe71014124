"""Calibration of a verifier: reliability by bins, Brier score and expected calibration error.

Decisions that matter here:
- p is the verifier's probability of acceptance among its two verdicts, p(accept) / (p(accept) + p(reject)), at the turn
  of its verdict in greedy play. Episodes without a verdict have none; their share is reported;
- reliability is of acceptance: in each bin, the share of instances with y = 1 against the mean of p. They are equal for
  a calibrated verifier;
- with more than two verdicts, p is the probability of the given verdict among the verdicts, and y is whether it is
  right (Guo, Pleiss, Sun and Weinberger, "On calibration of modern neural networks", ICML 2017: of the predicted
  class);
- Brier: the mean of (p - y)^2 (Brier, 1950). ECE: the mean over bins, by their instances, of |mean p - share of y = 1|
  (Naeini, Cooper and Hauskrecht, AAAI 2015). It is biased upwards, since every bin adds the size of its noise: a
  perfectly calibrated verifier has about 0.03 after 1,000 instances. So perfect calibration cannot be shown, only that
  the error is below the upper end of its interval;
- the interval of the error follows from the effect of noise on a sum of absolute values. Noise raises it by at most the
  sum of its own absolute values, so the lower end is that much below (its 97.5th percentile, by resampled instances, as
  Efron, 1979, or by labels drawn as for a calibrated verifier, as Broecker and Smith, Weather and Forecasting 22, 2007;
  the larger). It cannot lower the expectation, so the upper end is the normal one. Percentiles of the resampled errors
  would count the noise twice.
"""

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from nip_ray.evaluation.aggregates import Z95
from nip_ray.evaluation.intervals import Mean, mean, proportion
from nip_ray.evaluation.selective import selective
from nip_ray.play.rollout import Rollout
from nip_ray.play.staged import Staged
from nip_ray.protocols import ACCEPT, REJECT
from nip_ray.seeding import stable_seed

NUM_BINS = 10
_RESAMPLES = 500
_TINY = 1e-12

Array = npt.NDArray[np.float64]


def calibration(staged: Staged, seed: int) -> dict[str, Any]:
    """{"brier", "ece", "undecided"} as records, "selective" (`nip_ray.evaluation.selective`), and "bins": a list of
    {"from", "to", "confidence", "positive"}, empty bins left out."""
    graded_N, y_N, right_N = graded_verdicts(staged)
    sure_N = np.where(right_N == y_N, graded_N, 1 - graded_N)  # accepted, if it is right just where y is 1
    count = staged.rollout.num_copies
    found: dict[str, Any] = {
        "brier": mean((graded_N - y_N) ** 2).record(),
        "ece": calibration_error(graded_N, y_N, seed).record(),
        "undecided": proportion(count - len(y_N), count).record(),
        "selective": selective(sure_N, right_N, count),
    }
    bin_N, bins = _bins(graded_N), []
    for number in sorted(set(bin_N.tolist())):
        graded_K, y_K = graded_N[bin_N == number], y_N[bin_N == number]
        ends = {"from": number / NUM_BINS, "to": (number + 1) / NUM_BINS}
        bins.append(
            {**ends, "confidence": float(graded_K.mean()), "positive": proportion(int(y_K.sum()), len(y_K)).record()}
        )
    return {**found, "bins": bins}


def calibration_error(graded_N: Array, y_N: Array, seed: int) -> Mean:
    """The expected calibration error of probabilities (N,) for labels (N,) of 0 and 1, with its 95 % interval (None for
    one instance).

    The interval holds the estimate, and errs to the safe side. seed: of the resampling.
    """
    n = len(y_N)
    if n == 0:
        return Mean(None, None, None, 0)
    gap_K = _gaps(graded_N, y_N)
    error = float(np.abs(gap_K).sum())
    if n == 1:
        return Mean(error, None, None, 1)
    random, again, calibrated = np.random.default_rng(stable_seed(seed, "calibration error")), [], []
    for _ in range(_RESAMPLES):
        index_N = random.integers(n, size=n)
        again.append(np.abs(_gaps(graded_N[index_N], y_N[index_N]) - gap_K).sum())
        calibrated.append(np.abs(_gaps(graded_N, random.random(n) < graded_N)).sum())
    noise = max(np.percentile(again, 97.5), np.percentile(calibrated, 97.5))
    variance = max(float(((graded_N - y_N) ** 2).mean()) - error**2, float((graded_N * (1 - graded_N)).mean()))
    return Mean(error, max(0.0, error - float(noise)), min(1.0, error + Z95 * math.sqrt(variance / n)), n)


def graded_verdicts(staged: Staged) -> tuple[Array, Array, Array]:
    """(N,) probabilities of acceptance at the verdict, (N,) labels, and (N,) 1 where the verdict is right, of the
    copies that have one. With more than two verdicts: probabilities of the given verdict, and twice whether it is
    right. Under a panel's mean: the mean. The verdict may be the less probable one: of a panel that votes, and with
    `force_guess`."""
    rollout, chance_BRD = staged.rollout, staged.chance_BRD
    decided_B = rollout.verdict_B != chance_BRD.shape[-1] - 1
    if staged.stated_B is not None:
        y_N, right_N = _judged(rollout, decided_B)
        return staged.stated_B[decided_B].double().cpu().numpy(), y_N, right_N
    # the verdict falls in the verifier's last turn whose decision could count
    counts_BR = chance_BRD.sum(-1) > 0
    rounds_R = torch.arange(counts_BR.shape[1], device=counts_BR.device)
    last_B = torch.where(counts_BR, rounds_R, -1).amax(1)
    decided_B = decided_B & (last_B >= 0)
    chance_ND = chance_BRD[decided_B, last_B[decided_B]].double()
    y_N, right_N = _judged(rollout, decided_B)
    if chance_ND.shape[1] > 3:
        own_N = chance_ND.gather(1, rollout.verdict_B[decided_B][:, None])[:, 0]
        return (own_N / chance_ND[:, :-1].sum(1).clamp_min(_TINY)).cpu().numpy(), right_N, right_N
    accept_N = chance_ND[:, ACCEPT] / (chance_ND[:, ACCEPT] + chance_ND[:, REJECT]).clamp_min(_TINY)
    return accept_N.cpu().numpy(), y_N, right_N


def _judged(rollout: Rollout, decided_B: torch.Tensor) -> tuple[Array, Array]:
    """(N,) labels of the decided copies, and (N,) 1 where the verdict is right."""
    verdict_N, y_N = rollout.verdict_B[decided_B], rollout.y_B[decided_B]
    return y_N.double().cpu().numpy(), (verdict_N == y_N).double().cpu().numpy()


def _bins(graded_N: Array) -> npt.NDArray[np.int64]:
    return np.minimum((graded_N * NUM_BINS).astype(np.int64), NUM_BINS - 1)


def _gaps(graded_N: Array, y_N: npt.NDArray[Any]) -> Array:
    """(K,) each bin's mean p minus its share of y = 1, weighted by the share of instances in the bin."""
    return np.bincount(_bins(graded_N), weights=graded_N - y_N, minlength=NUM_BINS) / len(y_N)
