"""Advantages and the token loss against loops over plain numbers, closed forms, and the gradient of REINFORCE."""

import math
from statistics import fmean, pstdev
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from nip_ray.learning.policy_gradient import returns_to_go
from nip_ray.learning.token_losses import (
    AgentTurns,
    LossFigures,
    group_numbers,
    join,
    log_probs_and_entropy,
    no_figures,
    role_advantages,
    token_loss,
    token_weights,
    turn_advantages,
)
from nip_ray.settings.policy_gradient import PolicyGradientAgentSettings, PolicyGradientSettings

MAX_TOKENS = 9
LENGTHS = (3, 5, 1, 0, 4)


def rule(**given: Any) -> PolicyGradientSettings:
    return PolicyGradientSettings(**given)


# ----------------------------------------------------------------------------------------------------------- advantages


def turns() -> tuple[list[tuple[int, str, int]], list[int], list[float]]:
    """(item, agent, own turn) of each turn, its dialogue, its return: four dialogues about two items, of different
    lengths."""
    random = torch.Generator().manual_seed(3)
    rows = [
        (item, agent, turn, dialogue)
        for dialogue, (item, length) in enumerate(((0, 2), (0, 1), (1, 3), (1, 2), (0, 2)))
        for turn in range(length)
        for agent in ("prover", "verifier")
    ]
    return [row[:3] for row in rows], [row[3] for row in rows], torch.randn(len(rows), generator=random).tolist()


@pytest.mark.parametrize(
    ("kind", "normalise"), [("group", False), ("group", True), ("leave_one_out", False), ("none", False)]
)
def test_group_advantages_are_those_of_a_loop(kind: Any, normalise: bool) -> None:
    keys, dialogues, returns = turns()
    returns[keys.index((0, "prover", 1))] = 0.1  # three equal returns whose mean is rounded
    for row, key in enumerate(keys):
        if key == (0, "verifier", 0):
            returns[row] = 0.1
    played = AgentTurns(
        "prover", torch.tensor(returns), group_numbers(*zip(*keys, strict=True)), torch.tensor(dialogues)
    )
    found, baselines = turn_advantages(played, {"prover": 0.5}, rule(advantage=kind, normalise_advantage=normalise))
    expected, alone, equal = [], set(), set()
    for key, own in zip(keys, returns, strict=True):
        group = [value for other, value in zip(keys, returns, strict=True) if other == key]
        if kind == "none":
            expected.append(own)
        elif len(set(group)) == 1:
            (equal if len(group) > 1 else alone).add(key)
            expected.append(0.0)
        elif kind == "leave_one_out":
            expected.append(own - (sum(group) - own) / (len(group) - 1))
        else:
            expected.append((own - fmean(group)) / (pstdev(group) + 1e-6 if normalise else 1))
    torch.testing.assert_close(found.advantage_N, torch.tensor(expected), rtol=1e-5, atol=1e-6)
    assert [value for value in expected if value == 0.0] == [
        value for value in found.advantage_N.tolist() if value == 0.0
    ]
    assert baselines == {"prover": 0.5}
    if kind != "none":
        assert (
            (found.num_groups, found.num_alone, found.num_equal)
            == (len(set(keys)), len(alone), len(equal))
            == (10, 2, 1)
        )
        assert found.equal_share == 1 / 8


def test_role_advantages_are_unbiased_by_their_own_dialogue() -> None:
    returns, roles, dialogues = [1.0, 3.0, 5.0, -1.0, 7.0], ["v", "p", "v", "v", "p"], [0, 0, 0, 1, 1]
    advantage_N, new = role_advantages(torch.tensor(returns), roles, dialogues, {"p": 2.0}, 0.75)
    assert advantage_N.tolist() == [1.0, 1.0, 5.0, -1.75, 4.75]  # v: 0, then (1 + 5) / 2 / 4 = 0.75; p: 2, then 2.25
    assert new == {"p": 0.75 * 2.25 + 0.25 * 7.0, "v": 0.75 * 0.75 - 0.25}
    state: dict[str, float] = {"p": 2.0}  # the same for each alone, in two parts
    parts = []
    for agent, rows in (("v", [0, 2]), ("p", [1, 4]), ("v", [3])):
        turns = AgentTurns(
            agent,
            torch.tensor([returns[row] for row in rows]),
            torch.zeros(0),
            torch.tensor([dialogues[row] for row in rows]),
        )
        part, state = turn_advantages(turns, state, rule(advantage="role", role_baseline_decay=0.75))
        parts += part.advantage_N.tolist()
    assert (parts, state) == (advantage_N[[0, 2, 1, 4, 3]].tolist(), new)


