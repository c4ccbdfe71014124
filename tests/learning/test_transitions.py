"""Own turns and n-step returns against sums written out from their definitions."""

from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from nip_ray.learning.transitions import n_step, n_step_rows, own_transitions

SETTINGS = settings(max_examples=80, deadline=None, database=None)


@dataclass(frozen=True)
class Episodes:
    """B episodes of at most R rounds."""

    reward_BR: Tensor
    turn_BR: Tensor
    length_B: Tensor
    terminated_B: Tensor
    gamma: float


@st.composite
def episodes(draw: st.DrawFn) -> Episodes:
    """Random turns, ends, cuts and payments."""
    batch, rounds = draw(st.integers(1, 5)), draw(st.integers(1, 9))
    random = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    length_B = torch.randint(1, rounds + 1, (batch,), generator=random)
    open_BR = torch.arange(rounds) < length_B[:, None]
    turn_BR = (torch.rand(batch, rounds, generator=random) < draw(st.sampled_from([0.0, 0.3, 0.8, 1.1]))) & open_BR
    reward_BR = torch.randn(batch, rounds, generator=random, dtype=torch.float64) * open_BR
    terminated_B = torch.rand(batch, generator=random) < 0.5
    return Episodes(reward_BR, turn_BR, length_B, terminated_B, draw(st.sampled_from([0.0, 0.5, 0.9, 1.0])))


def by_hand(case: Episodes, n: int) -> list[tuple[int, int, float, float, int, int]]:
    """(copy, round, n-step return, discount of what follows, first and last own turn) of every own turn, one by one."""
    found = []
    for copy in range(len(case.length_B)):
        length = int(case.length_B[copy])
        turns = [r for r in range(length) if case.turn_BR[copy, r]]
        for place, now in enumerate(turns):
            last = min(place + n, len(turns)) - 1
            over = last == len(turns) - 1
            until = length if over else turns[last + 1]
            paid = sum(case.gamma ** (r - now) * float(case.reward_BR[copy, r]) for r in range(now, until))
            discount = 0.0 if over and case.terminated_B[copy] else case.gamma ** (until - now)
            found.append((copy, now, paid, discount, place, last))
    return found


@SETTINGS
@given(episodes(), st.integers(1, 5))
def test_own_turns_and_returns_are_what_the_definition_says(case: Episodes, n: int) -> None:
    found = own_transitions(case.reward_BR, case.turn_BR, case.length_B, case.terminated_B, case.gamma)
    returns = n_step(found.reward_N, found.discount_N, found.next_N, n)
    expected = by_hand(case, n)
    assert list(zip(found.copy_N.tolist(), found.round_N.tolist())) == [row[:2] for row in expected]
    assert returns.reward_N.tolist() == pytest.approx([row[2] for row in expected])
    assert returns.discount_N.tolist() == pytest.approx([row[3] for row in expected])
    rows = torch.arange(len(expected))
    assert (returns.last_N - rows).tolist() == [last - first for *_, first, last in expected]


def test_rows_take_what_comes_next_from_the_last_transition() -> None:
    rows = {"obs": [10, 11, 12], "next_obs": [11, 12, 13], "reward": [1.0, 1.0, 1.0], "discount": [0.5, 0.5, 0.0]}
    made = n_step_rows({name: torch.tensor(row) for name, row in rows.items()}, torch.tensor([1, 2, -1]), 2)
    expected = {"obs": [10, 11, 12], "next_obs": [12, 13, 13], "reward": [1.5, 1.5, 1.0], "discount": [0.25, 0.0, 0.0]}
    assert {name: value.tolist() for name, value in made.items()} == expected
