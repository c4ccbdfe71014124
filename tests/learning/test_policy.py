"""Action distributions against torch.distributions, and masks: a factor that is not in play is absent, not merely
constant."""

from dataclasses import replace

import pytest
import torch
from scipy.stats import chisquare
from torch import Tensor
from torch.distributions import Categorical, kl_divergence

from nip_ray.learning.policy import Policy, gumbel_noise

N, FACTORS, SYMBOLS, LINEAR = 24, 3, 7, 4
FORBIDDEN = -1e9


def policy(seed: int = 0, *, linear: bool = True, decides: bool = True, masked: bool = True) -> Policy:
    """Random logits with some forbidden symbols and random masks."""
    random = torch.Generator().manual_seed(seed)
    message = torch.randn(N, FACTORS, SYMBOLS, generator=random, dtype=torch.float64) * 2
    message[:, 1, 2] = FORBIDDEN
    masks = torch.Generator().manual_seed(99)  # the same for every seed
    speaks = torch.rand(N, FACTORS, generator=masks) < 0.6 if masked else torch.ones(N, FACTORS, dtype=torch.bool)
    may_decide = torch.rand(N, generator=masks) < 0.6 if masked else torch.ones(N, dtype=torch.bool)
    return Policy(
        message,
        torch.randn(N, FACTORS, LINEAR, generator=random, dtype=torch.float64) if linear else None,
        torch.randn(N, 3, generator=random, dtype=torch.float64) if decides else None,
        speaks,
        may_decide if decides else None,
    )


def action_of(made: Policy, seed: int = 1) -> dict[str, Tensor]:
    return made.sample(gumbel_noise((N, made.noise_width), torch.Generator().manual_seed(seed)))


def parts(made: Policy) -> list[tuple[str, Tensor, Tensor]]:
    """(name, logits (N, F, S), in play (N, F)) of every kind of factor."""
    found = [("message", made.message, made.speaks)]
    if made.linear is not None:
        found.append(("linear", made.linear, made.speaks))
    if made.decision is not None and made.may_decide is not None:
        found.append(("decision", made.decision[:, None], made.may_decide[:, None]))
    return found


KINDS = [(linear, decides, masked) for linear in (False, True) for decides in (False, True) for masked in (False, True)]


@pytest.mark.parametrize(("linear", "decides", "masked"), KINDS)
def test_against_torch_distributions(linear: bool, decides: bool, masked: bool) -> None:
    made = policy(0, linear=linear, decides=decides, masked=masked)
    other = policy(5, linear=linear, decides=decides, masked=masked)
    action = action_of(made)
    log_prob, entropy, kl = torch.zeros(3, N, dtype=torch.float64)
    for (name, logits, speaks), (_, its_logits, _) in zip(parts(made), parts(other)):
        mine, its = Categorical(logits=logits), Categorical(logits=its_logits)
        said = action[name] if name != "decision" else action[name][:, None]
        log_prob += (mine.log_prob(said) * speaks).sum(1)
        entropy += (mine.entropy() * speaks).sum(1)
        kl += (kl_divergence(mine, its) * speaks).sum(1)
    torch.testing.assert_close(made.log_prob(action), log_prob)
    torch.testing.assert_close(made.entropy(), entropy)
    torch.testing.assert_close(made.kl(other), kl)
    torch.testing.assert_close(made.normalised().message_entropy() + made.normalised().decision_entropy(), entropy)
    assert made.kl(made).abs().max() < 1e-12


def leaves(made: Policy) -> Policy:
    """The same with logits that record gradients."""
    optional = {key: getattr(made, key) for key in ("linear", "decision")}
    grown = {key: None if x is None else x.clone().requires_grad_() for key, x in optional.items()}
    return replace(made, message=made.message.clone().requires_grad_(), **grown)


@pytest.mark.parametrize("quantity", ["log_prob", "entropy", "kl"])
def test_gradient_of_factors_not_in_play_is_exactly_zero(quantity: str) -> None:
    made = leaves(policy())
    action = action_of(policy())
    value = {"log_prob": lambda: made.log_prob(action), "entropy": made.entropy, "kl": lambda: made.kl(policy(3))}[
        quantity
    ]()
    value.square().sum().backward()
    for name, (logits, speaks) in {
        "message": (made.message, made.speaks),
        "linear": (made.linear, made.speaks),
        "decision": (made.decision, made.may_decide),
    }.items():
        assert not logits.grad[~speaks].any(), name
        assert bool(logits.grad[speaks].abs().sum(-1).gt(0).all()), name
        assert bool(logits.grad.isfinite().all()), name


def test_decision_that_cannot_count_is_continue() -> None:
    made = policy()
    for seed in range(5):
        assert bool((action_of(made, seed)["decision"][~made.may_decide] == 2).all())
    assert bool((made.sample(None)["decision"][~made.may_decide] == 2).all())


def test_sampling_frequencies() -> None:
    """Every factor's samples follow its softmax; a forbidden symbol never comes."""
    count = 20_000
    one = policy(2, masked=False)
    made = Policy(
        *(
            x[:1].expand(count, *x.shape[1:])
            for x in (one.message, one.linear, one.decision, one.speaks, one.may_decide)
        )
    )
    action = made.sample(gumbel_noise((count, made.noise_width), torch.Generator().manual_seed(0)))
    for name, logits, _ in parts(one):
        said_NF = action[name].view(count, -1)
        for factor in range(said_NF.shape[1]):
            probability = torch.softmax(logits[0, factor], 0)
            seen = torch.bincount(said_NF[:, factor], minlength=len(probability))
            assert not seen[probability == 0].any()
            possible = probability > 0
            expected = probability[possible] * count
            assert chisquare(seen[possible].numpy(), (expected / expected.sum() * count).numpy()).pvalue > 1e-3, (
                name,
                factor,
            )
    # independent factors
    pairs = torch.bincount(action["message"][:, 0] * LINEAR + action["linear"][:, 0], minlength=SYMBOLS * LINEAR)
    joint = (torch.softmax(one.message[0, 0], 0)[:, None] * torch.softmax(one.linear[0, 0], 0)).flatten() * count
    assert chisquare(pairs.numpy(), (joint / joint.sum() * count).numpy()).pvalue > 1e-3
