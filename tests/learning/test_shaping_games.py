"""Opponent shaping on small games whose exact answers are known: gradients, sampled derivatives, and what learning reaches."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from nip_ray.learning.shaping import dice_losses, directions, leader_follower_map
from nip_ray.scenarios.matrix_games.exact import (
    PRISONERS_DILEMMA,
    bilinear_values,
    bimatrix_values,
    memory_one_values,
    optimal_commitment,
)
from nip_ray.settings.stackelberg import StackelbergSettings

EXACT = StackelbergSettings(variant="spg", ihvp="conjugate_gradient", ihvp_num_iterations=40, ihvp_damping=1e-9)
TWO = {"leader": ("follower",), "follower": ()}
ALONE: dict[str, tuple[str, ...]] = {"leader": (), "follower": ()}
MUTUAL = leader_follower_map(("leader", "follower"), (), mutual=True)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=generator(seed), dtype=torch.float64)


def relative_error(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).norm() / expected.norm())


# Stackelberg gradients against differentiation through the follower's exact response


@pytest.mark.parametrize("ihvp", ["conjugate_gradient", "nystrom"])
@pytest.mark.parametrize("shape", [(2, 2), (3, 4), (5, 3)])
def test_spg_is_the_derivative_through_the_best_response(shape: tuple[int, int], ihvp: str) -> None:
    """Bilinear games with strategies given directly, and bimatrix games with logits; the follower's entropy counts temperature."""
    settings, n, m = replace(EXACT, ihvp=ihvp, ihvp_rank=shape[1]), *shape
    for seed in range(5):
        a, b = normal(n, m, seed=seed), normal(n, m, seed=seed + 50)
        for temperature in (0.3, 1.0):
            x = (0.2 * normal(n, seed=seed + 99)).requires_grad_()
            exact = torch.autograd.grad(-bilinear_values(x, (x @ b / temperature - 1).exp(), a, b)[0], x)[0]
            y = (x.detach() @ b / temperature - 1).exp().requires_grad_()
            first, second = bilinear_values(x, y, a, b)
            losses = {"leader": -first, "follower": -second + temperature * (y * y.log()).sum()}
            found = directions(losses, {"leader": [x], "follower": [y]}, TWO, settings, {}, generator())
            assert float(found["follower"].norm()) < 1e-12  # it is the best response
            assert relative_error(found["leader"], exact) < 1e-4
            plain = torch.autograd.grad(-first, x)[0]
            assert relative_error(plain, exact) > 1e-2

            logits = normal(n, seed=seed + 77).requires_grad_()
            exact = torch.autograd.grad(-bimatrix_values(logits, logits.softmax(-1) @ b / temperature, a, b)[0], logits)[0]
            response = (logits.softmax(-1) @ b / temperature).detach().requires_grad_()
            first, second = bimatrix_values(logits, response, a, b)
            entropy = -(response.softmax(-1) * response.log_softmax(-1)).sum()
            losses = {"leader": -first, "follower": -second - temperature * entropy}
            found = directions(losses, {"leader": [logits], "follower": [response]}, TWO, settings, {}, generator())
            assert float(found["follower"].norm()) < 1e-12
            assert relative_error(found["leader"], exact) < 1e-4


# Sampled losses against exact games


class OneShot:
    """Both agents act once, at the same time: logits of 2 and 3 actions."""

    discount = 1.0

    def __init__(self) -> None:
        self.payoffs = normal(2, 2, 3, seed=11)
        self.leader, self.follower = [normal(2, seed=12).requires_grad_()], [normal(3, seed=13).requires_grad_()]

    def exact(self) -> list[Tensor]:
        return [-value for value in bimatrix_values(self.leader[0], self.follower[0], *self.payoffs)]

    def sample(self, copies: int, random: torch.Generator) -> dict[str, Tensor]:
        logs = [logits[0].log_softmax(-1) for logits in (self.leader, self.follower)]
        acts = [torch.multinomial(log.detach().exp(), copies, True, generator=random) for log in logs]
        returns = self.payoffs[:, acts[0], acts[1]].T
        return {
            "log_prob": torch.stack([log[act] for log, act in zip(logs, acts, strict=True)], -1)[:, None],
            "advantage": (returns - torch.tensor([0.4, -0.3]))[:, None],
            "live": torch.ones(copies, 1, dtype=torch.bool),
        }


