"""Opponent shaping on small games whose exact answers are known: gradients, sampled derivatives, and what learning
reaches."""

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from nip_ray.learning.shaping import dice_losses, directions
from nip_ray.settings.stackelberg import StackelbergSettings
from tests.learning.test_shaping import generator, normal, relative_error

EXACT = StackelbergSettings(variant="spg", ihvp="conjugate_gradient", ihvp_num_iterations=40, ihvp_damping=1e-9)
TWO = {"leader": ("follower",), "follower": ()}


@pytest.mark.parametrize("ihvp", ["conjugate_gradient", "nystrom"])
@pytest.mark.parametrize("shape", [(2, 2), (3, 4), (5, 3)])
def test_spg_is_the_derivative_through_the_best_response(shape: tuple[int, int], ihvp: str) -> None:
    """Bilinear games; the follower's entropy counts temperature."""
    settings, n, m = replace(EXACT, ihvp=ihvp, ihvp_rank=shape[1]), *shape
    for seed in range(5):
        a, b = normal(n, m, seed=seed), normal(n, m, seed=seed + 50)
        for temperature in (0.3, 1.0):
            x = (0.2 * normal(n, seed=seed + 99)).requires_grad_()
            exact = torch.autograd.grad(-(x @ a @ (x @ b / temperature - 1).exp()), x)[0]
            y = (x.detach() @ b / temperature - 1).exp().requires_grad_()
            first, second = x @ a @ y, x @ b @ y
            losses = {"leader": -first, "follower": -second + temperature * (y * y.log()).sum()}
            found = directions(losses, {"leader": [x], "follower": [y]}, TWO, settings, {}, generator())
            assert float(found["follower"].norm()) < 1e-12  # it is the best response
            assert relative_error(found["leader"], exact) < 1e-4
            plain = torch.autograd.grad(-first, x)[0]
            assert relative_error(plain, exact) > 1e-2


class TwoRounds:
    """The leader acts, is paid, and with its third action ends the game; else both see that action, act again and are
    paid again."""

    discount = 0.9

    def __init__(self) -> None:
        # [agent, a0], [agent, a0, leader's, follower's]
        self.first, self.second = normal(2, 3, seed=21), normal(2, 2, 2, 2, seed=22)
        self.leader, self.follower = (
            [normal(3, seed=23).requires_grad_(), normal(2, 2, seed=24).requires_grad_()],
            [normal(2, 2, seed=25)],
        )
        self.follower[0].requires_grad_()

    def exact(self) -> list[Tensor]:
        start = self.leader[0].softmax(-1)
        joint = self.leader[1].softmax(-1)[:, :, None] * self.follower[0].softmax(-1)[:, None, :]
        later = (joint * self.second).sum((-2, -1))  # (2, 2)
        return [-(start @ self.first[i] + self.discount * start[:2] @ later[i]) for i in range(2)]

    def sample(self, copies: int, random: torch.Generator) -> dict[str, Tensor]:
        start, own, other = (
            self.leader[0].log_softmax(-1),
            self.leader[1].log_softmax(-1),
            self.follower[0].log_softmax(-1),
        )
        a0 = torch.multinomial(start.detach().exp(), copies, True, generator=random)
        goes_on, seen = a0 < 2, a0.clamp(max=1)
        mine, its = (
            torch.multinomial(log.detach().exp()[seen], 1, True, generator=random)[:, 0] for log in (own, other)
        )
        reward0, reward1 = self.first[:, a0].T, torch.where(goes_on, self.second[:, seen, mine, its], 0.0).T
        baseline0, baseline1 = torch.tensor([0.5, -0.2]), torch.tensor([[0.1, 0.6], [-0.4, 0.3]])[seen]
        none = torch.zeros_like(start[a0])
        log_prob = [
            torch.stack([start[a0], none], -1),
            torch.stack([own[seen, mine], other[seen, its]], -1) * goes_on[:, None],
        ]
        advantage = [reward0 + self.discount * reward1 - baseline0, reward1 - baseline1]
        live = torch.stack([torch.ones_like(goes_on), goes_on], -1)
        return {"log_prob": torch.stack(log_prob, 1), "advantage": torch.stack(advantage, 1), "live": live}