def test_returns_are_discounted_by_round() -> None:
    reward_BR = torch.tensor([[1.0, 0.0, 4.0], [0.0, 2.0, 0.0]])
    assert returns_to_go(reward_BR, 0.5).tolist() == [[2.0, 2.0, 4.0], [1.0, 2.0, 0.0]]


# ----------------------------------------------------------------------------------------------------------------- loss


def batch(spread: float) -> dict[str, Any]:
    """Random turns of `LENGTHS`, NaN outside the mask. spread: of the learner's log-probabilities about the recorded
    ones."""
    random = torch.Generator().manual_seed(5)
    shape = (len(LENGTHS), max(LENGTHS))
    mask_NT = (torch.arange(shape[1]) < torch.tensor(LENGTHS)[:, None]).double()
    made = {
        name: torch.randn(shape, generator=random, dtype=torch.float64) for name in ("old", "new", "start", "entropy")
    }
    old_NT = -made["old"].abs()
    rows = {
        "log_prob_NT": old_NT + spread * made["new"],
        "entropy_NT": made["entropy"].abs(),
        "old_log_prob_NT": old_NT,
        "start_log_prob_NT": old_NT + spread * made["start"],
    }
    outside = {name: torch.where(mask_NT > 0, value_NT, torch.nan) for name, value_NT in rows.items()}
    advantage_N = torch.randn(shape[0], generator=random, dtype=torch.float64)
    return {**outside, "advantage_N": advantage_N, "mask_NT": mask_NT}


def weights(mask_NT: Tensor, settings: PolicyGradientSettings) -> Tensor:
    return token_weights(mask_NT, settings.aggregation, sum(LENGTHS), len(LENGTHS), MAX_TOKENS)


