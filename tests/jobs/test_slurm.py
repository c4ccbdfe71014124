"""scripts/slurm.sbatch with stand-ins of `srun` and `scontrol`: two nodes of Ray here, and a run that is preempted and
comes back."""

import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from nip_ray.runs.experiment import run_experiment
from nip_ray.storage.folder import RunFolder
from tests.jobs.head import environment
from tests.jobs.pinned import ROOT
from tests.runs.small import MESSAGES, small, untimed, write_small

SCRIPT = ROOT / "scripts" / "slurm.sbatch"
SRUN = """#!/bin/bash
# Options, then a command, which runs here; on a node that is ABSENT it hangs.
echo "$@" >> "$STAND_IN/srun.log"
output=/dev/stdout
while [[ $1 == --* ]]; do
  case $1 in --output=*) output=${1#--output=} ;; --nodelist=*) node=${1#--nodelist=} ;; esac
  shift
done
[ "${node:-}" != "${ABSENT:-none}" ] || exec sleep 600
exec "$@" > "$output" 2>&1
"""
SCONTROL = """#!/bin/bash
case $1 in
  show) tr , '\\n' <<< "$3" ;;
  requeue) echo "$2" >> "$STAND_IN/requeued" ;;
  *) exit 1 ;;
esac
"""
SETTINGS = ("iterations=150", "play.num_env_runners=1", "checkpoint.interval=20", "evaluation.interval=0")


@contextmanager
def job(
    folder: Path, *command: str, nodes: str = "one,two", number: str = "7041", **variables: str
) -> Iterator[subprocess.Popen[str]]:
    """The script as Slurm starts it on the first of `nodes`; afterwards nothing of it is left."""
    for name, text in (("srun", SRUN), ("scontrol", SCONTROL)):
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    known = environment(
        {"SLURM_JOB_ID": number, "SLURM_JOB_NODELIST": nodes, "SLURM_CPUS_PER_TASK": "2", "HOME": str(folder)}
    )
    known |= {
        "STAND_IN": str(folder),
        "PATH": f"{folder}{os.pathsep}{known['PATH']}",
        "RAY_ADDRESS": "10.0.0.1:6379",
        **variables,
    }
    process = subprocess.Popen(
        ["bash", str(SCRIPT), *command],
        env=known,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
        lines = [" ".join(one.info["cmdline"] or ()) for one in psutil.process_iter(["cmdline"])]
        assert not [line for line in lines if f"/tmp/nr-{number}" in line]
        assert not Path(f"/tmp/nr-{number}").exists()
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)


def ended(process: subprocess.Popen[str], within_s: float = 180) -> tuple[int, str]:
    """Its exit status, and what it said."""
    said, _ = process.communicate(timeout=within_s)
    return process.returncode, said


def test_slurm_and_bash_can_read_the_script() -> None:
    subprocess.run(["bash", "-n", str(SCRIPT)], check=True)
    text = SCRIPT.read_text()
    options = re.findall(r"^#SBATCH --([a-z-]+)(?:=\S+)?$", text, re.MULTILINE)
    assert len(options) == text.count("#SBATCH")
    assert {"nodes", "requeue", "signal", "open-mode"} <= set(options)
    assert text.index("#SBATCH") < text.index("\nset "), "Slurm stops reading at the first command"


@pytest.mark.parametrize(
    ("command", "said"), [([], "no command"), (["train", "a.yaml", "--run-dir", "b"], "needs --or-resume")]
)
def test_a_command_that_cannot_come_back_is_refused(command: list[str], said: str, tmp_path: Path) -> None:
    with job(tmp_path, *command) as process:
        status, told = ended(process)
    assert (status, said in told, (tmp_path / "srun.log").exists()) == (2, True, False)


@pytest.mark.crash
@pytest.mark.timeout(600)
@pytest.mark.parametrize("nodes", ["one,two", "one"])
def test_a_preempted_job_comes_back_and_its_numbers_are_those_of_an_undisturbed_run(nodes: str, tmp_path: Path) -> None:
    config, run_dir = write_small(tmp_path / "config.yaml", *SETTINGS, base=MESSAGES), tmp_path / "run"
    command = ["train", str(config), "--run-dir", str(run_dir), "--or-resume", "--quiet"]
    with job(tmp_path, *command, nodes=nodes) as process:
        until = time.monotonic() + 120
        while (
            not (run_dir / "metrics.jsonl").is_file() or len((run_dir / "metrics.jsonl").read_text().splitlines()) < 30
        ):
            assert process.poll() is None, ended(process)
            assert time.monotonic() < until
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        status, said = ended(process)
    assert status == 143, said
    assert (tmp_path / "requeued").read_text() == "7041\n"
    assert not list((tmp_path / ".nip_ray").glob("*/token"))
    with job(tmp_path, *command, nodes=nodes, SLURM_RESTART_COUNT="1") as process:
        status, said = ended(process)
    assert status == 0, said
    steps = (tmp_path / "srun.log").read_text() if nodes != "one" else ""
    assert steps.count("ray start") == (4 if nodes != "one" else 0), "head and worker, each time"
    undisturbed = run_experiment(small(*SETTINGS, base=MESSAGES), tmp_path / "undisturbed", quiet=True).run_dir
    with RunFolder.open(run_dir) as found, RunFolder.open(undisturbed) as wanted:
        assert [untimed(row) for row in found.metrics()] == [untimed(row) for row in wanted.metrics()]


@pytest.mark.crash
def test_a_node_that_does_not_come_is_named_within_its_time(tmp_path: Path) -> None:
    with job(
        tmp_path, "evaluate", "nothing", nodes="one,two,three", number="7042", ABSENT="three", NIP_RAY_WAIT_S="20"
    ) as process:
        status, said = ended(process, 90)
    assert status == 2, said
    assert re.search(r"error: Ray did not come up on three within 20 s; see \S+/three\.log", said), said


@pytest.mark.crash
def test_the_status_of_a_command_that_fails_is_the_jobs_and_it_does_not_come_back(tmp_path: Path) -> None:
    with job(tmp_path, "evaluate", str(tmp_path / "nothing"), nodes="one") as process:
        status, said = ended(process)
    assert status == 2, said
    assert not (tmp_path / "requeued").exists()
