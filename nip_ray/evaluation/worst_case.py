"""The worst of several episodes for each instance: what a prover who may try again, or a verifier who has bad luck, comes to.

Decisions that matter here:
- an instance counts as right only if the verdict was right in *every* episode, with sampled actions and other episode seeds in each; as
  undecided if any was. So each instance is one trial, and the exact interval of a share holds;
- the more episodes, the lower the figure: it says so beside it (`episodes`), and figures of different numbers are not to be compared.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from nip_ray.evaluation.intervals import proportion
from nip_ray.evaluation.metrics import verdict_counts
from nip_ray.play.rollout import Rollout
from nip_ray.protocols import CONTINUE


def worst_case(rollouts: Sequence[Rollout], groups: Mapping[str, Tensor]) -> dict[str, Any]:
    """{"episodes": E, name: record} with the names of `verdict_counts`.

    rollouts: E sampled ones of the same instances, in the same order. groups: as `Scenario.group_I` gives them.
    """
    first = rollouts[0]
    verdict_EB = torch.stack([rollout.verdict_B for rollout in rollouts])
    wrong_EB = verdict_EB != first.y_B
    # of an instance's episodes the first that went wrong; undecided ones are wrong, so they are found
    worst_B = verdict_EB.gather(0, wrong_EB.long().argmax(0)[None])[0]
    counts = verdict_counts(replace(first, verdict_B=worst_B), groups)
    undecided_B = (verdict_EB == CONTINUE).any(0)
    counts["verifier/undecided"] = (int(undecided_B.sum()), len(undecided_B))
    return {"episodes": len(rollouts), **{name: proportion(*count).record() for name, count in counts.items()}}
