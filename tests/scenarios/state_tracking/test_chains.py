"""Chains are what they are said to be, and the exact worst case equals brute force and closed forms."""

from itertools import product

import pytest
import torch
from torch import Tensor

from nip_ray.errors import UserError
from nip_ray.scenarios.state_tracking.chains import GENERATORS, NUM_STATES, Chains, draw_chains
from nip_ray.scenarios.state_tracking.worst_case import (
    Chances,
    Positions,
    acceptance_of_truth,
    least_acceptance,
    truthful,
    worst_acceptance,
    worst_acceptance_of_chain,
)
from nip_ray.settings.state_tracking import ChainSettings


def drawn(length: int, count: int = 12, seed: int = 0) -> Chains:
    return draw_chains(ChainSettings(length=length, num_train=count, num_test=2), seed)


def perfect(chains: Chains) -> Chances:
    takes = torch.tensor(GENERATORS)

    def accepts(at: Positions) -> Tensor:
        return (takes[chains.move_IT[at.item_N, at.low_N], at.low_state_N] == at.high_state_N).double()

    return accepts


def arbitrary(*purpose: int, outputs: int = 0) -> Chances:
    """Probabilities that depend on the whole position and are all different."""

    def chances(at: Positions) -> Tensor:
        weights = torch.tensor([1.0, 7.3, 3.1, 0.77, 1.9, 2.3])
        key = torch.stack(list(vars(at).values()), 1).double() @ weights.double() + sum(purpose)
        if outputs == 0:
            return torch.sin(key).square()
        return torch.softmax(torch.sin(key[:, None] * torch.arange(1, outputs + 1)), 1)

    return chances


def test_two_moves_generate_all_permutations_and_none_leaves_a_state() -> None:
    found, new = {tuple(range(NUM_STATES))}, {tuple(range(NUM_STATES))}
    while new:
        new = {tuple(move[state] for state in known) for known in new for move in GENERATORS[:2]} - found
        found |= new
    assert len(found) == 120
    for square in (GENERATORS[:4], GENERATORS[4:]):
        assert all({state, *(move[state] for move in square)} == set(range(NUM_STATES)) for state in range(NUM_STATES))


def test_chains_are_drawn_apart_with_half_of_the_claims_true() -> None:
    settings = ChainSettings(length=4, num_train=900, num_test=200)
    chains = draw_chains(settings, 0)
    contents = chains.contents()
    assert len(set(contents)) == 1100, "of 1280 that there are"
    for (start, *moves), states, claim, label in zip(
        contents, *(x.tolist() for x in (chains.state_IP, chains.claim_I, chains.label_I))
    ):
        for move, before, after in zip(moves, states, states[1:], strict=False):
            assert GENERATORS[move][before] == after
        assert (states[0], states[-1] == claim) == (start, bool(label))
    assert chains.label_I[:900].sum() == 450
    assert chains.label_I[900:].sum() == 100
    false = chains.label_I == 0
    off = torch.bincount((chains.claim_I - chains.state_IP[:, -1])[false] % NUM_STATES, minlength=5)
    assert off[0] == 0
    assert int(off[1:].min()) > 100, "uniform over the other four"
    assert torch.equal(draw_chains(settings, 0).claim_I, chains.claim_I)
    assert not torch.equal(draw_chains(settings, 1).move_IT, chains.move_IT)
    with pytest.raises(
        UserError, match=r"scenario.num_train: 79 and 2 chains, but there are only 80 .*2 moves out of 4"
    ):
        draw_chains(ChainSettings(length=2, num_train=79, num_test=2), 0)


def one(chances: Chances, *position: int) -> list[float]:
    return chances(Positions(*(torch.tensor([x]) for x in position))).flatten().tolist()


@pytest.mark.parametrize("length", [2, 4])
def test_bisection_equals_brute_force(length: int) -> None:
    """Strategies are tried one by one; each is played along every path. A second commitment may depend on all that came
    before."""
    chains, right, accepts, commits = drawn(length), arbitrary(1), arbitrary(2), arbitrary(3, outputs=5)
    worst, least = worst_acceptance(chains, right, accepts), least_acceptance(chains, commits, accepts)
    for item, (start, claim) in enumerate(zip(chains.state_IP[:, 0].tolist(), chains.claim_I.tolist(), strict=True)):
        root = (item, 0, length, start, claim)

        def halves(at: tuple[int, ...], middle: int) -> list[tuple[float, tuple[int, ...]]]:
            item, low, high, low_state, high_state = at
            half, share = (low + high) // 2, one(right, *at, middle)[0]
            return [(1 - share, (item, low, half, low_state, middle)), (share, (item, half, high, middle, high_state))]

        def accepted(at: tuple[int, ...]) -> float:
            return one(accepts, *at, -1)[0]

        tried = []
        for first, *later in product(range(5), repeat=1 if length == 2 else 3):
            total = 0.0
            for number, (share, part) in enumerate(halves(root, first)):
                ends = [(1.0, part)] if length == 2 else halves(part, later[number])
                total += share * sum(p * accepted(end) for p, end in ends)
            tried.append(total)
        assert float(worst[item]) == pytest.approx(max(tried))

        def opposed(at: tuple[int, ...]) -> float:
            if at[2] - at[1] == 1:
                return accepted(at)
            return sum(p * min(opposed(part) for _, part in halves(at, m)) for m, p in enumerate(one(commits, *at, -1)))

        assert float(least[item]) == pytest.approx(opposed(root))


def test_one_question_equals_brute_force() -> None:
    chains, accepts = drawn(4), arbitrary(2)
    question = torch.softmax(torch.rand(len(chains.claim_I), 4, generator=torch.Generator().manual_seed(0)), 1)
    found = worst_acceptance_of_chain(chains, question, accepts)
    for item, (start, claim) in enumerate(zip(chains.state_IP[:, 0].tolist(), chains.claim_I.tolist(), strict=True)):
        tried = []
        for inner in product(range(5), repeat=3):
            states = (start, *inner, claim)
            steps = [one(accepts, item, t, t + 1, states[t], states[t + 1], -1)[0] for t in range(4)]
            tried.append(sum(float(q) * p for q, p in zip(question[item], steps, strict=True)))
        assert float(found[item]) == pytest.approx(max(tried))


@pytest.mark.parametrize("length", [2, 8, 16])
def test_closed_forms(length: int) -> None:
    """A perfect verifier: the best opponent catches every lie; a random half or one random question, one lie in n."""
    chains = drawn(length, 30)
    true, accepts = chains.label_I.double(), perfect(chains)
    assert torch.equal(worst_acceptance(chains, truthful(chains), accepts), true)
    assert torch.equal(
        least_acceptance(chains, None, accepts)[true == 1], torch.ones(int(true.sum()), dtype=torch.float64)
    )
    minimal = true + (1 - true) * (1 - 1 / length)
    coin = worst_acceptance(chains, lambda at: torch.full(at.item_N.shape, 0.5), accepts)
    torch.testing.assert_close(coin, minimal)
    question = torch.full((len(true), length), 1 / length)
    torch.testing.assert_close(worst_acceptance_of_chain(chains, question, accepts), minimal)
    torch.testing.assert_close(acceptance_of_truth(chains, question, accepts)[true == 1], true[true == 1])