def slow_loss(rows: dict[str, Tensor], settings: PolicyGradientSettings) -> tuple[float, dict[str, float]]:
    """The loss and its figures, token by token."""
    loss, clipped, kls, entropies, ratios, differences = 0.0, [], [], [], [0.0], [0.0]
    for n, length in enumerate(LENGTHS):
        new, old, start, entropy = (
            rows[f"{k}_NT"][n, :length].tolist() for k in ("log_prob", "old_log_prob", "start_log_prob", "entropy")
        )
        advantage = float(rows["advantage_N"][n])
        for t in range(length):
            ratio = math.exp(new[t] - old[t])
            if settings.ratio == "sequence":
                ratio = math.prod(math.exp(a - b) for a, b in zip(new, old, strict=True)) ** (1 / length)
            low = -math.inf if settings.clip_low is None else 1 - settings.clip_low
            high = math.inf if settings.clip_high is None else 1 + settings.clip_high
            value = ratio * advantage
            clipped.append((advantage > 0 and ratio > high) or (advantage < 0 and ratio < low))
            if clipped[-1]:
                value = (high if advantage > 0 else low) * advantage
            d = start[t] - new[t]
            kls.append(math.exp(d) - 1 - d)
            entropies.append(entropy[t])
            ratios.append(ratio)
            differences.append(abs(new[t] - old[t]))
            kl = kls[-1] if settings.kl_estimator == "k3" else d * d / 2
            each = -value + settings.kl_coefficient * kl - settings.entropy_coefficient * entropy[t]
            weight = {
                "token": 1 / sum(LENGTHS),
                "turn": 1 / (len(LENGTHS) * MAX_TOKENS),
                "turn_mean": 1 / (len(LENGTHS) * length),
            }
            loss += weight[settings.aggregation] * each
    figures = {"loss": loss, "clip_share": fmean(clipped), "kl": fmean(kls), "entropy": fmean(entropies)}
    return loss, figures | {"ratio_max": max(ratios), "logprob_difference": max(differences)}


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"clip_low": 0.1, "clip_high": 0.4, "kl_coefficient": 0.3, "entropy_coefficient": 0.2, "aggregation": "turn"},
        {"clip_low": None, "clip_high": None, "ratio": "sequence", "kl_coefficient": 0.3, "kl_estimator": "k2"},
        {"clip_low": 0.05, "clip_high": None, "ratio": "sequence", "aggregation": "turn_mean"},
    ],
)
def test_the_loss_is_that_of_a_loop_and_adds_up_over_parts(given: dict[str, Any]) -> None:
    settings, rows = rule(**given), batch(0.5)
    expected, figures = slow_loss(rows, settings)
    weight_NT = weights(rows["mask_NT"], settings)
    loss, found = token_loss(**rows, weight_NT=weight_NT, settings=settings)
    assert float(loss) == pytest.approx(expected, rel=1e-9)
    assert found.metrics() == pytest.approx(figures, rel=1e-9)
    parts: list[LossFigures] = []
    for rows_of_part in (slice(0, 2), slice(2, None)):
        part = {name: value[rows_of_part] for name, value in rows.items()}
        parts.append(token_loss(**part, weight_NT=weight_NT[rows_of_part], settings=settings)[1])
    assert join(parts).metrics() == pytest.approx(figures, rel=1e-9)


def test_a_maximum_is_over_tokens_only() -> None:
    """Not over padding, nor over the share of a learner without turns; without tokens at all it is 0."""

    def surrogate(new: Tensor, old: Tensor, advantage: Tensor, mask: Tensor, settings: Any) -> Any:
        return new, {"below_max": torch.full_like(new, -3.0)}

    rows, settings = batch(0.5), rule()
    weight_NT = weights(rows["mask_NT"], settings)
    own = token_loss(**rows, weight_NT=weight_NT, settings=settings, surrogate=surrogate)[1]
    none = no_figures(settings, True, surrogate, torch.device("cpu"))
    assert join([own, none]).metrics()["below_max"] == join([none, own]).metrics()["below_max"] == -3
    assert none.metrics()["below_max"] == 0


@pytest.mark.parametrize("ratio", ["token", "sequence"])
@pytest.mark.parametrize("aggregation", ["token", "turn", "turn_mean"])
def test_at_ratio_one_the_gradient_is_that_of_reinforce(ratio: Any, aggregation: Any) -> None:
    settings, rows = rule(ratio=ratio, aggregation=aggregation), batch(0.0)
    log_prob_NT = rows["old_log_prob_NT"].clone().requires_grad_()
    weight_NT = weights(rows["mask_NT"], settings)
    loss, _ = token_loss(**{**rows, "log_prob_NT": log_prob_NT}, weight_NT=weight_NT, settings=settings)
    (gradient_NT,) = torch.autograd.grad(loss, log_prob_NT)
    torch.testing.assert_close(gradient_NT, -weight_NT * rows["advantage_N"][:, None])


