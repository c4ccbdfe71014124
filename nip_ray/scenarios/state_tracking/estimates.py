"""Prover and estimator: the state of a dialogue, the error of its estimates, and the worst case of a verifier.

Decisions that matter here:
- a claim is that some moves lead from one state to another, independent of those before, so each is true or false by
  itself. Split at a state half way, it holds if both parts do, and only with the right state;
- the prover that points at an estimate keeps the claimed state (the estimate is too low) or names another (it is too
  high, since of two ends one is wrong: the remaining probability is the most that the other may have). The rest is
  about that new claim;
- the error is what the prover has shown: the truth of the last claim less its estimate; and if the parts of a claim
  were called more likely than the claim before, by how much (two parts hold together with the product of their
  probabilities). An estimator that is right about every part never has one above 0, and otherwise a prover that knows
  it can show at least 1/2;
- positions contain everything that agents see, as in `nip_ray.scenarios.state_tracking.worst_case`.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from itertools import product

import torch
from torch import Tensor

from nip_ray.scenarios.state_tracking.chains import NUM_STATES, TAKES_GA, Chains

PROBABILITIES = (0.0, 0.5, 1.0)
WORDS = ("impossible", "even", "certain")
"""The estimator's words for these probabilities."""
PAIRS = tuple(product(range(len(WORDS)), repeat=2))
"""Symbol of the estimator -> the words for the left and the right part, by number."""
POINTS = tuple(product(range(2), range(NUM_STATES)))
"""Symbol of the pointing prover -> (left 0 or right 1, the state in which it claims this part ends)."""
_CERTAIN = len(WORDS) - 1


class Walks:
    """The state that chains lead to from any state at any place to any other place, forwards and backwards."""

    def __init__(self, chains: Chains) -> None:
        count = len(chains.claim_I)
        takes = TAKES_GA.to(chains.move_IT.device)
        at_IS = torch.arange(NUM_STATES, device=takes.device).expand(count, -1)
        places = [at_IS]
        for move_I in chains.move_IT.unbind(1):
            at_IS = takes[move_I].gather(1, at_IS)
            places.append(at_IS)
        self.from_start_IPS = torch.stack(places, 1)
        self.to_start_IPS = self.from_start_IPS.argsort(-1)

    def lead(self, item_N: Tensor, at_N: Tensor, state_N: Tensor, to_N: Tensor) -> Tensor:
        """(N,): the state at place `to_N` of chain `item_N` that goes with `state_N` at place `at_N`."""
        return self.from_start_IPS[item_N, to_N, self.to_start_IPS[item_N, at_N, state_N]]


@dataclass(frozen=True)
class Claims:
    """N disputed claims: the moves of chain `item_N` from place `low_N` to `high_N` lead from `low_state_N` to
    `high_state_N`.

    middle_N: the prover's state half way, -1 before. pair_N: the estimator's answer, -1 before. stated_N: the estimate
    of the claim, by number; -1 for the first one. root_N: 1 if both parts of the first claim were called certain, 0 if
    not, -1 before. over_N: 1 if the prover has ever called an estimate too high. contradicted_N: 1 if parts were ever
    called more likely than their claim.
    """

    item_N: Tensor
    low_N: Tensor
    high_N: Tensor
    low_state_N: Tensor
    high_state_N: Tensor
    middle_N: Tensor
    pair_N: Tensor
    stated_N: Tensor
    root_N: Tensor
    over_N: Tensor
    contradicted_N: Tensor

    @property
    def halfway_N(self) -> Tensor:
        """The place of the middle."""
        return (self.low_N + self.high_N) // 2


