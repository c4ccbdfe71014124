"""Sampling: the right distribution, independent streams."""

import pytest
import torch

from nip_ray.serving.sampling import draw, stream, uniforms


def options(count: int, temperature: float, top_p: float) -> list[torch.Tensor]:
    numbers = uniforms([stream(seed) for seed in range(count)], [0] * count)
    return [torch.full((count,), temperature).double(), torch.full((count,), top_p).double(), numbers]


@pytest.mark.parametrize(
    ("temperature", "top_p", "expected"),
    [
        (1.0, 1.0, [0.1, 0.2, 0.4, 0.3]),
        (0.5, 1.0, [1 / 30, 4 / 30, 16 / 30, 9 / 30]),
        (1.0, 0.65, [0, 0, 4 / 7, 3 / 7]),
        (1.0, 0.71, [0, 2 / 9, 4 / 9, 3 / 9]),
        (1.0, 0.01, [0, 0, 1, 0]),
        (0.0, 1.0, [0, 0, 1, 0]),
    ],
)
def test_frequencies(temperature: float, top_p: float, expected: list[float]) -> None:
    """20,000 draws; the bound is four standard errors of a frequency of a half."""
    count = 20_000
    logits = torch.tensor([0.1, 0.2, 0.4, 0.3]).log().expand(count, 4)
    found = torch.bincount(draw(logits, *options(count, temperature, top_p))[0], minlength=4) / count
    assert torch.allclose(found, torch.tensor(expected, dtype=torch.float32), atol=4 * 0.5 / count**0.5)
    assert all(found[i] == 0 for i in range(4) if expected[i] == 0)


def test_rows_of_all_kinds_together_are_as_alone() -> None:
    logits = torch.randn(30, 50, generator=torch.Generator().manual_seed(0))
    temperature = torch.tensor([0.0, 0.7, 1.0] * 10).double()
    top_p = torch.tensor([1.0, 0.9] * 15).double()
    numbers = uniforms([4] * 30, range(30))
    together = draw(logits, temperature, top_p, numbers)[0]
    alone = [
        draw(logits[i : i + 1], temperature[i : i + 1], top_p[i : i + 1], numbers[i : i + 1])[0][0] for i in range(30)
    ]
    assert together.tolist() == [int(one) for one in alone]


@pytest.mark.parametrize("number", [0.0, 1 - 2**-53])
def test_impossible_tokens_are_never_drawn(number: float) -> None:
    logits = torch.tensor([[-torch.inf, 0.0, 1.0, -torch.inf]])
    one = torch.ones(1).double()
    assert draw(logits, one, one, one * number)[0].item() in (1, 2)


def test_streams() -> None:
    """The reference values of SplitMix64 (its author's C program, seed 1234567), in order and out of it; no two streams
    alike."""
    known = [6457827717110365317, 3203168211198807973, 9817491932198370423]
    assert uniforms([1234567] * 3, [0, 1, 2]).tolist() == [(number >> 11) * 2**-53 for number in known]
    assert uniforms([5, 1234567], [7, 1])[1] == (known[1] >> 11) * 2**-53
    assert len({stream(seed) for seed in range(-50, 50)}) == 100
