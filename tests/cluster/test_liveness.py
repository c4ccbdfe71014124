"""Who hangs: how long an answer is waited for, and who has been silent for too long, and nobody else."""

import os
import time
from pathlib import Path
from typing import Any

import pytest

from nip_ray.cluster.liveness import ALIVE, BEAT_S, Silence, give_signs, hang_limit_s, last_sign, trial_silence
from nip_ray.config.load import config_from_dict
from nip_ray.errors import UserError


@pytest.mark.parametrize(
    ("durations", "limit"),
    [([], 1200.0), ([1.0, 2.0, 3.0], 120.0), ([24.0], 120.0), ([30.0, 40.0, 50.0], 200.0), ([1.0, 1.0, 9999.0], 120.0)],
    ids=["none known", "short ones", "just as long", "long ones", "one that hung"],
)
def test_five_times_the_median_where_that_is_longer(durations: list[float], limit: float) -> None:
    assert hang_limit_s(120.0, durations) == limit


@pytest.mark.parametrize("value", [0, -1.0, float("inf"), float("nan"), "soon"])
def test_what_is_no_time_to_wait_is_refused_by_name(value: Any) -> None:
    with pytest.raises(UserError, match=r"fault_tolerance\.hang_timeout_s"):
        config_from_dict({"fault_tolerance": {"hang_timeout_s": value}})


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def looks(silence: Silence, clock: Clock, folder: Path, seconds: float, step: float = 1.0) -> bool:
    """Whether the trial is found to hang at one of the looks within so many seconds."""
    for _ in range(round(seconds / step)):
        clock.now += step
        if silence.too_long("00000", last_sign(folder)):
            return True
    return False


def test_only_a_trial_that_was_seen_silent_for_the_limit_hangs(tmp_path: Path) -> None:
    clock = Clock()
    silence = Silence(20.0, BEAT_S, clock)
    assert not looks(silence, clock, tmp_path, 100), "it has not given its first sign"
    (tmp_path / ALIVE).touch()
    os.utime(tmp_path / ALIVE, (1.0, 1.0))  # a folder that is resumed, or a machine whose clock is wrong
    assert not looks(silence, clock, tmp_path, 20)
    os.utime(tmp_path / ALIVE, (2.0, 2.0))
    assert not looks(silence, clock, tmp_path, 15)
    assert not looks(silence, clock, tmp_path, 3600, 3600), "this process was stopped, too"
    assert looks(silence, clock, tmp_path, 15)
    silence.forget("00000")
    assert not looks(silence, clock, tmp_path, 20)
    assert looks(silence, clock, tmp_path, 3)


def test_a_limit_below_a_few_signs_is_raised() -> None:
    assert trial_silence(0.1).limit_s == 5 * BEAT_S


def test_signs_are_given_until_they_are_ended(tmp_path: Path) -> None:
    end = give_signs(tmp_path)
    os.utime(tmp_path / ALIVE, (1.0, 1.0))
    while (tmp_path / ALIVE).stat().st_mtime < 2.0:
        time.sleep(0.05)
    end()