def replay(chains: Chains, item_N: Tensor, said_NR: Tensor, round_N: Tensor) -> tuple[Claims, Tensor]:
    """(the claims before `round_N`, (N,) float32 the error so far, complete once one move is left).

    said_NR: the symbol of each round (one agent per round); -1, silence, counts as 0.
    """
    no_N, none_N = torch.zeros_like(item_N), torch.full_like(item_N, -1)
    start_N, claim_N = chains.state_IP[item_N, 0], chains.claim_I[item_N]
    now = Claims(item_N, no_N, no_N + chains.length, start_N, claim_N, none_N, none_N, none_N, none_N, no_N, no_N)
    error_N = torch.zeros(len(item_N), device=item_N.device)
    sure = torch.tensor(PROBABILITIES, device=item_N.device)
    for r in range(0, 3 * (chains.length.bit_length() - 1), 3):
        middle_N, pair_N, point_N = (
            said_NR[:, r + step].clamp(0, most) for step, most in ((0, NUM_STATES - 1), (1, 8), (2, 9))
        )
        left_N, right_N = pair_N // 3, pair_N % 3
        both_N, given_N = sure[left_N] * sure[right_N], torch.where(now.stated_N < 0, 1.0, sure[now.stated_N])
        after = replace(now, middle_N=middle_N)
        now = _where(round_N == r + 1, after, now)
        answered_N = round_N > r + 1
        error_N = error_N + (both_N - given_N).clamp(min=0) * answered_N
        after = replace(
            after,
            pair_N=pair_N,
            root_N=((left_N == _CERTAIN) & (right_N == _CERTAIN)).long() if r == 0 else now.root_N,
            contradicted_N=now.contradicted_N | (both_N > given_N).long(),
        )
        now = _where(answered_N, after, now)
        now = _where(round_N > r + 2, pointed(after, point_N), now)
    one_N = now.high_N - now.low_N == 1
    return now, error_N + torch.where(one_N, holds(chains, now).float() - sure[now.stated_N], 0.0)