class TwoRounds:
    """The leader acts, is paid, and with its third action ends the game; else both see that action, act again and are paid again."""

    discount = 0.9

    def __init__(self) -> None:
        self.first, self.second = normal(2, 3, seed=21), normal(2, 2, 2, 2, seed=22)  # [agent, a0], [agent, a0, leader's, follower's]
        self.leader, self.follower = [normal(3, seed=23).requires_grad_(), normal(2, 2, seed=24).requires_grad_()], [normal(2, 2, seed=25)]
        self.follower[0].requires_grad_()

    def exact(self) -> list[Tensor]:
        start = self.leader[0].softmax(-1)
        joint = self.leader[1].softmax(-1)[:, :, None] * self.follower[0].softmax(-1)[:, None, :]
        later = (joint * self.second).sum((-2, -1))  # (2, 2)
        return [-(start @ self.first[i] + self.discount * start[:2] @ later[i]) for i in range(2)]

    def sample(self, copies: int, random: torch.Generator) -> dict[str, Tensor]:
        start, own, other = self.leader[0].log_softmax(-1), self.leader[1].log_softmax(-1), self.follower[0].log_softmax(-1)
        a0 = torch.multinomial(start.detach().exp(), copies, True, generator=random)
        goes_on, seen = a0 < 2, a0.clamp(max=1)
        mine, its = (torch.multinomial(log.detach().exp()[seen], 1, True, generator=random)[:, 0] for log in (own, other))
        reward0, reward1 = self.first[:, a0].T, torch.where(goes_on, self.second[:, seen, mine, its], 0.0).T
        baseline0, baseline1 = torch.tensor([0.5, -0.2]), torch.tensor([[0.1, 0.6], [-0.4, 0.3]])[seen]
        none = torch.zeros_like(start[a0])
        log_prob = [torch.stack([start[a0], none], -1), torch.stack([own[seen, mine], other[seen, its]], -1) * goes_on[:, None]]
        advantage = [reward0 + self.discount * reward1 - baseline0, reward1 - baseline1]
        live = torch.stack([torch.ones_like(goes_on), goes_on], -1)
        return {"log_prob": torch.stack(log_prob, 1), "advantage": torch.stack(advantage, 1), "live": live}


def flat(parts: Sequence[Tensor]) -> Tensor:
    return torch.cat([part.detach().reshape(-1) for part in parts])


def ingredients(losses: Sequence[Tensor], game: OneShot | TwoRounds, x: Tensor) -> dict[str, Tensor]:
    """What directions are made of, for a fixed x: grad_f L_l, grad_l <grad_f L_f, x> and H_ff x."""
    grad = torch.autograd.grad
    weights = [part.view_as(p) for part, p in zip(x.split([p.numel() for p in game.follower]), game.follower, strict=True)]
    own = grad(losses[1], game.follower, create_graph=True)
    return {
        "gradient": flat(grad(losses[0], game.follower, retain_graph=True)),
        "mixed": flat(grad(own, game.leader, weights, retain_graph=True)),
        "hessian": flat(grad(own, game.follower, weights, retain_graph=True)),
    }


def product_of_means(losses: Sequence[Tensor], score: Tensor, game: OneShot | TwoRounds, x: Tensor) -> Tensor:
    """The published estimate of the mixed product, per copy: <S_f, x> grad_l L_f + <grad_f L_f, x> S_l with means over the batch."""
    sides = [torch.autograd.grad(y, [*game.leader, *game.follower], retain_graph=True) for y in (losses[1], score)]
    (by_leader, by_follower), (score_l, score_f) = ((flat(s[: len(game.leader)]), flat(s[len(game.leader) :])) for s in sides)
    return (score_f @ x) * by_leader + (by_follower @ x) * score_l


