"""Similarity and distance of two agents' choices, by hand and against plain Python."""

import math
from dataclasses import fields, replace

import pytest
import torch
from torch import Tensor

from nip_ray.learning.policy import Policy
from nip_ray.learning.similarity import choice_distances, similarity

NO = -1e9


def policy(
    message: list[list[list[float]]], decision: list[list[float]] | None = None, speaks: list[list[bool]] | None = None
) -> Policy:
    """Message logits (N, F, S); every factor in play and every decision countable unless said otherwise."""
    made = torch.tensor(message)
    speaks_NF = torch.ones(made.shape[:2], dtype=torch.bool) if speaks is None else torch.tensor(speaks)
    decides = None if decision is None else torch.ones(len(made), dtype=torch.bool)
    return Policy(made, None, None if decision is None else torch.tensor(decision), speaks_NF, decides)


def random_policy(seed: int, rows: int = 7, factors: int = 3, symbols: int = 6) -> Policy:
    random = torch.Generator().manual_seed(seed)
    message = torch.randn(rows, factors, symbols, generator=random)
    message[:, :, 1::3] = NO
    speaks = torch.rand(rows, factors, generator=torch.Generator().manual_seed(99)) < 0.6
    linear, decision = torch.randn(rows, factors, 4, generator=random), torch.randn(rows, 3, generator=random)
    return Policy(message, linear, decision, speaks, torch.arange(rows) % 2 == 0)


def cosine(a: list[float], b: list[float]) -> float:
    sizes = math.sqrt(sum(x * x for x in a)) * math.sqrt(sum(x * x for x in b))
    return sum(x * y for x, y in zip(a, b, strict=True)) / sizes if sizes else 0.0


@pytest.mark.parametrize("legacy", [False, True])
def test_equals_plain_python(legacy: bool) -> None:
    adversary, simulator = random_policy(1), random_policy(2)
    found = similarity(adversary, simulator, legacy)
    for row in range(len(found)):
        a: list[float] = []
        b: list[float] = []
        for factor in adversary.speaks[row].nonzero().flatten().tolist():
            for x, y in zip(
                adversary.message[row, factor].tolist(), simulator.message[row, factor].tolist(), strict=True
            ):
                if legacy or min(x, y) > -1e8:
                    a.append(x)
                    b.append(y)
        expected = cosine(a, b)
        if bool(adversary.may_decide[row]):  # type: ignore[index]
            expected += cosine(adversary.decision[row].tolist(), simulator.decision[row].tolist())  # type: ignore[index]
        assert float(found[row]) == pytest.approx(expected, abs=1e-5)


def test_a_simulator_without_a_decision_leaves_the_term_out() -> None:
    adversary = policy([[[1.0, 2.0]]], [[1.0, 2.0, 3.0]])
    assert similarity(adversary, adversary).tolist() == [pytest.approx(2.0)]
    assert similarity(adversary, replace(adversary, decision=None, may_decide=None)).tolist() == [pytest.approx(1.0)]


def test_silence_is_the_adversarys() -> None:
    adversary, simulator = (
        policy([[[1.0, 1.0], [5.0, 0.0]]], speaks=[[True, False]]),
        policy([[[1.0, 1.0], [0.0, 7.0]]]),
    )
    assert similarity(adversary, simulator).tolist() == [pytest.approx(1.0)]
    assert choice_distances(adversary, simulator).tolist() == [[0.0, -1.0]]
    nobody = replace(adversary, speaks=torch.zeros(1, 2, dtype=torch.bool))
    assert similarity(nobody, simulator).tolist() == [0.0]
    assert choice_distances(nobody, simulator).tolist() == [[-1.0, -1.0]]


def gradients(adversary: Policy, simulator: Policy) -> list[Tensor]:
    logits = (adversary.message, adversary.decision, simulator.message, simulator.decision)
    leaves = [x.clone().requires_grad_() for x in logits if x is not None]
    pair = (
        replace(adversary, message=leaves[0], decision=leaves[1]),
        replace(simulator, message=leaves[2], decision=leaves[3]),
    )
    similarity(*pair).sum().backward()
    return [leaf.grad for leaf in leaves if leaf.grad is not None]


def test_gradients_are_finite_at_zero_vectors() -> None:
    zero = policy([[[0.0, 0.0, NO]]], [[0.0, 0.0, 0.0]])
    for pair in ((zero, zero), (zero, random_policy(1, 1, 1, 3)), (random_policy(1, 1, 1, 3), zero)):
        assert all(bool(grad.isfinite().all()) for grad in gradients(*pair))


def test_rows_of_a_policy() -> None:
    whole, row_K = random_policy(9), torch.tensor([4, 0])
    part = whole.rows(row_K)
    assert all(torch.equal(getattr(part, f.name), getattr(whole, f.name)[row_K]) for f in fields(Policy))
    bare = replace(whole, linear=None, decision=None, may_decide=None).rows(row_K)
    assert (bare.linear, bare.decision, bare.may_decide) == (None, None, None)
