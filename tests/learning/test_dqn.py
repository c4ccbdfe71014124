"""Deep Q-learning's pieces against small cases by hand, masks by random trial, and all of them together on games solved
exactly."""

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare
from torch import Tensor, nn

from nip_ray.config.rules import faults_below
from nip_ray.learning.dqn import (
    build_optimizer,
    dueling,
    epsilon_greedy,
    next_value,
    target_is_due,
    td_loss,
    td_target,
    update_target,
)
from nip_ray.seeding import generator
from nip_ray.settings.dqn import DQNRoleSettings, DQNSettings, LearningRate, role_settings

SETTINGS = settings(max_examples=80, deadline=None, database=None)
NAN, INF = float("nan"), float("inf")


@st.composite
def masked_values(draw: st.DrawFn) -> tuple[Tensor, Tensor]:
    """(q_NK, legal_NK), each row with a legal action."""
    rows, actions = draw(st.integers(1, 20)), draw(st.integers(1, 6))
    random = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    legal_NK = torch.rand(rows, actions, generator=random) < 0.5
    legal_NK[torch.arange(rows), torch.randint(actions, (rows,), generator=random)] = True
    return torch.randn(rows, actions, generator=random), legal_NK


@SETTINGS
@given(masked_values(), st.sampled_from([0.0, 0.3, 1.0]), st.sampled_from([1e9, INF, NAN]), st.integers(0, 2**31))
def test_illegal_actions_are_never_chosen_and_their_values_change_nothing(
    case: tuple[Tensor, Tensor], epsilon: float, poison: float, seed: int
) -> None:
    q_NK, legal_NK = case
    poisoned = torch.where(legal_NK, q_NK, poison)
    chosen = epsilon_greedy(poisoned, legal_NK, epsilon, generator(seed, "explore"))
    assert bool(legal_NK.gather(-1, chosen[:, None]).all())
    assert torch.equal(chosen, epsilon_greedy(q_NK, legal_NK, epsilon, generator(seed, "explore")))
    for online in (None, -poisoned):
        value = next_value(poisoned, legal_NK, online)
        assert torch.equal(value, next_value(q_NK, legal_NK, None if online is None else -q_NK))
        assert bool((value <= q_NK.masked_fill(~legal_NK, -INF).amax(-1)).all())


def test_explored_moves_are_even_among_the_legal_ones() -> None:
    """A quarter of the moves over 3 of 5 actions, the others the best legal one."""
    count = 60_000
    q_NK = torch.tensor([[0.0, 9.0, 2.0, 1.0, 9.0]]).expand(count, -1)
    legal_NK = torch.tensor([[True, False, True, True, False]]).expand(count, -1)
    found = torch.bincount(epsilon_greedy(q_NK, legal_NK, 0.25, generator(0, "explore")), minlength=5).tolist()
    assert found[1] == found[4] == 0
    assert chisquare([found[0], found[2], found[3]], [count / 12, count * (0.75 + 1 / 12), count / 12]).pvalue > 1e-3


def test_exploration_draws_alike_whatever_masks_and_rates_are() -> None:
    after = []
    for legal, epsilon in ((True, 0.0), (False, 1.0)):
        random = generator(1, "explore")
        epsilon_greedy(torch.zeros(7, 3), torch.full((7, 3), legal), epsilon, random)
        after.append(torch.rand(4, generator=random))
    assert torch.equal(*after)


def test_targets_by_hand() -> None:
    """Rows: on it goes, double or not; an end; a cut, whose discount stays; an end before nothing legal and values out
    of bounds."""
    reward_N, discount_N = torch.tensor([1.0, 1.0, 2.0, 4.0]), torch.tensor([0.5, 0.0, 0.25, 0.0])
    target_q = torch.tensor([[3.0, 8.0, 90.0], [7.0, 7.0, 7.0], [4.0, 2.0, 1.0], [INF, NAN, 5.0]])
    online_q = torch.tensor([[6.0, 5.0, 90.0], [0.0, 1.0, 2.0], [1.0, 2.0, 3.0], [INF, NAN, 5.0]])
    legal = torch.tensor([[True, True, False], [True, True, True], [True, True, True], [False, False, False]])
    assert td_target(reward_N, discount_N, target_q, legal).tolist() == [1 + 0.5 * 8, 1.0, 2 + 0.25 * 4, 4.0]
    assert td_target(reward_N, discount_N, target_q, legal, online_q).tolist() == [1 + 0.5 * 3, 1.0, 2 + 0.25 * 1, 4.0]


def test_targets_have_no_gradient() -> None:
    q_NK = torch.randn(3, 2, generator=torch.Generator().manual_seed(0)).requires_grad_()
    made = td_target(torch.ones(3), torch.ones(3), q_NK, torch.ones(3, 2, dtype=torch.bool), q_NK)
    assert not made.requires_grad


@SETTINGS
@given(masked_values(), st.sampled_from([1e9, INF, NAN]))
def test_dueling_values_have_the_mean_v_over_legal_actions_whatever_the_illegal_advantages(
    case: tuple[Tensor, Tensor], poison: float
) -> None:
    advantage_NK, legal_NK = case
    value_N = advantage_NK.sum(-1)
    q_NK = dueling(value_N, torch.where(legal_NK, advantage_NK, poison), legal_NK).masked_fill(~legal_NK, 0.0)
    torch.testing.assert_close(q_NK.sum(-1) / legal_NK.sum(-1), value_N, atol=1e-5, rtol=1e-5)
    shifted = dueling(value_N, advantage_NK + 3, legal_NK).masked_fill(~legal_NK, 0.0)
    torch.testing.assert_close(shifted, q_NK, atol=1e-5, rtol=1e-5)


