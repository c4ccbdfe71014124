"""Guess replacement: in a share of its dialogues the verifier learns the true verdict instead of its own.

Decisions that matter here:
- iterations count from 0, so that the first one has the whole share;
- the number of dialogues is int(share * num), as published, but what rounding took away is given back first: 0.29 of 100 is 29;
- who is replaced depends on (seed, iteration, agent) by a stable hash, not on the process.
Source of the schedule: the published experiments on code validation (Hammond and Adam-Day, ICLR 2025).
"""

import numpy as np

from nip_ray.seeding import stable_seed
from nip_ray.settings.text_training import TextTrainingSettings

ROUNDING = 1e-9


def share(settings: TextTrainingSettings, iteration: int) -> float:
    """The share of dialogues, in [0, 1], in which the verifier's guess is replaced in `iteration` (from 0).

    p = guess_replacement: none: p; linear: max(p - iteration * rate, 0); exponential: p * (1 - rate) ** iteration.
    Raises ValueError for a negative iteration.
    """
    if iteration < 0:
        raise ValueError(f"iteration is {iteration}, expected 0 or more")
    start, rate = settings.guess_replacement, settings.guess_replacement_rate
    if settings.guess_replacement_annealing == "linear":
        return max(start - iteration * rate, 0.0)
    if settings.guess_replacement_annealing == "exponential":
        return start * (1 - rate) ** iteration
    return start


def split_for_replacement(num: int, share: float, seed: int, iteration: int, agent: str) -> tuple[list[int], list[int]]:
    """(indices to replace, indices to keep) of `num` dialogues, each in ascending order: the first int(share * num) of a permutation.

    Raises ValueError for a share outside [0, 1].
    """
    if not 0 <= share <= 1:
        raise ValueError(f"share is {share}, expected between 0 and 1")
    random = np.random.default_rng(stable_seed(seed, "guess_replacement", iteration, agent))
    order = random.permutation(num).tolist()
    count = int(share * num + ROUNDING)
    return sorted(order[:count]), sorted(order[count:])