def sampled(game: OneShot | TwoRounds, batches: int, copies: int) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """(exact, per batch (N, P)) of each ingredient and of the product of means."""
    x = normal(sum(p.numel() for p in game.follower), seed=31)
    random, rows = generator(5), []
    for _ in range(batches):
        data = game.sample(copies, random)
        losses = dice_losses(data["log_prob"], data["advantage"], data["live"], game.discount)
        row = {"product_of_means": product_of_means(losses.unbind(), data["log_prob"].sum() / copies, game, x)}
        rows.append(row | ingredients(losses.unbind(), game, x))
    exact = ingredients(game.exact(), game, x)
    return exact | {"product_of_means": exact["mixed"]}, {key: torch.stack([row[key] for row in rows]) for key in rows[0]}


def deviations(game: OneShot | TwoRounds, batches: int = 400, copies: int = 64) -> dict[str, float]:
    """Largest distance from the exact value over all coordinates, in standard errors of the mean."""
    exact, found = sampled(game, batches, copies)
    return {
        key: float(((v.mean(0) - exact[key]).abs() / (v.std(0) / math.sqrt(batches)).clamp_min(1e-12)).max()) for key, v in found.items()
    }


@pytest.mark.parametrize("game", [OneShot(), TwoRounds()], ids=["one-shot", "two-rounds"])
def test_sampled_second_derivatives_are_unbiased(game: OneShot | TwoRounds) -> None:
    found = deviations(game)
    assert found["gradient"] < 3
    assert found["mixed"] < 3
    assert found["hessian"] < 3
    assert found["product_of_means"] > 10  # the same test refuses an estimate that multiplies batch means


@pytest.mark.parametrize("game", [OneShot(), TwoRounds()], ids=["one-shot", "two-rounds"])
def test_the_clipped_form_has_the_same_derivatives_at_the_old_policy(game: OneShot | TwoRounds) -> None:
    data = game.sample(50, generator(3))
    x = normal(sum(p.numel() for p in game.follower), seed=32)
    old = data["log_prob"].detach()
    plain = dice_losses(data["log_prob"], data["advantage"], data["live"], game.discount)
    clipped = dice_losses(data["log_prob"], data["advantage"], data["live"], game.discount, old, 0.2)
    first, second = ingredients(plain.unbind(), game, x), ingredients(clipped.unbind(), game, x)
    for key in first:
        torch.testing.assert_close(first[key], second[key])


@pytest.mark.parametrize("variant", ["spg", "lola", "sos"])
def test_directions_from_samples_come_near_the_exact_ones(variant: str) -> None:
    game = TwoRounds()
    parameters = {"leader": game.leader, "follower": game.follower}
    settings = StackelbergSettings(variant=variant, ihvp="conjugate_gradient", ihvp_num_iterations=10, ihvp_damping=0.5)  # type: ignore[arg-type]
    eta = {"follower": 1.0, "leader": 1.0}
    exact = directions(dict(zip(parameters, game.exact())), parameters, TWO, settings, eta, generator())
    data = game.sample(200_000, generator(4))
    losses = dice_losses(data["log_prob"], data["advantage"], data["live"], game.discount)
    found = directions(dict(zip(parameters, losses)), parameters, TWO, settings, eta, generator())
    plain = torch.autograd.grad(losses[0], game.leader)
    assert relative_error(found["leader"], exact["leader"]) < 0.1
    assert relative_error(flat(plain), exact["leader"]) > 0.5
    assert relative_error(found["follower"], exact["follower"]) < 0.1


# The exact values themselves