def test_losses_by_hand() -> None:
    """Errors 0.5, -3 and 0: half squares below beta, straight lines above."""
    q_N, target_N = torch.tensor([0.0, 5.0, 1.0], requires_grad=True), torch.tensor([0.5, 2.0, 1.0])
    smooth, error_N = td_loss(q_N, target_N, DQNSettings())
    assert smooth.item() == pytest.approx((0.125 + 2.5) / 3)
    assert error_N.tolist() == [0.5, -3.0, 0.0]
    assert not error_N.requires_grad
    weighted, _ = td_loss(q_N, target_N, DQNSettings(), torch.tensor([0.5, 0.1, 1.0]))
    assert weighted.item() == pytest.approx((0.0625 + 0.25) / 3)
    wide, _ = td_loss(q_N, target_N, DQNSettings(loss_beta=2.0))
    assert wide.item() == pytest.approx((0.0625 + 2.0) / 3)
    square, _ = td_loss(q_N, target_N, DQNSettings(loss="l2"))
    assert square.item() == pytest.approx((0.125 + 4.5) / 3)
    weighted.backward()
    assert q_N.grad.tolist() == pytest.approx([-0.5 * 0.5 / 3, 0.1 / 3, 0.0])


class Network(nn.Module):
    """Parameters, running statistics, a counter and a table."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.linear, self.norm = nn.Linear(3, 4), nn.BatchNorm1d(4)
        self.register_buffer("table", torch.arange(4) + seed)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.linear(x))


def two_networks() -> tuple[Network, Network]:
    """(target, online), whose statistics and counters differ too."""
    target, online = Network(1), Network(2)
    for _ in range(3):
        online(torch.randn(8, 3, generator=torch.Generator().manual_seed(5)))
    return target, online


def test_a_copied_target_is_the_same_network_to_the_last_bit() -> None:
    target, online = two_networks()
    update_target(target, online, 1.0)
    for name, value in online.state_dict().items():
        assert torch.equal(target.state_dict()[name], value), name
    assert all(mine.data_ptr() != its.data_ptr() for mine, its in zip(target.parameters(), online.parameters()))


def test_a_polyak_average_moves_parameters_and_running_statistics_and_copies_counters() -> None:
    target, online = two_networks()
    before = copy.deepcopy(target.state_dict())
    update_target(target, online, 0.25)
    for name, new in target.state_dict().items():
        its = online.state_dict()[name]
        expected = 0.75 * before[name] + 0.25 * its if new.is_floating_point() else its
        torch.testing.assert_close(new, expected)
    assert int(target.norm.num_batches_tracked) == 3  # type: ignore[arg-type]
    assert not torch.equal(target.norm.running_mean, before["norm.running_mean"])  # type: ignore[arg-type]
    assert not any(parameter.grad_fn for parameter in target.parameters())


def test_targets_are_due_before_the_first_step_and_every_interval() -> None:
    own = DQNRoleSettings(target_interval=3)
    assert [step for step in range(8) if target_is_due(own, step)] == [0, 3, 6]


def test_optimizers_have_what_the_settings_say() -> None:
    weight = [nn.Parameter(torch.tensor([1.0]))]
    sgd = build_optimizer(weight, DQNRoleSettings(optimizer="sgd", weight_decay=0.1), lr=0.1)
    adam = build_optimizer(weight, DQNRoleSettings(adam_epsilon=1e-3), lr=0.01)
    assert [sgd.defaults[name] for name in ("lr", "weight_decay")] == [0.1, 0.1]
    assert [adam.defaults[name] for name in ("lr", "betas", "eps")] == [0.01, (0.9, 0.999), 1e-3]


def test_a_role_has_its_own_settings_or_those_of_all_others() -> None:
    host, other = DQNRoleSettings(batch_size=7), DQNRoleSettings(batch_size=9)
    rule = DQNSettings(roles={"host": host, "_default": other})
    assert role_settings(rule, "host") is host
    assert role_settings(rule, "agent") is other
    assert role_settings(DQNSettings(), "agent") == DQNRoleSettings()


@pytest.mark.parametrize(
    ("changed", "fault"),
    [
        ({"warm_up": 11, "buffer_size": 10}, "warm_up: got 11"),
        ({"trained_roles": ("host", "agent", "host")}, "trained_roles: host stands in it 2 times"),
        ({"priority_exponent": 0.5}, "priority_exponent: changed, but without prioritised"),
        ({"loss": "l2", "loss_beta": 2.0}, "loss_beta: changed, but with loss l2"),
        (
            {"roles": {"host": DQNRoleSettings(optimizer="sgd", adam_epsilon=1.0)}},
            "roles.host.adam_epsilon: changed, but with sgd",
        ),
        ({"roles": {"host": DQNRoleSettings(lr=LearningRate(kind="inverse"))}}, "roles.host.lr.rate: missing"),
        (
            {"prioritised": True, "importance": replace(DQNSettings().importance, steps=None)},
            "importance.steps: missing",
        ),
    ],
)
def test_what_settings_may_not_be(changed: dict[str, Any], fault: str) -> None:
    found = list(faults_below(DQNSettings(**changed), "algorithm"))
    assert len(found) == 1
    assert found[0].startswith(f"algorithm.{fault}")
