"""scripts/skypilot.yaml: SkyPilot's own reading of it, and its commands on this machine."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from nip_ray.runs.experiment import run_experiment
from nip_ray.storage.folder import RunFolder
from tests.jobs.head import environment
from tests.jobs.pinned import ROOT
from tests.runs.small import MESSAGES, small, untimed, write_small

FILE = ROOT / "scripts" / "skypilot.yaml"
TASK = yaml.safe_load(FILE.read_text())
READ = """
import sys, yaml, sky
task = yaml.safe_load(open(sys.argv[1]))
try:
    sky.Task.from_yaml_config(dict(task))
except ValueError as error:
    assert "'RUN' is None" in str(error), error
made = sky.Task.from_yaml_config(task, env_overrides=[("RUN", "first"), ("MIRROR", "s3://bucket/runs")])
(machine,) = made.resources
assert machine.use_spot and machine.job_recovery["recover_on_exit_codes"] == [143], machine
try:
    sky.Task.from_yaml_config({**task, "num_node": 2})
except ValueError as error:
    print("refused")
"""


@pytest.mark.slow
def test_skypilot_reads_the_file(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--target",
        str(tmp_path / "sky"),
        "skypilot>=0.14,<0.15",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"SkyPilot cannot be installed here: {done.stderr[-300:]}")
    known = {**os.environ, "PYTHONPATH": str(tmp_path / "sky"), "HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", READ, str(FILE)], env=known, capture_output=True, text=True, check=False
    )
    assert done.stdout == "refused\n", done.stderr[-2000:]


def run_on(machine: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """The command of the only node of a job, on a machine that has nothing but the working directory."""
    (machine / ".venv" / "bin").mkdir(parents=True)
    (machine / ".venv" / "bin" / "activate").write_text("")
    known = environment(
        {"SKYPILOT_NUM_NODES": "1", "SKYPILOT_NODE_RANK": "0", "SKYPILOT_NODE_IPS": "127.0.0.1", "HOME": str(machine)}
    )
    known |= {**TASK["envs"], **TASK["secrets"], **variables}
    return subprocess.run(
        ["bash", "-c", TASK["run"]], env=known, cwd=machine, capture_output=True, text=True, timeout=200, check=False
    )


@pytest.mark.parametrize("part", ["setup", "run"])
def test_bash_can_read_its_commands(part: str) -> None:
    subprocess.run(["bash", "-n", "-c", TASK[part]], check=True)


def test_ray_is_among_what_it_installs() -> None:
    assert "--extra ray " in TASK["setup"]


@pytest.mark.slow
def test_its_command_goes_on_on_another_machine(tmp_path: Path) -> None:
    config = write_small(tmp_path / "config.yaml", "checkpoint.interval=1", base=MESSAGES)
    variables = {"RUN": "first", "CONFIG": str(config), "MIRROR": f"file://{tmp_path}/bucket"}
    for machine, settings in (("one", "--quiet --iterations 2"), ("two", "--quiet")):
        done = run_on(tmp_path / machine, **variables, SETTINGS=settings)
        assert done.returncode == 0, done.stderr
    assert "fetched from its copy" in done.stderr
    undisturbed = run_experiment(
        small("checkpoint.interval=1", base=MESSAGES), tmp_path / "undisturbed", quiet=True
    ).run_dir
    with RunFolder.open(tmp_path / "two" / "runs" / "first") as found, RunFolder.open(undisturbed) as wanted:
        assert [untimed(row) for row in found.metrics()] == [untimed(row) for row in wanted.metrics()]
    assert run_on(tmp_path / "three", **variables, SKYPILOT_NUM_NODES="2").returncode == 2, "several nodes need a token"