def test_memory_one_values_against_play() -> None:
    """The linear solve against the sum over 2000 rounds of expected payoffs, for agents who each see their own action first."""
    payoffs = [torch.tensor(p, dtype=torch.float64) for p in PRISONERS_DILEMMA]
    logits = normal(2, 3, 5, seed=51)
    found = memory_one_values(logits[0], logits[1], *payoffs, 0.9)
    steps = memory_one_values(logits[0], logits[1], *payoffs, 0.9, per_step=True)
    for row in range(3):
        p, q = logits[0, row].sigmoid().tolist(), logits[1, row].sigmoid().tolist()
        chance, totals = {(a, b): abs(a - p[0]) * abs(b - q[0]) for a in (0, 1) for b in (0, 1)}, [0.0, 0.0]
        for t in range(2000):
            following = dict.fromkeys(chance, 0.0)
            for (a, b), weight in chance.items():
                for i in range(2):
                    totals[i] += 0.9**t * weight * PRISONERS_DILEMMA[i][a][b]
                for c in (0, 1):
                    for d in (0, 1):
                        following[c, d] += weight * abs(c - p[1 + 2 * a + b]) * abs(d - q[1 + 2 * b + a])
            chance = following
        for i in range(2):
            assert abs(float(found[i][row]) - totals[i]) < 1e-9
            assert abs(float(steps[i][row]) - 0.1 * totals[i]) < 1e-9


def test_optimal_commitment_of_known_games() -> None:
    """Conitzer and Sandholm's first example: alone, up dominates and yields 2; committing to half and half yields 3.5."""
    leader, follower = torch.tensor([[2.0, 4.0], [1.0, 3.0]]), torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    value, mixed, action = optimal_commitment(leader, follower)
    assert (round(value, 6), action) == (3.5, 1)
    torch.testing.assert_close(mixed, torch.tensor([0.5, 0.5], dtype=torch.float64))
    zero_sum = torch.tensor([[1.0, -1.0], [-1.0, 1.0]])
    assert abs(optimal_commitment(zero_sum, -zero_sum)[0]) < 1e-9
    for seed in range(5):  # no strategy of a fine grid does better
        leader, follower = normal(2, 3, seed=seed), normal(2, 3, seed=seed + 60)
        x = torch.linspace(0, 1, 20_001, dtype=torch.float64)
        strategies = torch.stack([x, 1 - x], -1)
        gains = strategies @ follower
        allowed = gains >= gains.max(-1, keepdim=True).values - 1e-9
        best = torch.where(allowed, strategies @ leader, -math.inf).max()
        value = optimal_commitment(leader, follower)[0]
        assert -1e-6 <= value - float(best) < 1e-3


# What learning reaches


