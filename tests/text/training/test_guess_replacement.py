"""Guess replacement: the published schedule and a split that depends on its arguments alone."""

import subprocess
import sys

import pytest

from nip_ray.settings.text_training import ExpertIterationSettings
from nip_ray.text.training.expert_iteration import share, split_for_replacement


def settings(start: float, annealing: str = "none", rate: float = 0.1) -> ExpertIterationSettings:
    return ExpertIterationSettings(guess_replacement=start, guess_replacement_annealing=annealing, guess_replacement_rate=rate)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("annealing", "rate", "expected"),
    [
        ("none", 0.1, [0.5, 0.5, 0.5, 0.5]),
        ("linear", 0.2, [0.5, 0.3, 0.1, 0.0]),
        ("linear", 0.0, [0.5, 0.5, 0.5, 0.5]),
        ("exponential", 0.5, [0.5, 0.25, 0.125, 0.0625]),
        ("exponential", 1.0, [0.5, 0.0, 0.0, 0.0]),
    ],
)
def test_schedule(annealing: str, rate: float, expected: list[float]) -> None:
    found = [share(settings(0.5, annealing, rate), iteration) for iteration in range(4)]
    assert found == pytest.approx(expected)
    assert all(0 <= value <= 1 for value in found)


@pytest.mark.parametrize("num", [0, 1, 7, 100])
@pytest.mark.parametrize("part", [0.0, 0.3, 0.5, 1.0])
def test_split_is_a_partition(num: int, part: float) -> None:
    replaced, kept = split_for_replacement(num, part, 3, 1, "verifier")
    assert sorted(replaced + kept) == list(range(num))
    assert len(replaced) == int(part * num)
    assert replaced == sorted(replaced)
    assert kept == sorted(kept)


def test_rounding_takes_nothing_away() -> None:
    """0.29 * 100 and (0.3 - 2 * 0.1) * 100 are a little below 29 and 10 in binary."""
    assert int(0.29 * 100) == 28
    assert len(split_for_replacement(100, 0.29, 0, 0, "verifier")[0]) == 29
    assert len(split_for_replacement(100, share(settings(0.3, "linear", 0.1), 2), 0, 2, "verifier")[0]) == 10


def test_split_depends_on_every_argument() -> None:
    base = split_for_replacement(60, 0.5, 0, 0, "verifier")
    assert split_for_replacement(60, 0.5, 0, 0, "verifier") == base
    assert split_for_replacement(60, 0.5, 1, 0, "verifier") != base
    assert split_for_replacement(60, 0.5, 0, 1, "verifier") != base
    assert split_for_replacement(60, 0.5, 0, 0, "other") != base


def test_each_dialogue_is_replaced_equally_often() -> None:
    counts = [0] * 10
    for seed in range(2000):
        for index in split_for_replacement(10, 0.3, seed, 0, "verifier")[0]:
            counts[index] += 1
    assert all(abs(count - 600) < 5 * (2000 * 0.3 * 0.7) ** 0.5 for count in counts)


def test_split_does_not_depend_on_the_process() -> None:
    """Python's salted string hash, which the published code used, differs between processes."""
    source = "from nip_ray.text.training.expert_iteration import split_for_replacement as s; print(s(20, 0.5, 4, 2, 'verifier'))"
    found = {
        subprocess.run(
            [sys.executable, "-c", source], env={"PYTHONHASHSEED": salt, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, check=True
        ).stdout
        for salt in ("1", "2")
    }
    assert found == {f"{split_for_replacement(20, 0.5, 4, 2, 'verifier')}\n"}


def test_impossible_share() -> None:
    with pytest.raises(ValueError, match=r"share is 1\.5"):
        split_for_replacement(10, 1.5, 0, 0, "verifier")
