"""Signs of life of trials: who is silent for too long is found, and nobody else."""

import os
import time
from pathlib import Path

from nip_ray.sweeps.alive import ALIVE, BEAT_S, SignsOfLife, give_signs


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def looks(signs: SignsOfLife, clock: Clock, folder: Path, seconds: float, step: float = 1.0) -> bool:
    """Whether the trial is found to hang at one of the looks within so many seconds."""
    for _ in range(round(seconds / step)):
        clock.now += step
        if signs.hangs("00000", folder):
            return True
    return False


def test_only_a_trial_that_was_seen_silent_for_the_limit_hangs(tmp_path: Path) -> None:
    clock = Clock()
    signs = SignsOfLife(20.0, clock)
    assert not looks(signs, clock, tmp_path, 100), "it has not given its first sign"
    (tmp_path / ALIVE).touch()
    os.utime(tmp_path / ALIVE, (1.0, 1.0))  # a folder that is resumed, or a machine whose clock is wrong
    assert not looks(signs, clock, tmp_path, 20)
    os.utime(tmp_path / ALIVE, (2.0, 2.0))
    assert not looks(signs, clock, tmp_path, 15)
    assert not looks(signs, clock, tmp_path, 3600, 3600), "this process was stopped, too"
    assert looks(signs, clock, tmp_path, 15)
    signs.forget("00000")
    assert not looks(signs, clock, tmp_path, 20)
    assert looks(signs, clock, tmp_path, 3)


def test_a_limit_below_a_few_signs_is_raised() -> None:
    assert SignsOfLife(0.1).limit_s == 5 * BEAT_S


def test_signs_are_given_until_they_are_ended(tmp_path: Path) -> None:
    end = give_signs(tmp_path)
    os.utime(tmp_path / ALIVE, (1.0, 1.0))
    while (tmp_path / ALIVE).stat().st_mtime < 2.0:
        time.sleep(0.05)
    end()
