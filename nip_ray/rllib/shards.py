"""Learners that hold their own copies alone (`learners.shard`): who gets which, and what a minibatch holds in all.

Decisions that matter here:
- copies are dealt out in the order of one learner's first pass, one to each learner in turn. So the slices of that pass are those of
  learners that hold everything; in later passes each learner permutes its own, and a minibatch is what all have at the same places;
- what a minibatch holds in all, and what its advantages are normalised by, is known before the first step: it takes one all-reduce of some
  numbers an update, whose sums are in double precision;
- every learner takes part in every step, whether it has rows of an agent or not.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from nip_ray.seeding import generator


def dealt(num_copies: int, learners: int, seed: int, iteration: int) -> list[Tensor]:
    """The copies of each learner: the order of one learner's first pass, dealt out in turn. Raises ValueError for unequal shares."""
    if num_copies % learners:
        raise ValueError(f"{num_copies} copies cannot be shared evenly among {learners} learners")
    order = torch.randperm(num_copies, generator=generator(seed, "minibatches", iteration))
    return [order[rank::learners] for rank in range(learners)]


def own_order(count: int, seed: int, iteration: int, epoch: int, rank: int) -> Tensor:
    """(count,) int64: the order in which a learner works on its copies in a pass; in the first, as they were dealt out."""
    if epoch == 0:
        return torch.arange(count)
    return torch.randperm(count, generator=generator(seed, "minibatches", iteration, epoch, rank))


def own_places(first: int, last: int, learners: int, rank: int) -> slice:
    """Of all copies' places from `first` to before `last`, a learner's own: its j-th copy has the place j * learners + rank."""
    return slice(-((rank - first) // learners), -((rank - last) // learners))


@dataclass(frozen=True)
class JointRows:
    """The rows of all learners in M minibatches. agents: who has any. count: agent -> (M,) how many.

    moments: agent -> (M, 2) mean and deviation of their advantages in double precision, as `normalise` has them (0 and 1 for less
    than two rows).
    compared: (M,) turns that are compared under zero knowledge. everywhere: the agents of whom each learner has rows.
    """

    agents: Sequence[str]
    count: Mapping[str, Sequence[int]]
    moments: Mapping[str, Tensor]
    compared: Sequence[int]
    everywhere: frozenset[str]


def joint_rows(
    agents: Sequence[str],
    own: Mapping[str, Sequence[Tensor]],
    compared: Sequence[int],
    learners: int,
    add: Callable[[Tensor], Any],
    device: torch.device,
) -> JointRows:
    """What M minibatches hold of all learners together.

    agents: all that learn, in an order that all learners have. own: agent -> the advantages (N,) of this learner's rows in each minibatch;
    one without any is left out. compared: its turns that are compared in each. add: puts the sum over learners in the place of a tensor.
    """
    count_M = len(compared)
    seen_MA3 = torch.zeros(count_M + 1, len(agents) + 1, 3, dtype=torch.float64, device=device)
    for a, agent in enumerate(agents):
        for m, advantage_N in enumerate(own.get(agent, ())):
            x_N = advantage_N.double()
            seen_MA3[m, a] = torch.stack([x_N.new_tensor(len(x_N)), x_N.sum(), x_N.square().sum()])
        seen_MA3[-1, a, 0] = agent in own
    seen_MA3[:-1, -1, 0] = torch.tensor(compared)
    add(seen_MA3)
    count_MA, sum_MA, square_MA = seen_MA3[:-1].unbind(-1)
    mean_MA = sum_MA / count_MA.clamp_min(1)
    deviation_MA = (square_MA / count_MA.clamp_min(1) - mean_MA.square()).clamp_min(0).sqrt().clamp_min(1e-6)
    alone_MA = count_MA < 2
    moments_MA2 = torch.stack([mean_MA.masked_fill(alone_MA, 0), deviation_MA.masked_fill(alone_MA, 1)], -1)
    counts_AM, holders_A = count_MA.t().long().tolist(), seen_MA3[-1, :, 0].tolist()
    counts, holders = dict(zip(agents, counts_AM[:-1], strict=True)), dict(zip(agents, holders_A[:-1], strict=True))
    return JointRows(
        agents=[agent for agent in agents if any(counts[agent])],
        count=counts,
        moments=dict(zip(agents, moments_MA2[:, :-1].unbind(1), strict=True)),
        compared=counts_AM[-1],
        everywhere=frozenset(agent for agent in agents if holders[agent] == learners),
    )