def pointed(claims: Claims, point_N: Tensor) -> Claims:
    """The claims that the prover made by these symbols from split and estimated claims."""
    right_N, end_N = point_N >= NUM_STATES, point_N % NUM_STATES
    kept_N = end_N == torch.where(right_N, claims.high_state_N, claims.middle_N)
    said_N = torch.where(right_N, claims.pair_N % 3, claims.pair_N // 3)
    return replace(
        claims,
        low_N=torch.where(right_N, claims.halfway_N, claims.low_N),
        high_N=torch.where(right_N, claims.high_N, claims.halfway_N),
        low_state_N=torch.where(right_N, claims.middle_N, claims.low_state_N),
        high_state_N=end_N,
        middle_N=torch.full_like(end_N, -1),
        pair_N=torch.full_like(end_N, -1),
        stated_N=torch.where(kept_N, said_N, _CERTAIN - said_N),
        over_N=claims.over_N | (~kept_N).long(),
    )


def holds(chains: Chains, claims: Claims) -> Tensor:
    """(N,) bool, for claims about one move: True if it leads from the one state to the other."""
    move_N = chains.move_IT[claims.item_N, claims.low_N.clamp(max=chains.length - 1)]
    return TAKES_GA.to(move_N.device)[move_N, claims.low_state_N] == claims.high_state_N


def _where(condition_N: Tensor, one: Claims, other: Claims) -> Claims:
    pairs = {field.name: (getattr(one, field.name), getattr(other, field.name)) for field in fields(Claims)}
    return Claims(**{name: torch.where(condition_N, *pair) for name, pair in pairs.items()})


Asked = Callable[[Claims], Tensor]
"""Probabilities at N claims: (N, 9) of the estimator's answers, which does not see `root_N`, `over_N` and
`contradicted_N`, or (N,) that the verifier accepts."""
# Axes below: I chains, J claims of one width, A and B states at their ends, M in the middle, Q the estimate of the
# claim, and R, O, C for `root_N`, `over_N` and `contradicted_N`.
_SIZES = {"M": NUM_STATES, "Q": len(WORDS), "R": 2, "O": 2, "C": 2}


def worst_acceptance(chains: Chains, estimates: Asked, accepts: Asked) -> Tensor:
    """(I,) float64: the probability of accepting each claim with its best prover (for false claims: the soundness
    error)."""
    value, width = _ask(chains, 1, accepts, "QROC"), 1
    same_MB = torch.eye(NUM_STATES, dtype=torch.bool)
    while width < chains.length:
        width *= 2
        objected = value.flip(4)[..., 1:, :].expand(value.shape)  # too high: the other end has the rest
        others = objected[:, :, :, None].masked_fill(same_MB[..., None, None, None, None], -torch.inf).amax(4)
        part = torch.maximum(value, others)
        left, right = part[:, 0::2, :, None], part[:, 1::2].transpose(2, 3)[:, :, None]
        first = width == chains.length
        value = _mean_over_pairs(left, right, _ask(chains, width, estimates, "M" if first else "MQ"), first).amax(4)
    root_I = torch.arange(len(value))
    return value[root_I, 0, chains.state_IP[:, 0].cpu(), chains.claim_I.cpu()]


def _mean_over_pairs(left: Tensor, right: Tensor, said: Tensor, first: bool) -> Tensor:
    """(I, J, A, B, M, Q, R, O, C), of the first claim without the last four: the mean over the estimator's answers of
    the better part.

    left, right: (I, J, A, 1, M, Q, R, O, C) and (I, J, 1, B, M, Q, R, O, C), Q of the estimate of the part. said: its
    probabilities.
    """
    total = 0
    for pair, (one, two) in enumerate(PAIRS):
        better = torch.maximum(left[..., one, :, :, :], right[..., two, :, :, :])
        if first:
            total = total + said[..., pair] * better[..., int(one == two == _CERTAIN), 0, 0]
            continue
        stated = [better[..., 1:].expand(better.shape) if _contradicts(pair, q) else better for q in range(len(WORDS))]
        total = total + said[..., pair, None, None, None] * torch.stack(stated, 5)
    assert isinstance(total, Tensor)
    return total


def least_acceptance(chains: Chains, accepts: Asked) -> Tensor:
    """(I,) float64: the probability that each true claim is accepted against its worst estimator, with a prover that
    names the true states and keeps to the part with the lower estimate (the left one of equals)."""
    value = _ask(chains, 1, accepts, "QROC")
    item_I1, place_1J = torch.arange(len(value))[:, None], torch.arange(chains.length)[None]
    state_IP = chains.state_IP.cpu()
    value = value[item_I1, place_1J, state_IP[:, :-1], state_IP[:, 1:]][..., 0, :]  # (I, J, Q, R, C)
    while value.shape[1] > 1:
        parts = [(value[:, int(two < one) :: 2, min(one, two)], pair) for pair, (one, two) in enumerate(PAIRS)]
        if value.shape[1] == 2:
            return torch.stack([at[:, 0, int(PAIRS[pair] == (_CERTAIN, _CERTAIN)), 0] for at, pair in parts]).amin(0)
        stated = [
            [at[..., 1:].expand(at.shape) if _contradicts(pair, q) else at for at, pair in parts]
            for q in range(len(WORDS))
        ]
        value = torch.stack([torch.stack(one).amin(0) for one in stated], 2)
    raise AssertionError("chains have at least two moves")


def truthful(chains: Chains) -> Asked:
    """The estimator that is right about both parts."""
    walks = Walks(chains)

    def says(at: Claims) -> Tensor:
        left_N = walks.lead(at.item_N, at.low_N, at.low_state_N, at.halfway_N) == at.middle_N
        right_N = walks.lead(at.item_N, at.halfway_N, at.middle_N, at.high_N) == at.high_state_N
        return torch.nn.functional.one_hot(_CERTAIN * (3 * left_N.long() + right_N.long()), len(PAIRS)).double()

    return says


def _contradicts(pair: int, stated: int) -> bool:
    one, two = PAIRS[pair]
    return PROBABILITIES[one] * PROBABILITIES[two] > PROBABILITIES[stated]


def _ask(chains: Chains, width: int, asked: Asked, axes: str) -> Tensor:
    """(I, J, A, B, *axes) float64, (..., 9) for an estimator: `asked` at claims of `width` moves, reachable or not."""
    shape = (len(chains.claim_I), chains.length // width, NUM_STATES, NUM_STATES, *(_SIZES[axis] for axis in axes))
    item_N, interval_N, low_N, high_N, *more = (
        column.reshape(-1).to(chains.claim_I.device)
        for column in torch.meshgrid(*map(torch.arange, shape), indexing="ij")
    )
    given = dict(zip(axes, more))
    none_N, no_N = torch.full_like(item_N, -1), torch.zeros_like(item_N)
    low, high = interval_N * width, (interval_N + 1) * width
    path = (given.get(axis, no_N) for axis in "ROC")
    found = asked(
        Claims(item_N, low, high, low_N, high_N, given.get("M", none_N), none_N, given.get("Q", none_N), *path)
    )
    return found.double().cpu().view(*shape, *found.shape[1:])
