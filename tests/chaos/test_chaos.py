"""Whatever is killed, the run ends, repeats at most one iteration, and gives the numbers of a run that nothing happened
to."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.chaos.driver import ROOT

LOST = {"env_runner": 0, "learner": 1, "node": 1, "trial": 1, "trial_node": 1, "driver": 1, "sweep_driver": 1}
"""Case -> iterations that a run may begin once more."""


def outcomes(folder: Path, seed: int) -> dict[str, Any]:
    """What came of all cases, played on one cluster by a process of its own."""
    command = [sys.executable, "-m", "tests.chaos.driver", str(folder), str(seed), *LOST]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        out, err = process.communicate(timeout=200 * len(LOST))
    finally:
        end(process)
    assert process.returncode == 0, err[-4000:]
    found = [json.loads(line) for line in out.splitlines() if line.startswith('{"case"')]
    return {outcome["case"]: outcome for outcome in found}


def end(process: subprocess.Popen[str]) -> None:
    """End it and all that it has started, if that is still there."""
    if process.poll() is None:
        for child in psutil.Process(process.pid).children(recursive=True):
            child.kill()
        process.kill()
        process.wait()


def check(outcome: dict[str, Any]) -> None:
    """Something was killed before the end; the end is as if nothing had been."""
    iterations, runs = outcome["iterations"], len(outcome["calm"])
    assert outcome["killed"]
    assert outcome["rows"] < iterations * runs, "it struck too late"
    for calm, disturbed, begun in zip(outcome["calm"], outcome["disturbed"], outcome["begun"], strict=True):
        assert [row["iteration"] for row in calm] == list(range(1, iterations + 1))
        assert disturbed == calm
        assert iterations <= begun <= iterations + LOST[outcome["case"]]


@pytest.mark.crash
@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("seed", range(5))
def test_whatever_is_killed_whenever(tmp_path: Path, seed: int) -> None:
    found = outcomes(tmp_path, seed)
    assert set(found) == set(LOST)
    for outcome in found.values():
        check(outcome)
