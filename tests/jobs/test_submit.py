"""`ray job submit`, as a user types it: configs are uploaded, the job trains on the cluster and leaves its run in
shared storage."""

import json
import shlex
import subprocess
from pathlib import Path

import pytest

from tests.jobs.head import BIN, ROOT, Head

CANARY = "sk-canary-of-a-job-91c3e7"
TINY = [
    "play.num_copies=16",
    "play.num_env_runners=1",
    "algorithm.minibatch_size=64",
    "algorithm.num_epochs=1",
    "scenario.num_symbols=4",
]

Finished = tuple[Path, subprocess.CompletedProcess[str]]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(280)]


def submit(head: Head, entrypoint: str, env: dict[str, str], *more: str) -> subprocess.CompletedProcess[str]:
    """`ray job submit` of the repository; `more` are options of it."""
    command = [BIN / "ray", "job", "submit", "--address", head.dashboard, "--working-dir", ROOT]
    command += [
        "--runtime-env-json",
        json.dumps({"env_vars": {"NR_PROVIDER_KEY": CANARY, "OMP_NUM_THREADS": "1"}}),
        *more,
    ]
    command += ["--", *shlex.split(entrypoint)]
    return subprocess.run(
        [*map(str, command)], cwd=ROOT, env=env, capture_output=True, text=True, timeout=200, check=False
    )


def training(run_dir: Path) -> str:
    """The command line of a tiny training with a remote env runner."""
    settings = " ".join(f"--set {setting}" for setting in TINY)
    return f"python -m nip_ray.cli train tune_configs/message_game.yaml --iterations 2 --run-dir {run_dir} {settings}"


@pytest.fixture(scope="module")
def finished(head: Head, tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """The run folder of a job that ended, and what `ray job submit` printed."""
    run_dir = tmp_path_factory.mktemp("shared") / "runs" / "tiny"
    return run_dir, submit(head, training(run_dir), head.environment(), "--submission-id", "tiny")


def test_a_submitted_training_succeeds_and_its_run_comes_back(finished: Finished) -> None:
    run_dir, done = finished
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "Job 'tiny' succeeded" in done.stdout
    rows = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    assert {row["iteration"] for row in rows} >= {1, 2}
    assert (run_dir / "checkpoints" / "000002" / "manifest.json").is_file()
    assert "<html" in (run_dir / "report.html").read_text()[:500]


def test_the_job_joins_its_own_cluster(head: Head, finished: Finished) -> None:
    assert finished[0].is_dir()
    status, body = head.get("/api/jobs/tiny", head.token)
    job = json.loads(body)
    assert (status, job["status"]) == (200, "SUCCEEDED")
    assert job["driver_info"] is not None  # a driver that had started a Ray of its own would be unknown here


def test_a_secret_given_by_name_is_in_nothing_that_the_run_wrote(finished: Finished) -> None:
    run_dir, done = finished
    files = [file for file in run_dir.rglob("*") if file.is_file()]
    assert len(files) > 5
    assert not [file for file in files if CANARY.encode() in file.read_bytes()]
    assert CANARY not in done.stdout + done.stderr


@pytest.mark.parametrize(
    "changes", [{"RAY_AUTH_MODE": "disabled"}, {"RAY_AUTH_TOKEN": "not-the-token-5e1f"}], ids=["none", "wrong"]
)
def test_a_submission_without_the_token_is_refused(head: Head, tmp_path: Path, changes: dict[str, str | None]) -> None:
    done = submit(
        head, training(tmp_path / "run"), head.environment(**changes), "--submission-id", "uninvited", "--no-wait"
    )
    assert done.returncode != 0
    assert "authentication" in (done.stdout + done.stderr).lower()
    assert head.token not in done.stdout + done.stderr
    assert head.get("/api/jobs/uninvited", head.token)[0] == 404
    assert not (tmp_path / "run").exists()
