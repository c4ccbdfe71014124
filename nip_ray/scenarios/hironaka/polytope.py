"""The exact reduction: the vertices of conv(S) + R^d_{>=0}; the published rule keeps all componentwise-minimal points.

Decisions that matter here:
- a point is a vertex exactly if some weights of at least 0 give it a smaller weighted sum than every other point. The
  best margin with weights that add up to 1 is a linear programme; the point stays if it is above TOLERANCE;
- in play one coordinate outgrows the others without bound, so the programme uses differences from the point with both
  scales removed: each coordinate divided by its largest, then each difference by its largest. Neither changes the
  feasible weights;
- a point that is the only smallest one in a coordinate is a vertex without a programme;
- points are tried one after the other, against those not yet discarded: discarding a point that is not a vertex never
  makes another one;
- the other minimal points take one programme each, some milliseconds, on the CPU: for evaluation and small runs, not
  for millions of games.
"""

import numpy as np
import torch
from torch import Tensor

from nip_ray.errors import TrainingError
from nip_ray.scenarios.hironaka import rules

TOLERANCE = 1e-9


def exact_mask(points_BMD: Tensor) -> Tensor:
    """(B, m) bool: the vertices; of equal points only the first. Raises TrainingError if the solver fails."""
    mask_BM = rules.minimal_mask(points_BMD)
    rows = [
        _vertices(points_MD, keep_M)
        for points_MD, keep_M in zip(points_BMD.double().cpu().numpy(), mask_BM.cpu().numpy())
    ]
    return torch.from_numpy(np.stack(rows)).to(points_BMD.device) if rows else mask_BM


def exact(points_BMD: Tensor) -> Tensor:
    """The vertices, in their original rows; all other rows are padding."""
    return rules.keep(points_BMD, exact_mask(points_BMD))


def _vertices(points_MD: np.ndarray, minimal_M: np.ndarray) -> np.ndarray:
    keep_M = minimal_M.copy()
    if keep_M.sum() <= 2:  # neither of two minimal points is above the other
        return keep_M
    for row in np.flatnonzero(minimal_M):
        others_M = keep_M.copy()
        others_M[row] = False
        away_ND = points_MD[others_M] - points_MD[row]
        keep_M[row] = bool((away_ND > 0).all(0).any()) or _margin(away_ND) > TOLERANCE
    return keep_M


def _margin(away_ND: np.ndarray) -> float:
    """The largest s such that weights of sum 1 make every weighted sum of the differences `away_ND` at least s, both
    scales removed."""
    from scipy.optimize import linprog

    away_ND = away_ND / np.abs(away_ND).max(0).clip(1e-300)
    away_ND /= np.abs(away_ND).max(1, keepdims=True)
    count, dimension = away_ND.shape
    solved = linprog(
        c=np.append(np.zeros(dimension), -1.0),
        A_ub=np.hstack((-away_ND, np.ones((count, 1)))),
        b_ub=np.zeros(count),
        A_eq=np.append(np.ones(dimension), 0.0)[None],
        b_eq=[1.0],
        bounds=[(0, None)] * dimension + [(None, None)],
        options={"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10},
    )
    if not solved.success:
        raise TrainingError(f"the linear programme of the exact polytope was not solved: {solved.message}")
    return -float(solved.fun)
