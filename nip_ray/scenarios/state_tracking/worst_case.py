"""The exact worst case of a verifier, by backward induction over all possible messages of a prover or an opponent about
a chain.

Decisions that matter here:
- an agent is a function from many positions to probabilities at once, so that networks and language models are queried
  in few calls; a position contains everything they may see (an interval, its two committed states, the middle), so it
  determines the rest;
- only reachable positions are queried: the first state of a chain and its claim are given. There are some 1,200 for a
  chain of 16 moves, against 5^15 chains of committed states;
- remaining probability (a verifier that stays undecided) counts as not accepted.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from nip_ray.scenarios.state_tracking.chains import NUM_STATES, Chains


@dataclass(frozen=True)
class Positions:
    """N positions of a bisection. item_N: the row of the chain. low_N, high_N: the places in dispute. low_state_N,
    high_state_N: the states committed there. middle_N: the state committed half way (-1 if still to come, or if one
    move is left)."""

    item_N: Tensor
    low_N: Tensor
    high_N: Tensor
    low_state_N: Tensor
    high_state_N: Tensor
    middle_N: Tensor


Chances = Callable[[Positions], Tensor]
"""Probabilities at N positions: (N,) of keeping the right half or of accepting, (N, 5) of committing to each state."""


def worst_acceptance(chains: Chains, keeps_right: Chances, accepts: Chances) -> Tensor:
    """(I,) float64: the probability that each claim is accepted under the best commitments for it (for false claims:
    the soundness error against every lie). keeps_right: the agent that chooses the half. accepts: the verifier, of one
    move and two states."""

    def best_commitment(width: int, left: Tensor, right: Tensor) -> Tensor:
        right_share = _ask(chains, width, keeps_right, with_middle=True)
        return (left + right_share * (right - left)).amax(-1)

    return _induction(chains, accepts, best_commitment)


def least_acceptance(chains: Chains, commits: Chances | None, accepts: Chances) -> Tensor:
    """(I,) float64: the probability that each claim is accepted under the worst choices of halves for it (for true
    claims: the completeness against every opponent). commits: the prover, None for one that always commits to the true
    states."""

    def worst_half(width: int, left: Tensor, right: Tensor) -> Tensor:
        least = torch.minimum(left, right)
        if commits is not None:
            return (_ask(chains, width, commits, with_middle=False) * least).sum(-1)
        truth_IJ = chains.state_IP[:, width // 2 :: width]
        return least.gather(-1, truth_IJ[:, :, None, None, None].expand(*least.shape[:-1], 1)).squeeze(-1)

    return _induction(chains, accepts, worst_half)


def worst_acceptance_of_chain(chains: Chains, question_IT: Tensor, accepts: Chances) -> Tensor:
    """(I,) float64: like `worst_acceptance` if the prover commits to a whole chain of states, unaware of the question,
    and the verifier then sees one move of it. question_IT: (I, n), the probability of each move."""
    gain = question_IT.double()[:, :, None, None] * _leaves(chains, accepts)
    reached_IB = torch.full((len(gain), NUM_STATES), -torch.inf, dtype=torch.float64)
    reached_IB.scatter_(1, chains.state_IP[:, :1].cpu(), 0.0)
    for gain_IAB in gain.unbind(1):
        reached_IB = (reached_IB[:, :, None] + gain_IAB).amax(1)
    return reached_IB.gather(1, chains.claim_I[:, None].cpu()).squeeze(1)


def acceptance_of_truth(chains: Chains, question_IT: Tensor, accepts: Chances) -> Tensor:
    """(I,) float64: the probability that true claims are accepted if the prover commits to the true chain; see
    `worst_acceptance_of_chain`."""
    leaf_ITAB = _leaves(chains, accepts)
    item_I1, step_1T = torch.arange(len(leaf_ITAB))[:, None], torch.arange(chains.length)[None]
    state_IP = chains.state_IP.cpu()
    return (question_IT.double() * leaf_ITAB[item_I1, step_1T, state_IP[:, :-1], state_IP[:, 1:]]).sum(1)


def truthful(chains: Chains) -> Chances:
    """The best opponent of lies keeps the right half if the committed middle is the true state, else the left half."""

    def keeps_right(at: Positions) -> Tensor:
        return (chains.state_IP[at.item_N, (at.low_N + at.high_N) // 2] == at.middle_N).double()

    return keeps_right


def _induction(chains: Chains, accepts: Chances, merge: Callable[[int, Tensor, Tensor], Tensor]) -> Tensor:
    """(I,): the value at the root. merge: (width, values of the left and of the right half (I, J, A, B, M)) -> values
    (I, J, A, B)."""
    value_IJAB, width = _leaves(chains, accepts), 1
    while width < chains.length:
        width *= 2
        left, right = value_IJAB[:, 0::2, :, None, :], value_IJAB[:, 1::2].transpose(2, 3)[:, :, None]
        value_IJAB = merge(width, *torch.broadcast_tensors(left, right))
    root_I = torch.arange(len(value_IJAB))
    return value_IJAB[root_I, 0, chains.state_IP[:, 0].cpu(), chains.claim_I.cpu()]


def _leaves(chains: Chains, accepts: Chances) -> Tensor:
    return _ask(chains, 1, accepts, with_middle=False)


def _ask(chains: Chains, width: int, chances: Chances, with_middle: bool) -> Tensor:
    """float64, 0 at unreachable positions: `chances` at all intervals of `width` (J of them), with all states at their
    ends and, if requested, in the middle: (I, J, A, B), (I, J, A, B, M), or (I, J, A, B, M) of a function that returns
    M probabilities."""
    count, intervals = len(chains.claim_I), chains.length // width
    shape = (count, intervals, NUM_STATES, NUM_STATES, *([NUM_STATES] if with_middle else []))
    start, claim = chains.state_IP[:, :1].cpu(), chains.claim_I[:, None].cpu()
    state_1K = torch.arange(NUM_STATES)[None]
    reached = torch.ones(shape[:4], dtype=torch.bool)
    reached[:, 0] &= (state_1K == start)[:, :, None]
    reached[:, -1] &= (state_1K == claim)[:, None, :]
    item_N, interval_N, low_N, high_N, *middle = (
        (reached[..., None].expand(shape) if with_middle else reached).nonzero().unbind(1)
    )
    at = Positions(
        item_N,
        interval_N * width,
        (interval_N + 1) * width,
        low_N,
        high_N,
        middle[0] if middle else torch.full_like(item_N, -1),
    )
    device = chains.claim_I.device
    found = chances(Positions(*(getattr(at, name).to(device) for name in at.__dataclass_fields__))).double().cpu()
    made = torch.zeros((*shape, *found.shape[1:]), dtype=torch.float64)
    made[item_N, interval_N, low_N, high_N, *middle] = found
    return made
