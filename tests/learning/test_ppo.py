"""The losses of PPO and REINFORCE against formulas written out row by row in plain Python."""

import math
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

from nip_ray.learning.policy_gradient import (
    PlayedTurns,
    critic,
    mean_over_steps,
    next_beta,
    objective,
    ppo_loss,
    score_loss,
    turn_counts,
)
from nip_ray.settings.ppo import PPOSettings

Rows = dict[str, Tensor]
CLIP, PENALTY = PPOSettings(), PPOSettings(loss="kl_penalty")


def rows(count: int = 40, seed: int = 0) -> Rows:
    """Random rows, far enough from the old policy that clipping bites on both sides."""
    random = torch.Generator().manual_seed(seed)
    made = {
        name: torch.randn(count, generator=random, dtype=torch.float64)
        for name in ("advantage", "value", "old_value", "target")
    }
    made["old"] = -torch.rand(count, generator=random, dtype=torch.float64) * 3
    made["new"] = made["old"] + torch.randn(count, generator=random, dtype=torch.float64) * 0.4
    made["weight"] = (torch.rand(count, generator=random) < 0.6).double()
    return made


def slow_objective(data: Rows, settings: PPOSettings, chosen: list[int]) -> tuple[float, float, float]:
    """(surrogate, kl, share of clipped rows)."""
    gains, log_ratios, outside = [], [], []
    for i in chosen:
        log_ratio, advantage = float(data["new"][i] - data["old"][i]), float(data["advantage"][i])
        ratio, low, high = math.exp(log_ratio), 1 - settings.clip_epsilon, 1 + settings.clip_epsilon
        gain = ratio * advantage
        if settings.loss == "clip":
            gain = min(gain, math.exp(min(max(log_ratio, math.log(low)), math.log(high))) * advantage)
        gains.append(gain)
        log_ratios.append(log_ratio)
        outside.append(float(ratio < low or ratio > high))
    count = len(chosen)
    return -sum(gains) / count, -sum(log_ratios) / count, sum(outside) / count


def slow_distance(difference: float, kind: str) -> float:
    if kind == "l1":
        return abs(difference)
    if kind == "l2":
        return difference**2
    return 0.5 * difference**2 if abs(difference) < 1 else abs(difference) - 0.5


def slow_critic(data: Rows, settings: PPOSettings, chosen: list[int]) -> float:
    total = 0.0
    for i in chosen:
        value, old, target = (float(data[key][i]) for key in ("value", "old_value", "target"))
        loss = slow_distance(value - target, settings.critic_loss)
        if settings.clip_value is not False:
            width = settings.clip_epsilon if settings.clip_value is True else settings.clip_value
            moved = min(max(value - old, -width), width)
            loss = max(loss, slow_distance(old + moved - target, settings.critic_loss))
        total += loss
    return total / len(chosen)


@pytest.mark.parametrize("weighted", [(), ("sampled_N",), ("sampled_N", "drawn_N")])
@pytest.mark.parametrize("base", [CLIP, PENALTY, replace(CLIP, clip_epsilon=0.05), replace(PENALTY, clip_epsilon=0.5)])
def test_objective(base: PPOSettings, weighted: tuple[str, ...]) -> None:
    """The divergence is over all turns that the network played, also those whose pay is known."""
    for seed in range(5):
        data = rows(seed=seed)
        beta, weights = torch.tensor(0.7, dtype=torch.float64), dict.fromkeys(weighted, data["weight"])
        played = PlayedTurns(data["old"], data["old_value"], data["advantage"], data["target"], **weights)
        found = ppo_loss(data["new"], torch.zeros(()), data["value"], played, base, beta, 0.0)
        sampled, drawn = (
            [i for i in range(40) if name not in weights or data["weight"][i] > 0] for name in ("sampled_N", "drawn_N")
        )
        surrogate, (_, kl, clipped) = slow_objective(data, base, sampled)[0], slow_objective(data, base, drawn)
        expected = surrogate * len(sampled) / 40 + (0.7 * kl * len(drawn) / 40 if base.loss == "kl_penalty" else 0.0)
        assert [float(x) for x in (found.objective, found.kl, found.clip_share)] == pytest.approx(
            [expected, kl, clipped], rel=1e-12, abs=1e-12
        )


@pytest.mark.parametrize(
    ("kind", "clip", "weighted"), list(product(["smooth_l1", "l1", "l2"], [False, True, 0.5], [False, True]))
)
def test_critic(kind: Any, clip: Any, weighted: bool) -> None:
    base = PPOSettings(critic_loss=kind, clip_value=clip)
    data = rows()
    found = critic(data["value"], data["old_value"], data["target"], base, data["weight"] if weighted else None)
    chosen = [i for i in range(40) if not weighted or data["weight"][i] > 0]
    assert float(found) == pytest.approx(slow_critic(data, base, chosen), rel=1e-12)


@pytest.mark.parametrize(
    ("log_ratio", "advantage", "moves"),
    [(0.0, 1.0, True), (0.0, -1.0, True), (0.5, 1.0, False), (0.5, -1.0, True), (-0.5, 1.0, True), (-0.5, -1.0, False)],
)
def test_gradient_of_the_clipped_objective(log_ratio: float, advantage: float, moves: bool) -> None:
    """Descent makes good actions likelier and bad ones rarer, unless the ratio has gone far enough already."""
    old = torch.tensor([-1.0])
    new = (old + log_ratio).requires_grad_()
    loss, _, _ = objective(new, old, torch.tensor([advantage]), CLIP)
    loss.backward()
    expected = -advantage * math.exp(log_ratio) if moves else 0.0
    assert float(new.grad) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(
    ("kl", "factor"), [(0.016, 2.0), (0.0149, 1.0), (0.01, 1.0), (0.0067, 1.0), (0.006, 0.5), (-0.5, 0.5)]
)
def test_next_beta(kl: float, factor: float) -> None:
    base = PPOSettings(kl_target=0.01)
    assert float(next_beta(torch.tensor(0.8), torch.tensor(kl), base)) == pytest.approx(0.8 * factor)


@pytest.mark.parametrize("most", [None, 1.2])
def test_score_loss(most: float | None) -> None:
    """Its gradient by each log-probability is minus the weight, times the ratio to the old policy up to a bound."""
    data = rows()
    new = data["new"].requires_grad_()
    (gradient,) = torch.autograd.grad(score_loss(new, data["old"], data["advantage"], most), new)
    ratios = [1.0 if most is None else min(math.exp(float(ratio)), most) for ratio in (new - data["old"]).detach()]
    assert gradient.tolist() == pytest.approx(
        [-ratio * float(a) / 40 for ratio, a in zip(ratios, data["advantage"], strict=True)]
    )


def test_metrics_of_drawn_turns_are_means_over_them() -> None:
    """Two steps, one of three drawn turns and one of none. Of turns that there are none of nothing is logged."""
    steps = [
        {"entropy": torch.tensor(2.0), "imitation": torch.tensor(4.0), **turn_counts(torch.tensor([1.0, 1, 1, 0]))},
        {"entropy": torch.tensor(0.0), "imitation": torch.tensor(2.0), **turn_counts(torch.zeros(4))},
    ]
    assert mean_over_steps(steps) == {"entropy": 2.0, "imitation": 3.0}
    assert mean_over_steps(steps[1:]) == {"imitation": 2.0}
    assert mean_over_steps([{**steps[0], **turn_counts(torch.ones(4))}]) == {"entropy": 2.0}
    assert mean_over_steps([{"entropy": torch.tensor(1.0)}, {"entropy": torch.tensor(0.0)}]) == {"entropy": 0.5}
