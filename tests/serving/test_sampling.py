"""Sampling: the right distribution, independent streams."""

import pytest
import torch

from nip_ray.serving.sampling import draw, uniforms


def options(count: int, temperature: float, top_p: float) -> list[torch.Tensor]:
    numbers = torch.stack([uniforms(seed, 1)[0] for seed in range(count)])
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
    found = torch.bincount(draw(logits, *options(count, temperature, top_p)), minlength=4) / count
    assert torch.allclose(found, torch.tensor(expected, dtype=torch.float32), atol=4 * 0.5 / count**0.5)
    assert all(found[i] == 0 for i in range(4) if expected[i] == 0)


def test_rows_of_all_kinds_together_are_as_alone() -> None:
    logits = torch.randn(30, 50, generator=torch.Generator().manual_seed(0))
    temperature = torch.tensor([0.0, 0.7, 1.0] * 10).double()
    top_p = torch.tensor([1.0, 0.9] * 15).double()
    numbers = uniforms(4, 30)
    together = draw(logits, temperature, top_p, numbers)
    alone = [draw(logits[i : i + 1], temperature[i : i + 1], top_p[i : i + 1], numbers[i : i + 1])[0] for i in range(30)]
    assert together.tolist() == [int(one) for one in alone]


@pytest.mark.parametrize("number", [0.0, 1 - 2**-53])
def test_impossible_tokens_are_never_drawn(number: float) -> None:
    logits = torch.tensor([[-torch.inf, 0.0, 1.0, -torch.inf]])
    one = torch.ones(1).double()
    assert draw(logits, one, one, one * number).item() in (1, 2)


def test_streams() -> None:
    assert torch.equal(uniforms(1, 5), uniforms(1, 9)[:5])
    assert not torch.equal(uniforms(1, 5), uniforms(2, 5))
