"""Whether a verifier is as often right as it is sure: reliability by bins, Brier score, expected calibration error.

Decisions that matter here:
- what is graded is p, the verifier's probability of acceptance among its two verdicts, p(accept) / (p(accept) + p(reject)), at the turn in
  which it gave its verdict in greedy play. An episode without a verdict has none; their share is reported;
- reliability is of acceptance: in a bin, how many of the instances are y = 1, beside the mean of p. A calibrated verifier has both equal;
- Brier: the mean of (p - y)^2 (Brier, 1950). ECE: the mean over bins, by their instances, of |mean p - share of y = 1| (Naeini, Cooper and
  Hauskrecht, AAAI 2015). It is biased upwards for few instances, since every bin has its own noise: read it with its interval.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from nip_ray.evaluation.aggregates import bootstrap_interval
from nip_ray.evaluation.intervals import mean, proportion
from nip_ray.evaluation.staged import Staged
from nip_ray.protocols import ACCEPT, CONTINUE, REJECT

NUM_BINS = 10
_RESAMPLES = 500
_TINY = 1e-12

Array = npt.NDArray[np.float64]


def calibration(staged: Staged, seed: int) -> dict[str, Any]:
    """{"brier", "ece", "undecided"} as records, and "bins": a list of {"from", "to", "confidence", "positive"}, empty bins left out."""
    graded_N, y_N = graded_verdicts(staged)
    count = staged.rollout.num_copies
    found: dict[str, Any] = {
        "brier": mean((graded_N - y_N) ** 2).record(),
        "ece": bootstrap_interval(lambda index_N: _error(graded_N[index_N], y_N[index_N]), len(y_N), seed, _RESAMPLES).record(),
        "undecided": proportion(count - len(y_N), count).record(),
    }
    bin_N = _bins(graded_N)
    return {**found, "bins": [_bin(number, graded_N[bin_N == number], y_N[bin_N == number]) for number in sorted(set(bin_N.tolist()))]}


def graded_verdicts(staged: Staged) -> tuple[Array, Array]:
    """(N,) probabilities of acceptance at the verdict, and (N,) labels, of the copies that have one."""
    rollout = staged.rollout
    decided_B = rollout.verdict_B != CONTINUE
    chance_BR3 = staged.chance_BR3
    # the turn of the verdict is the verifier's last whose decision could count: it is asked nothing after it
    counts_BR = chance_BR3.sum(-1) > 0
    rounds_R = torch.arange(counts_BR.shape[1], device=counts_BR.device)
    last_B = torch.where(counts_BR, rounds_R, -1).amax(1)
    decided_B = decided_B & (last_B >= 0)
    chance_N3 = chance_BR3[decided_B, last_B[decided_B]].double()
    accept_N = chance_N3[:, ACCEPT] / (chance_N3[:, ACCEPT] + chance_N3[:, REJECT]).clamp_min(_TINY)
    return accept_N.cpu().numpy(), rollout.y_B[decided_B].double().cpu().numpy()


def _bins(graded_N: Array) -> npt.NDArray[np.int64]:
    return np.minimum((graded_N * NUM_BINS).astype(np.int64), NUM_BINS - 1)


def _bin(number: int, graded_K: Array, y_K: Array) -> Mapping[str, Any]:
    ends = {"from": number / NUM_BINS, "to": (number + 1) / NUM_BINS}
    return {**ends, "confidence": float(graded_K.mean()), "positive": proportion(int(y_K.sum()), len(y_K)).record()}


def _error(graded_N: Array, y_N: Array) -> float:
    """Expected calibration error: of the sums over each bin, by how many are in it."""
    gap_K = np.bincount(_bins(graded_N), weights=graded_N - y_N, minlength=NUM_BINS)
    return float(np.abs(gap_K).sum() / len(y_N))