def commitment_gap(seed: int, implicit: bool, starts: int = 32, steps: int = 300) -> float:
    """How far the leader of a random game ends below its optimal commitment, as a share of the range of its payoffs.

    Many starts at once, of which it keeps the best. The follower always plays its entropy-regularised best response, softmax(x B / t),
    at a temperature t that falls; the leader is paid against that response. Plain gradients if not `implicit`.
    """
    random = generator(seed)
    n, m = (int(torch.randint(2, 5, (), generator=random)) for _ in range(2))
    a, b = (torch.rand(n, m, generator=random, dtype=torch.float64) for _ in range(2))
    leader = (-torch.rand(starts, n, generator=random, dtype=torch.float64).log()).log().requires_grad_()  # uniform on the simplex
    follower = torch.zeros(starts, m, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.Adam([leader])
    warm, cold, paid = 0.05, 3e-4, torch.zeros(())
    for step in range(steps + 1):
        temperature = warm * (cold / warm) ** min(1.0, step / (0.8 * steps))
        with torch.no_grad():
            follower.copy_(leader.softmax(-1) @ b / temperature)
        paid, its = bimatrix_values(leader, follower, a, b)
        entropy = -(follower.softmax(-1) * follower.log_softmax(-1)).sum(-1)
        losses = {"leader": -paid.sum(), "follower": -(its + temperature * entropy).sum()}
        settings = replace(EXACT, ihvp_num_iterations=10, ihvp_damping=1e-3 * temperature)
        parameters = {"leader": [leader], "follower": [follower]}
        leader.grad = directions(losses, parameters, TWO if implicit else ALONE, settings, {}, generator())["leader"].view_as(leader)
        if step < steps:
            optimizer.param_groups[0]["lr"] = 0.1 * (temperature / warm) ** 0.5
            optimizer.step()
    return (optimal_commitment(a, b)[0] - float(paid.detach().max())) / float(a.max() - a.min())


def test_a_leader_finds_its_optimal_commitment() -> None:
    """Two games; in the second a leader that does not foresee its follower stays far below."""
    assert commitment_gap(2, implicit=True, starts=16) < 0.01
    assert commitment_gap(9, implicit=True, starts=16) < 0.01
    assert commitment_gap(9, implicit=False, starts=16) > 0.1


@pytest.mark.learning
def test_leaders_find_their_optimal_commitment() -> None:
    gaps = [commitment_gap(seed, implicit=True) for seed in range(50)]
    plain = [commitment_gap(seed, implicit=False) for seed in range(50)]
    print(f"gaps: mean {sum(gaps) / 50:.4f}, largest {max(gaps):.4f}, within 1 %: {sum(gap <= 0.01 for gap in gaps)} of 50")
    print(f"without implicit differentiation within 1 %: {sum(gap <= 0.01 for gap in plain)} of 50")
    assert sum(gap <= 0.01 for gap in gaps) >= 48
    assert sum(gap <= 0.01 for gap in plain) <= 42


def learn(
    losses: Callable[[Tensor, Tensor], Sequence[Tensor]],
    first: Tensor,
    second: Tensor,
    variant: str,
    step: float,
    steps: int,
    shape: bool = True,
) -> tuple[Tensor, Tensor]:
    """Both agents after `steps` plain gradient steps of the same size as the followers are supposed to take."""
    parameters = {"leader": [first.clone().requires_grad_()], "follower": [second.clone().requires_grad_()]}
    settings, eta = StackelbergSettings(variant=variant), {"leader": step, "follower": step}  # type: ignore[arg-type]
    for _ in range(steps):
        found = directions(
            dict(zip(parameters, losses(parameters["leader"][0], parameters["follower"][0]))),
            parameters,
            MUTUAL if shape else ALONE,
            settings,
            eta,
            generator(),
        )
        with torch.no_grad():
            for agent, (p,) in parameters.items():
                p -= step * found[agent].view_as(p)
    return parameters["leader"][0].detach(), parameters["follower"][0].detach()


def dilemma_per_step(shape: bool, seeds: int = 20) -> Tensor:
    """(seeds,) mean value per step of both agents. Step sizes, discount and start of Letcher et al., 2019; all seeds at once."""
    payoffs = [torch.tensor(p, dtype=torch.float64) for p in PRISONERS_DILEMMA]

    def losses(first: Tensor, second: Tensor) -> list[Tensor]:
        return [-value.sum() for value in memory_one_values(first, second, *payoffs, 0.96)]

    ends = learn(losses, normal(seeds, 5, seed=71), normal(seeds, 5, seed=72), "lola", 1.0, 200, shape)
    return torch.stack(memory_one_values(*ends, *payoffs, 0.96, per_step=True)).mean(0)


def test_mutual_shaping_solves_the_iterated_prisoners_dilemma() -> None:
    shaped, naive = dilemma_per_step(shape=True), dilemma_per_step(shape=False)
    print(f"shaping {shaped.mean():.3f} ({shaped.min():.3f} to {shaped.max():.3f}), naive {naive.mean():.3f} ({naive.max():.3f})")
    assert float(shaped.mean()) >= -1.10
    assert float(naive.mean()) <= -1.95
