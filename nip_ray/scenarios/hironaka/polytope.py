"""The exact reduction: the vertices of conv(S) + R^d_{>=0}, where the published rule keeps all componentwise-minimal points.

Decisions that matter here:
- a point is no vertex exactly if a mixture of the other points lies at or below it. The smallest t such that a mixture lies at or
  below the point plus t in every coordinate is one linear programme; the point goes if t is at most TOLERANCE;
- the programme is solved for points moved to the coordinate planes and divided by their largest coordinate, so TOLERANCE is relative
  to the game's extent. A true vertex that sticks out by less is taken for none; for whole numbers up to 100 in three dimensions
  there is none so flat;
- points are tried one after the other, against those not yet discarded: discarding a point that is no vertex never makes another one;
- one programme a minimal point, some milliseconds each, on the CPU: for figures and small runs, not for millions of games.
"""

import numpy as np
import torch
from torch import Tensor

from nip_ray.errors import TrainingError
from nip_ray.scenarios.hironaka import rules

TOLERANCE = 1e-7


def exact_mask(points_BMD: Tensor) -> Tensor:
    """(B, m) bool: the vertices; of equal points the first alone. Raises TrainingError should the solver fail."""
    mask_BM = rules.minimal_mask(points_BMD)
    extent_BMD = rules.reposition(points_BMD.double()).cpu().numpy()
    rows = [_vertices(extent_MD, keep_M) for extent_MD, keep_M in zip(extent_BMD, mask_BM.cpu().numpy())]
    return torch.from_numpy(np.stack(rows)).to(points_BMD.device) if rows else mask_BM


def exact(points_BMD: Tensor) -> Tensor:
    """The vertices, in the rows where they were; all other rows are padding."""
    return rules.keep(points_BMD, exact_mask(points_BMD))


def _vertices(extent_MD: np.ndarray, minimal_M: np.ndarray) -> np.ndarray:
    keep_M = minimal_M.copy()
    scaled_MD = extent_MD / max(float(extent_MD[keep_M].max(initial=0.0)), 1e-300)
    for row in np.flatnonzero(minimal_M):
        others_M = keep_M.copy()
        others_M[row] = False
        if others_M.any():
            keep_M[row] = _height(scaled_MD[row], scaled_MD[others_M]) > TOLERANCE
    return keep_M


def _height(point_D: np.ndarray, others_ND: np.ndarray) -> float:
    """The smallest t with a mixture of `others_ND` at or below ``point_D + t``."""
    from scipy.optimize import linprog

    count, dimension = others_ND.shape
    solved = linprog(
        c=np.append(np.zeros(count), 1.0),
        A_ub=np.hstack((others_ND.T, -np.ones((dimension, 1)))),
        b_ub=point_D,
        A_eq=np.append(np.ones(count), 0.0)[None],
        b_eq=[1.0],
        bounds=[(0, None)] * count + [(None, None)],
        options={"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10},
    )
    if not solved.success:
        raise TrainingError(f"the linear programme of the exact polytope was not solved: {solved.message}")
    return float(solved.fun)
