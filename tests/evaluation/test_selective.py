"""Risk against coverage: closed forms, ties, and intervals that cover as often as they say."""

import numpy as np
import pytest

from nip_ray.evaluation.intervals import proportion
from nip_ray.evaluation.selective import area, selective


def verdicts(random: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Sureness 1/2 + u/2 with u uniform, wrong with probability 1 - u: the risk of the surest t is t/2, the area
    1/4."""
    u = random.random(n)
    return 0.5 + u / 2, random.random(n) >= 1 - u


def test_of_many_verdicts_the_figures_are_those_of_the_law() -> None:
    found = selective(*verdicts(np.random.default_rng(0), 400_000), 500_000)
    assert found["area"]["estimate"] == pytest.approx(0.25, abs=3e-3)
    assert found["coverage"]["estimate"] == 0.8
    assert found["precision"]["0.8"]["estimate"] == pytest.approx(0.5, abs=3e-3)  # all verdicts
    assert found["precision"]["0.9"] == {"estimate": None, "lower": 0.0, "upper": 1.0, "n": 0}
    assert found["curve"][-1]["coverage"] == 0.8
    for point in found["curve"][5:]:
        assert point["risk"] == pytest.approx(point["coverage"] / 0.8 / 2, abs=0.01)


def test_by_hand() -> None:
    found = selective(np.array([0.9, 0.8, 0.6, 0.7]), np.array([True, True, False, False]), 5)
    assert [point["risk"] for point in found["curve"]] == pytest.approx([0, 0, 1 / 3, 1 / 2])  # .9, .8, .7, .6
    assert found["area"]["estimate"] == pytest.approx((0 + 0 + 1 / 3 + 1 / 2) / 4, abs=1e-12)
    assert found["precision"]["0.8"]["estimate"] == 0.5
    end = proportion(2, 4)
    assert (found["curve"][-1]["lower"], found["curve"][-1]["upper"]) == pytest.approx((end.lower, end.upper), abs=1e-9)


def test_ties_are_broken_by_nobody() -> None:
    """In whatever order equally sure verdicts stand, and at full coverage the risk is the share of wrong verdicts."""
    random = np.random.default_rng(1)
    sure, right = np.round(verdicts(random, 300)[0], 1), random.random(300) < 0.5
    again = random.permutation(300)
    one, other = selective(sure, right, 300), selective(sure[again], right[again], 300)
    assert one["area"]["estimate"] == pytest.approx(other["area"]["estimate"], abs=1e-12)
    for share in ("0.8", "0.9"):
        assert one["precision"][share]["estimate"] == pytest.approx(other["precision"][share]["estimate"], abs=1e-12)
    all_alike = selective(np.full(10, 0.9), np.arange(10) < 8, 10)
    assert all_alike["precision"]["0.8"]["estimate"] == pytest.approx(0.8), "not that of the first eight"
    assert one["curve"][-1]["risk"] == pytest.approx(1 - right.mean(), abs=1e-12)


def test_intervals_cover_as_often_as_they_say() -> None:
    """Those of risk and precision given the threshold: the surest k are drawn from above the next one's sureness."""
    random, held = np.random.default_rng(2), {"area": 0, "curve": 0, "precision": 0}
    for _ in range(2000):
        sure, right = verdicts(random, 400)
        found, down = selective(sure, right, 400), np.sort(2 * sure - 1)[::-1]
        held["area"] += found["area"]["lower"] <= 0.25 <= found["area"]["upper"]
        point, precision = found["curve"][20], found["precision"]["0.8"]
        held["curve"] += point["lower"] <= (1 - down[round(400 * point["coverage"])]) / 2 <= point["upper"]
        held["precision"] += precision["lower"] <= (1 + down[320]) / 2 <= precision["upper"]
    assert all(0.94 <= count / 2000 <= 0.975 for count in held.values()), held


LAWS = {  # chance of an error, by sureness u
    "falls": lambda u: 1 - u,
    "rare": lambda u: 0.2 * (1 - u),
    "rarest among the surest": lambda u: np.where(u < 0.2, 0.5, 0.02),
    "even": lambda u: np.full_like(u, 0.1),
    "grows": lambda u: 0.3 * u,
}


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("n", [20, 50, 200])
def test_the_areas_interval_covers_with_few_instances_and_few_errors(law: str, n: int) -> None:
    random = np.random.default_rng(n)

    def draws(count: int) -> np.ndarray:
        u = -np.sort(-random.random((count, n)), axis=1)
        return (random.random((count, n)) < LAWS[law](u)).astype(float)

    def risks(wrong: np.ndarray) -> np.ndarray:
        return np.cumsum(wrong, -1) / np.arange(1, n + 1)

    truth = float(risks(draws(10_000)).mean())
    found = [area(risks(wrong), wrong) for wrong in draws(600)]
    known = [one for one in found if one.lower is not None and one.upper is not None]
    assert sum(one.lower <= truth <= one.upper for one in known) >= 0.93 * len(known)
    assert len(known) > 500


def test_nobody_errs_and_nobody_decides() -> None:
    sure = selective(np.array([0.9, 0.8]), np.array([True, True]), 2)
    assert sure["area"] == {"estimate": 0.0, "lower": None, "upper": None, "n": 2}
    none = selective(np.empty(0), np.empty(0), 3)
    assert (none["area"]["estimate"], none["coverage"]["estimate"], none["curve"]) == (None, 0.0, [])
