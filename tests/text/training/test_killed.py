"""Runs of policy gradient whose process is killed by SIGKILL, again and again, wherever it happens to be."""

import os
import random
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from nip_ray.config.load import config_to_yaml
from tests.runs.small import command, environment
from tests.text.training.test_places import config_of, rows, weights

PLACES: dict[str, dict[str, Any]] = {
    "here": {},
    "past": {"opponents": {"every": 1, "latest": 0.4, "agents": ["verifier"]}},
    "workers": {"num_rollout_workers": 2},
    "learners": {"num_learners": 2},
    "ahead": {"num_learners": 1, "num_rollout_workers": 1, "max_staleness": 1},
}


def progress(run: Path) -> int:
    """Rows of metrics that are there."""
    try:
        return (run / "metrics.jsonl").read_text().count("\n")
    except FileNotFoundError:
        return 0


def trained(config: Path, run: Path, kills: int, draw: random.Random) -> int:
    """`nip-ray train --or-resume` until the run is finished; how often it was killed. The kills come at any moment of
    an iteration."""
    arguments = command(["train", config, "--run-dir", run, "--or-resume", "--quiet"])
    killed = 0
    while True:
        process = subprocess.Popen(
            arguments,
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            text=True,
        )
        before = progress(run)
        while killed < kills and process.poll() is None and progress(run) <= before:
            time.sleep(0.01)
        if killed < kills and process.poll() is None:
            time.sleep(draw.random() * 0.3)
        if killed < kills and process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            killed += 1
            continue
        said, _ = process.communicate(timeout=240)
        assert process.returncode == 0, said
        return killed


@pytest.mark.crash
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", PLACES)
def test_whenever_it_is_killed_the_run_is_undisturbed(name: str, tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(config_to_yaml(config_of(12, checkpoint_every=1, kl_coefficient=0.1, **PLACES[name])))
    kills = 4 if name in ("here", "past") else 2
    assert trained(config, tmp_path / "whole", 0, random.Random(0)) == 0
    assert trained(config, tmp_path / "killed", kills, random.Random(name)) == kills
    assert rows(tmp_path / "killed") == rows(tmp_path / "whole")
    assert weights(tmp_path / "killed") == weights(tmp_path / "whole")
