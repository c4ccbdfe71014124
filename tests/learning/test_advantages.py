"""Advantages over own turns against brute force from the definition and against ordinary generalised advantage
estimation."""

from dataclasses import dataclass

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from nip_ray.learning.policy_gradient import normalise, own_turn_advantages

SETTINGS = settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow], database=None)


@dataclass(frozen=True)
class Episodes:
    """B episodes: what was paid, the value estimates (meaningless outside turns), whose turn it was, rounds played."""

    reward_BR: Tensor
    value_BR: Tensor
    turn_BR: Tensor
    length_B: Tensor
    gamma: float
    lam: float

    def run(self) -> tuple[Tensor, Tensor]:
        return own_turn_advantages(self.reward_BR, self.value_BR, self.turn_BR, self.gamma, self.lam)


@st.composite
def episodes(draw: st.DrawFn, every_round: bool = False) -> Episodes:
    """Random turn patterns, ends, rewards, values, discounts."""
    batch, rounds = draw(st.integers(1, 5)), draw(st.integers(1, 9))
    random = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    length_B = torch.randint(1, rounds + 1, (batch,), generator=random)
    open_BR = torch.arange(rounds) < length_B[:, None]
    share = 1.0 if every_round else draw(st.sampled_from([0.2, 0.5, 0.9]))
    turn_BR = (torch.rand(batch, rounds, generator=random) <= share) & open_BR
    reward_BR = torch.randn(batch, rounds, generator=random, dtype=torch.float64) * open_BR
    value_BR = torch.randn(batch, rounds, generator=random, dtype=torch.float64)
    factor = st.sampled_from([0.0, 0.3, 0.9, 0.95, 1.0])
    return Episodes(reward_BR, value_BR, turn_BR, length_B, draw(factor), draw(factor))


def brute_force(case: Episodes, copy: int) -> list[float]:
    """Advantages of one episode, each as a sum over the own turns from there on."""
    length, gamma = int(case.length_B[copy]), case.gamma
    reward, value = case.reward_BR[copy].tolist(), case.value_BR[copy].tolist()
    turns = [r for r in range(length) if case.turn_BR[copy, r]]
    errors = []
    for i, now in enumerate(turns):
        after = turns[i + 1] if i + 1 < len(turns) else None
        paid = sum(gamma ** (r - now) * reward[r] for r in range(now, length if after is None else after))
        bootstrap = 0.0 if after is None else gamma ** (after - now) * value[after]
        errors.append(paid + bootstrap - value[now])
    result = [0.0] * case.turn_BR.shape[1]
    for i, now in enumerate(turns):
        result[now] = sum(case.lam ** (k - i) * gamma ** (turns[k] - now) * errors[k] for k in range(i, len(turns)))
    return result


@SETTINGS
@given(episodes())
def test_brute_force(case: Episodes) -> None:
    advantage_BR, target_BR = case.run()
    for copy in range(len(case.length_B)):
        expected = torch.tensor(brute_force(case, copy), dtype=torch.float64)
        torch.testing.assert_close(advantage_BR[copy], expected, atol=1e-10, rtol=1e-10)
    torch.testing.assert_close(target_BR, torch.where(case.turn_BR, advantage_BR + case.value_BR, 0.0))
    assert not advantage_BR[~case.turn_BR].any()


@SETTINGS
@given(episodes(), st.sampled_from([1e6, float("nan"), float("inf")]))
def test_values_after_the_end_and_outside_turns_change_nothing(case: Episodes, poison: float) -> None:
    poisoned = torch.where(case.turn_BR, case.value_BR, poison)
    changed = own_turn_advantages(case.reward_BR, poisoned, case.turn_BR, case.gamma, case.lam)
    for before, after in zip(case.run(), changed):
        assert torch.equal(before, after)


@SETTINGS
@given(episodes(), episodes(), st.floats(0.1, 5.0))
def test_episodes_that_follow_each_other_in_one_row_are_judged_apart(
    first: Episodes, second: Episodes, after: float
) -> None:
    """The first of each row's two episodes is cut off, and what it led to is worth `after`."""
    rows = min(len(first.length_B), len(second.length_B))
    reward, value, turn = (
        [getattr(case, name)[:rows] for case in (first, second)] for name in ("reward_BR", "value_BR", "turn_BR")
    )
    reward[0] = reward[0].clone()
    reward[0][:, -1] += first.gamma * after
    discount_BR = torch.full_like(torch.cat(value, 1), first.gamma)
    discount_BR[:, reward[0].shape[1] - 1] = 0
    found = own_turn_advantages(torch.cat(reward, 1), torch.cat(value, 1), torch.cat(turn, 1), discount_BR, first.lam)
    apart = [own_turn_advantages(reward[i], value[i], turn[i], first.gamma, first.lam) for i in range(2)]
    for one, pair in zip(found, zip(*apart, strict=True), strict=True):
        torch.testing.assert_close(one, torch.cat(pair, 1))


def test_normalise() -> None:
    x_N = torch.randn(50, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 3 + 2
    scaled = normalise(x_N)
    assert abs(float(scaled.mean())) < 1e-12
    assert float(scaled.square().mean()) == pytest.approx(1.0)
    torch.testing.assert_close(scaled * x_N.var(unbiased=False).sqrt() + x_N.mean(), x_N)


def test_normalise_few_or_equal_rows() -> None:
    one = torch.tensor([3.0])
    assert torch.equal(normalise(one), one)
    assert normalise(torch.zeros(0)).shape == (0,)
    assert torch.equal(normalise(torch.full((4,), 2.0)), torch.zeros(4))