def flat(parts: Sequence[Tensor]) -> Tensor:
    return torch.cat([part.detach().reshape(-1) for part in parts])


def ingredients(losses: Sequence[Tensor], game: TwoRounds, x: Tensor) -> dict[str, Tensor]:
    """What directions are made of, for a fixed x: grad_f L_l, grad_l <grad_f L_f, x> and H_ff x."""
    grad = torch.autograd.grad
    weights = [
        part.view_as(p) for part, p in zip(x.split([p.numel() for p in game.follower]), game.follower, strict=True)
    ]
    own = grad(losses[1], game.follower, create_graph=True)
    return {
        "gradient": flat(grad(losses[0], game.follower, retain_graph=True)),
        "mixed": flat(grad(own, game.leader, weights, retain_graph=True)),
        "hessian": flat(grad(own, game.follower, weights, retain_graph=True)),
    }


def product_of_means(losses: Sequence[Tensor], score: Tensor, game: TwoRounds, x: Tensor) -> Tensor:
    """The published estimate of the mixed product, per copy: <S_f, x> grad_l L_f + <grad_f L_f, x> S_l with means over
    the batch."""
    sides = [torch.autograd.grad(y, [*game.leader, *game.follower], retain_graph=True) for y in (losses[1], score)]
    (by_leader, by_follower), (score_l, score_f) = (
        (flat(s[: len(game.leader)]), flat(s[len(game.leader) :])) for s in sides
    )
    return (score_f @ x) * by_leader + (by_follower @ x) * score_l


def sampled(game: TwoRounds, batches: int, copies: int) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """(exact, per batch (N, P)) of each ingredient and of the product of means."""
    x = normal(sum(p.numel() for p in game.follower), seed=31)
    random, rows = generator(5), []
    for _ in range(batches):
        data = game.sample(copies, random)
        losses = dice_losses(data["log_prob"], data["advantage"], data["live"], game.discount)
        row = {"product_of_means": product_of_means(losses.unbind(), data["log_prob"].sum() / copies, game, x)}
        rows.append(row | ingredients(losses.unbind(), game, x))
    exact = ingredients(game.exact(), game, x)
    return exact | {"product_of_means": exact["mixed"]}, {
        key: torch.stack([row[key] for row in rows]) for key in rows[0]
    }


def deviations(game: TwoRounds, batches: int = 400, copies: int = 64) -> dict[str, float]:
    """Largest distance from the exact value over all coordinates, in standard errors of the mean."""
    exact, found = sampled(game, batches, copies)
    return {
        key: float(((v.mean(0) - exact[key]).abs() / (v.std(0) / math.sqrt(batches)).clamp_min(1e-12)).max())
        for key, v in found.items()
    }


def test_sampled_second_derivatives_are_unbiased() -> None:
    found = deviations(TwoRounds())
    assert found["gradient"] < 3
    assert found["mixed"] < 3
    assert found["hessian"] < 3
    assert found["product_of_means"] > 10  # the same test refuses an estimate that multiplies batch means


def test_the_clipped_form_has_the_same_derivatives_at_the_old_policy() -> None:
    game = TwoRounds()
    data = game.sample(50, generator(3))
    x = normal(sum(p.numel() for p in game.follower), seed=32)
    old = data["log_prob"].detach()
    plain = dice_losses(data["log_prob"], data["advantage"], data["live"], game.discount)
    clipped = dice_losses(data["log_prob"], data["advantage"], data["live"], game.discount, old, 0.2)
    first, second = ingredients(plain.unbind(), game, x), ingredients(clipped.unbind(), game, x)
    for key in first:
        torch.testing.assert_close(first[key], second[key])
