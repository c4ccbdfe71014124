"""Simulated worlds: some of them, and that a seed is a world."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def simulated(*arguments: str) -> subprocess.CompletedProcess[str]:
    """In a process of its own, since time, disk and tasks of that process are the world's for good."""
    return subprocess.run(
        [sys.executable, "-m", "tests.simulation", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=280
    )


@pytest.mark.parametrize("seeds", ["0-11", pytest.param("12-399", marks=pytest.mark.slow)])
def test_runs_come_to_their_end_whatever_happens(seeds: str) -> None:
    done = simulated("--seeds", seeds)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    assert " 0 failed" in done.stdout


@pytest.mark.slow
def test_a_seed_is_replayed_to_the_event() -> None:
    first, again = (simulated("--seed", "42") for _ in range(2))
    assert first.returncode == 0
    assert first.stdout.count("\n") > 200
    assert first.stdout == again.stdout
