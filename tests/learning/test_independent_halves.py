"""Second-order terms are products of two expectations: from one batch they are biased, from two halves of it they are
not."""

import pytest
import torch
from torch import Tensor

from nip_ray.learning.shaping import dice_losses, directions
from nip_ray.settings.stackelberg import StackelbergSettings

# player, own move of 0, own move of 1
PAYOFF = torch.tensor([[[3.0, -1.0], [0.5, 2.0]], [[-1.0, 2.0], [4.0, 0.0]]], dtype=torch.float64)
FOLLOWERS = {"leader": ("follower",), "follower": ()}
STEPS = {"leader": 1.0, "follower": 1.0}


def start() -> dict[str, list[Tensor]]:
    return {
        name: [torch.tensor(x, dtype=torch.float64, requires_grad=True)]
        for name, x in (("leader", 0.3), ("follower", -0.4))
    }


def log_probs(logit: Tensor) -> Tensor:
    return torch.nn.functional.logsigmoid(torch.stack([-logit, logit]))


def exact(parameters: dict[str, list[Tensor]]) -> dict[str, Tensor]:
    first, second = (log_probs(parameters[name][0]).exp() for name in FOLLOWERS)
    return {name: -(first @ PAYOFF[i] @ second) for i, name in enumerate(FOLLOWERS)}


def sampled(parameters: dict[str, list[Tensor]], moves_B2: Tensor) -> dict[str, Tensor]:
    log_prob_B1A = torch.stack(
        [log_probs(parameters[name][0])[moves_B2[:, i]] for i, name in enumerate(FOLLOWERS)], -1
    )[:, None]
    reward_B1A = torch.stack([PAYOFF[i][moves_B2[:, 0], moves_B2[:, 1]] for i in range(2)], -1)[:, None]
    losses_A = dice_losses(log_prob_B1A, reward_B1A, torch.ones(len(moves_B2), 1, dtype=torch.bool), 1.0)
    return dict(zip(FOLLOWERS, losses_A.unbind()))


def correction(found: dict[str, Tensor], *losses: dict[str, Tensor], parameters: dict[str, list[Tensor]]) -> float:
    """What foresight adds to the leader's plain gradient, the mean of the given losses'."""
    plain = torch.autograd.grad(
        sum(part["leader"] for part in losses) / len(losses), parameters["leader"], retain_graph=True
    )[0]
    return float(plain - found["leader"][0])


@pytest.mark.parametrize("variant", ["spg", "lola", "sos"])
def test_exact_losses_need_no_halves(variant: str) -> None:
    parameters = start()
    settings = StackelbergSettings(variant=variant, ihvp_damping=0.5)  # type: ignore[arg-type]
    losses = exact(parameters)
    made = [
        directions(losses, parameters, FOLLOWERS, settings, STEPS, torch.Generator(), independent=x)
        for x in (None, losses)
    ]
    for agent in FOLLOWERS:
        torch.testing.assert_close(made[0][agent], made[1][agent])


@pytest.mark.parametrize("additional", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_halves_are_unbiased_and_one_batch_is_not(additional: bool) -> None:
    settings = StackelbergSettings(variant="lola", additional_lola_term=additional)
    parameters, draw = start(), torch.Generator().manual_seed(0)

    def added(losses: dict[str, Tensor], independent: dict[str, Tensor] | None) -> float:
        found = directions(losses, parameters, FOLLOWERS, settings, STEPS, draw, independent=independent)
        return correction(found, *(part for part in (losses, independent) if part is not None), parameters=parameters)

    expected = added(exact(parameters), None)
    one, halves = [], []
    odds = torch.stack([log_probs(parameters[name][0].detach()).exp() for name in FOLLOWERS])
    for _ in range(1500):
        moves_B2 = torch.multinomial(odds, 4, replacement=True, generator=draw).T
        one.append(added(sampled(parameters, moves_B2), None))
        halves.append(added(sampled(parameters, moves_B2[:2]), sampled(parameters, moves_B2[2:])))
    errors = [(torch.tensor(x).mean() - expected) / (torch.tensor(x).std() / len(x) ** 0.5) for x in (one, halves)]
    assert abs(float(errors[1])) < 3
    assert abs(float(errors[0])) > 5
