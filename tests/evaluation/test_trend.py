"""The slope over training: what numpy fits, when there is no interval, and how often the interval holds the truth."""

import numpy as np
import pytest

from nip_ray.evaluation.trend import slope


def test_it_is_the_line_of_least_squares() -> None:
    x_N = np.array([1.0, 4.0, 5.0, 9.0, 20.0])
    y_N = np.array([0.3, 0.1, 0.4, 0.1, 0.5])
    assert slope(x_N, y_N).estimate == pytest.approx(np.polyfit(x_N, y_N, 1)[0], abs=1e-9)


def test_alternating_errors_have_the_interval_of_independent_ones() -> None:
    """Residuals whose neighbours have correlation below 0 count as independent: Student's interval of least squares,
    with 6 - 2 degrees."""
    y_N = np.array([0.0, 1.0, 0.0, 1.0, 0.0, 1.0])
    line = np.polyfit(np.arange(6), y_N, 1)
    error = np.sqrt(((y_N - np.polyval(line, np.arange(6))) ** 2).sum() / 4 / 17.5)
    found = slope(np.arange(6), y_N)
    assert found.upper is not None
    assert found.upper == pytest.approx(line[0] + 2.7764451051977987 * error, abs=1e-9)


def test_what_says_nothing_of_its_spread_has_no_interval() -> None:
    assert slope([], []).estimate is None
    assert slope([3.0], [0.5]).estimate is None
    assert slope([1, 2, 3, 4, 5], [0.1, 0.2, 0.3, 0.4, 0.5]).lower is None, "all lie on the line"
    assert slope([1, 2, 3], [0.1, 0.5, 0.2]).lower is None
    assert slope(np.arange(12), np.abs(np.arange(12) - 6.0)).lower is None, "one bend is no twelve observations"


@pytest.mark.parametrize("alike", [0.0, 0.6])
def test_the_interval_covers_as_often_as_it_says(alike: float) -> None:
    random, held, given = np.random.default_rng(0), 0, 0
    for _ in range(2000):
        noise_N = random.normal(size=40)
        for i in range(1, 40):
            noise_N[i] = alike * noise_N[i - 1] + np.sqrt(1 - alike**2) * noise_N[i]
        found = slope(np.arange(40), 0.05 * np.arange(40) + noise_N)
        if found.lower is not None and found.upper is not None:
            held, given = held + (found.lower <= 0.05 <= found.upper), given + 1
    assert given > 1980, "some are so alike that they say nothing"
    assert 0.94 <= held / given <= 0.97