@pytest.mark.parametrize("estimator", ["k3", "k2"])
def test_the_expected_gradient_of_the_kl_estimators(estimator: Any) -> None:
    """Over all tokens, weighted by their probability: k3 gives that of KL(start || policy), k2 that of KL(policy ||
    start)."""
    logits_V = torch.tensor([0.3, -1.0, 0.8], dtype=torch.float64, requires_grad=True)
    start_V = torch.tensor([0.1, 0.7, -0.4], dtype=torch.float64).log_softmax(-1)
    log_V = logits_V.log_softmax(-1)
    settings = rule(kl_coefficient=1.0, kl_estimator=estimator)
    zero_V = torch.zeros(3, dtype=torch.float64)
    prob_V1 = log_V.detach().exp()[:, None]
    loss, found = token_loss(
        log_V[:, None],
        zero_V[:, None],
        log_V.detach()[:, None],
        zero_V,
        torch.ones_like(prob_V1),
        prob_V1,
        settings,
        start_V[:, None],
    )
    forward, reverse = (
        F.kl_div(log_V, start_V, log_target=True, reduction="sum"),
        F.kl_div(start_V, log_V, log_target=True, reduction="sum"),
    )
    wanted = forward if estimator == "k3" else reverse
    torch.testing.assert_close(
        torch.autograd.grad(loss, logits_V, retain_graph=True)[0], torch.autograd.grad(wanted, logits_V)[0]
    )
    if estimator == "k3":  # and unbiased for KL(policy || start)
        torch.testing.assert_close(loss.detach(), reverse.detach())
    assert found.metrics()["kl"] > 0


@pytest.mark.parametrize("distance", [-30.0, -0.5, 0.0, 3.0, 19.9, 20.1, 60.0])
def test_the_kl_estimate_pulls_towards_the_start_model_however_far(distance: float) -> None:
    """The derivative by log_prob is 1 - exp(d), from d = 20 on that at 20: never the other way."""
    log_prob_NT, one_NT = (
        torch.full((1, 1), -distance, dtype=torch.float64, requires_grad=True),
        torch.ones(1, 1, dtype=torch.float64),
    )
    rows = (log_prob_NT, 0 * one_NT, log_prob_NT.detach(), torch.zeros(1, dtype=torch.float64), one_NT, one_NT)
    loss, found = token_loss(*rows, rule(kl_coefficient=1.0, kl_estimator="k3"), 0 * one_NT)
    (gradient_NT,) = torch.autograd.grad(loss, log_prob_NT)
    assert gradient_NT.item() == pytest.approx(1 - math.exp(min(distance, 20.0)))
    assert found.metrics()["kl"] == pytest.approx(loss.item())
    assert loss.item() >= 0


def test_log_probabilities_and_entropies_are_of_the_distribution_that_was_drawn_from() -> None:
    logits_NTV = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(1))
    logits_NTV[0, 1, 2] = -torch.inf
    logits_NTV.requires_grad_()
    token_NT = torch.tensor([[0, 1, 3], [2, 2, 0]])
    log_prob_NT, entropy_NT = log_probs_and_entropy(logits_NTV, token_NT, 0.7)
    for n, t in [(n, t) for n in range(2) for t in range(3)]:
        weight = [math.exp(z / 0.7) for z in logits_NTV[n, t].tolist()]
        prob = [w / sum(weight) for w in weight]
        assert log_prob_NT[n, t].item() == pytest.approx(math.log(prob[int(token_NT[n, t])]), abs=1e-5)
        assert entropy_NT[n, t].item() == pytest.approx(-sum(p * math.log(p) for p in prob if p), abs=1e-5)
    (gradient_NTV,) = torch.autograd.grad(entropy_NT.sum() + log_prob_NT.sum(), logits_NTV)
    assert gradient_NTV.isfinite().all()
    assert not log_probs_and_entropy(logits_NTV, token_NT, entropy_gradient=False)[1].requires_grad


def test_an_agents_own_settings() -> None:
    own = PolicyGradientAgentSettings(learning_rate=0.5, from_iteration=3, until_iteration=4)
    settings = rule(
        kl_coefficient=0.1, agents={"verifier": own, "_default": PolicyGradientAgentSettings(kl_coefficient=0.0)}
    )
    assert (settings.seen_by("verifier").learning_rate, settings.seen_by("verifier").kl_coefficient) == (0.5, 0.1)
    assert (settings.seen_by("prover").learning_rate, settings.seen_by("prover").kl_coefficient) == (1e-4, 0.0)
    assert [settings.learns("verifier", i) for i in range(5)] == [False, False, True, True, False]
    assert settings.learns("prover", 0)
