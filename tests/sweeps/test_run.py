"""Sweeps from their file to the table, through the real Tuner: what is written, what is refused, how they continue
after a kill."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from ray.exceptions import OutOfMemoryError
from typer.testing import CliRunner

from nip_ray.cli import app
from nip_ray.errors import TrainingError, UserError
from nip_ray.evaluation.verbs.evaluate import evaluate_run
from nip_ray.runs.experiment import run_experiment
from nip_ray.storage.folder import LOCK, RunFolder, lock
from nip_ray.sweeps.run import SweepResult, _record, free_folder, resume_sweep, run_sweep
from nip_ray.sweeps.spec import parse_sweep
from tests.runs.small import MESSAGES, environment, small, untimed

METRIC = "eval/verifier/accuracy"
SWEEP: dict[str, Any] = {
    **MESSAGES,
    "name": "tried",
    "runtime": {"num_threads": 1, "num_cpus": 2},
    "algorithm": {**MESSAGES["algorithm"], "lr": {"grid": [1e30, 0.02]}},
    "sweep": {"seeds": [3, 4], "metric": METRIC},
}
"""Two learning rates, of which one is a NaN in no time, with two seeds; of the four CPUs of the tests two trials take
all."""


def rows(run: Path) -> list[dict[str, Any]]:
    return [untimed(row) for row in RunFolder.open(run).metrics()]


@pytest.mark.parametrize(
    ("changes", "case", "reached", "status"),
    [
        ({"iterations": 4, "stop": {"metric": METRIC, "until": 0.9}}, None, 2, "done"),
        ({"iterations": 4}, None, 2, "stopped"),
        (
            {"sweep": {"metric": METRIC, "cases": {"short": {"iterations": 2}, "long": {"iterations": 8}}}},
            "short",
            2,
            "done",
        ),
        (
            {"sweep": {"metric": METRIC, "cases": {"short": {"iterations": 2}, "long": {"iterations": 8}}}},
            "long",
            5,
            "stopped",
        ),
    ],
)
def test_a_trial_is_done_when_its_own_config_says_so(
    tmp_path: Path, changes: dict[str, Any], case: str | None, reached: int, status: str
) -> None:
    spec = parse_sweep({**MESSAGES, "sweep": {"metric": METRIC}, **changes})
    values = {} if case is None else {"case": case}
    trial = SimpleNamespace(
        trial_id="a", status="TERMINATED", last_result={"done": True}, config={"values": values}, error_file=None
    )
    rows = [{"iteration": 1, METRIC: 0.5}, {"iteration": reached, METRIC: 0.95}]
    assert _record(spec, tmp_path, trial, rows).status == status


@pytest.fixture(scope="module")
def finished(ray_session: None, tmp_path_factory: pytest.TempPathFactory) -> SweepResult:
    return run_sweep(parse_sweep(SWEEP), tmp_path_factory.mktemp("runs") / "tried")


def test_every_setting_is_run_with_every_seed_and_one_that_fails_by_itself_is_not_tried_again(
    finished: SweepResult,
) -> None:
    found = [(trial.trial_id, trial.values["algorithm.lr"], trial.seed, trial.status) for trial in finished.trials]
    first, second = (
        [("00000", 1e30, 3, "failed"), ("00001", 0.02, 3, "done")],
        [("00002", 1e30, 4, "failed"), ("00003", 0.02, 4, "done")],
    )
    assert found == first + second, "one seed after the other"
    assert not finished.interrupted
    assert "not finite" in str(finished.trials[0].error)
    assert finished.trials[0].iterations < 4
    assert [trial.iterations for trial in finished.trials if trial.status == "done"] == [4, 4]
    folder = finished.folder
    assert {path.name for path in (folder / "trials").iterdir()} == {"00000", "00001", "00002", "00003"}
    assert not (folder / "trials" / "00001" / "lineage.json").exists()
    assert "Traceback" not in ((folder / "tune.log").read_text() if (folder / "tune.log").exists() else "")


def test_a_sweep_and_a_single_run_give_the_same_numbers(finished: SweepResult, tmp_path: Path) -> None:
    run_experiment(small("algorithm.lr=0.02", "seed=4", base=MESSAGES), tmp_path / "run", quiet=True)
    assert rows(finished.folder / "trials" / "00003") == rows(tmp_path / "run")


def test_trials_that_wait_for_a_place_take_over_the_process_of_who_had_it(finished: SweepResult) -> None:
    owners = {(finished.folder / "trials" / trial.trial_id / LOCK).read_text() for trial in finished.trials}
    assert len(owners) == 2


def test_what_came_of_it_is_written_down(finished: SweepResult) -> None:
    result = finished
    written = json.loads((result.folder / "sweep.json").read_text())
    assert written["format"] == "nip_ray.sweep"
    assert written["statuses"] == {"done": 2, "failed": 2}
    assert [setting["trials"] for setting in written["settings"]] == [["00000", "00002"], ["00001", "00003"]]
    assert written["best"]["values"] == {"algorithm.lr": 0.02}
    figures = [rows(result.folder / "trials" / name)[-1][METRIC] for name in ("00001", "00003")]
    assert written["best"]["estimate"] == pytest.approx(sum(figures) / 2)
    assert written["seconds"] > 0
    page = (result.folder / "sweep.html").read_text()
    assert "not finite" in page
    assert "0.02" in page


def test_the_copy_of_the_best_is_a_whole_run(finished: SweepResult) -> None:
    result = finished
    best = result.summary.best_trial
    assert best is not None
    assert best.run_dir is not None
    copied = CliRunner().invoke(app, ["evaluate", str(result.folder / "best"), "--json"])
    assert copied.exit_code == 0, copied.output
    assert rows(result.folder / "best") == rows(best.run_dir)
    assert evaluate_run(result.folder / "best")["iteration"] == 4


def test_a_finished_sweep_that_goes_on_trains_nothing_and_says_the_same(finished: SweepResult) -> None:
    folder = finished.folder
    before = {path: path.read_bytes() for path in folder.glob("trials/*/metrics.jsonl")}
    found = CliRunner().invoke(app, ["sweep", "--resume", str(folder), "--json"])
    assert found.exit_code == 0, found.output
    printed = json.loads(found.stdout)
    assert printed["settings"] == json.loads((folder / "sweep.json").read_text())["settings"]
    assert printed["folder"] == str(folder)
    assert {path: path.read_bytes() for path in folder.glob("trials/*/metrics.jsonl")} == before


@pytest.mark.slow
def test_trials_are_found_again_where_tune_had_written_nothing_yet(finished: SweepResult, tmp_path: Path) -> None:
    """Killed early: one trial is done, one was cut off, the others have not begun. The folder was moved besides."""
    folder = tmp_path / "elsewhere"
    shutil.copytree(finished.folder, folder)
    shutil.rmtree(folder / "tune")
    for name in ("00000", "00002"):
        shutil.rmtree(folder / "trials" / name)
    cut = folder / "trials" / "00003"
    shutil.rmtree(cut / "checkpoints" / "000004")
    shutil.rmtree(cut / "curves", ignore_errors=True)
    (cut / "report.html").unlink()
    again = resume_sweep(folder, quiet=True)
    assert [(trial.trial_id, trial.status) for trial in again.trials] == [
        (trial.trial_id, trial.status) for trial in finished.trials
    ]
    for name in ("00001", "00003"):
        assert rows(folder / "trials" / name) == rows(finished.folder / "trials" / name)
    assert (cut / "report.html").is_file()


def test_a_sweep_that_another_process_is_at_is_left_alone(finished: SweepResult, tmp_path: Path) -> None:
    folder = tmp_path / "held"
    folder.mkdir()
    shutil.copy(finished.folder / "sweep.yaml", folder)
    with lock(folder), pytest.raises(UserError, match="is being written by"):
        resume_sweep(folder)


def test_a_folder_that_holds_something_is_not_written_into(finished: SweepResult, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--resume"):
        run_sweep(parse_sweep(SWEEP), finished.folder)
    (tmp_path / "notes.txt").touch()
    with pytest.raises(UserError, match="is not empty; choose"):
        run_sweep(parse_sweep(SWEEP), tmp_path)


def test_a_second_sweep_of_the_name_gets_a_folder_of_its_own(tmp_path: Path) -> None:
    spec = parse_sweep({**SWEEP, "sweep": {**SWEEP["sweep"], "storage_path": str(tmp_path)}})
    assert free_folder(spec) == tmp_path / "tried"
    (tmp_path / "tried").mkdir()
    assert free_folder(spec) == tmp_path / "tried-2"


def test_a_storage_path_that_cannot_work_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "sweep.yaml").write_text(yaml.safe_dump(SWEEP))
    found = CliRunner().invoke(app, ["sweep", str(tmp_path / "sweep.yaml"), "--storage", "s3://bucket/runs"])
    assert (found.exit_code, found.output.count("\n")) == (2, 1)
    assert "bucket/runs, expected a folder that all nodes see" in found.output


def test_a_cluster_that_is_too_small_is_said_and_leaves_no_folder(ray_session: None, tmp_path: Path) -> None:
    data = {**SWEEP, "play": {**SWEEP["play"], "num_env_runners": {"grid": [1, 9]}}, "sweep": {"metric": METRIC}}
    with pytest.raises(
        UserError, match=r"it has 4 CPU in all, and 11 CPU are requested .*; lower play.num_env_runners"
    ):
        run_sweep(parse_sweep(data), tmp_path / "large")
    assert not (tmp_path / "large").exists()


def test_a_plugin_that_breaks_in_one_of_the_settings_is_met_before_anything_starts(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("raise RuntimeError('no good')")
    data = {**MESSAGES, "plugins": {"grid": [[], [str(tmp_path / "broken.py")]]}}
    with pytest.raises(UserError, match=r"broken\.py.*no good"):
        run_sweep(parse_sweep(data), tmp_path / "sweep")
    assert not (tmp_path / "sweep").exists()


@pytest.mark.slow
def test_when_all_trials_failed_the_sweep_did_too(ray_session: None, tmp_path: Path) -> None:
    data = {**SWEEP, "algorithm": {**MESSAGES["algorithm"], "lr": 1e30}, "sweep": {"seeds": [3, 4], "metric": METRIC}}
    with pytest.raises(TrainingError, match=r"all 2 trials failed, the first with: iteration \d: .* not finite"):
        run_sweep(parse_sweep(data), tmp_path / "failed", quiet=True)
    assert json.loads((tmp_path / "failed" / "sweep.json").read_text())["statuses"] == {"failed": 2}


LONG: dict[str, Any] = {
    **MESSAGES,
    "name": "long",
    "iterations": 30,
    "evaluation": {"interval": 10, "num_transcripts": 0},
    "checkpoint": {"interval": 5},
    "runtime": {"num_threads": 1, "ray_num_cpus": 2},
    "algorithm": {**MESSAGES["algorithm"], "lr": {"loguniform": [1e-3, 1e-1]}},
    "sweep": {"num_samples": 2, "seeds": [3, 4], "metric": METRIC},
}


@contextmanager
def begun(file: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """`nip-ray sweep` with a Ray of its own, in a process group of its own, of which nothing is left."""
    command = [sys.executable, "-c", "from nip_ray.cli import main\nmain()", "sweep", str(file), *arguments]
    process = subprocess.Popen(
        command,
        cwd=file.parent,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def wait_for(happened: Callable[[], object], process: subprocess.Popen[str], seconds: float = 150.0) -> None:
    deadline = time.monotonic() + seconds
    while not happened():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)


def lines(folder: Path) -> int:
    return sum(path.read_bytes().count(b"\n") for path in folder.glob("trials/*/metrics.jsonl"))


def numbers(result: SweepResult) -> list[Any]:
    found = []
    for trial in result.trials:
        assert trial.run_dir is not None
        found.append((trial.trial_id, trial.values, trial.seed, trial.status, rows(trial.run_dir)))
    return found


@pytest.fixture(scope="module")
def undisturbed(ray_session: None, tmp_path_factory: pytest.TempPathFactory) -> SweepResult:
    return run_sweep(parse_sweep(LONG), tmp_path_factory.mktemp("undisturbed") / "long", quiet=True)


@pytest.mark.crash
@pytest.mark.parametrize(
    "rows_before", [pytest.param(1, marks=pytest.mark.slow), 12, pytest.param(65, marks=pytest.mark.slow)]
)
def test_a_killed_sweep_gives_the_numbers_of_one_that_was_left_alone(
    undisturbed: SweepResult, tmp_path: Path, rows_before: int
) -> None:
    (tmp_path / "long.yaml").write_text(yaml.safe_dump(LONG))
    folder = tmp_path / "runs" / "long"
    with begun(tmp_path / "long.yaml", "--quiet") as process:
        wait_for(lambda: lines(folder) >= rows_before, process)
        os.killpg(process.pid, signal.SIGKILL)
    time.sleep(1)  # raylet and workers end with their driver
    ended = {
        path.parent.name: RunFolder.open(path.parent).metrics() for path in folder.glob("trials/*/evaluation.json")
    }
    assert ended or rows_before < 60
    resumed = resume_sweep(folder, quiet=True)
    assert not resumed.interrupted
    assert numbers(resumed) == numbers(undisturbed)
    # their times, too: not trained again
    assert {name: RunFolder.open(folder / "trials" / name).metrics() for name in ended} == ended


@pytest.mark.slow
@pytest.mark.crash
def test_an_interrupted_sweep_says_how_to_go_on_and_does(undisturbed: SweepResult, tmp_path: Path) -> None:
    (tmp_path / "long.yaml").write_text(yaml.safe_dump(LONG))
    folder = tmp_path / "runs" / "long"
    with begun(tmp_path / "long.yaml") as process:
        wait_for(lambda: lines(folder) >= 8, process)
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
        out, err = process.communicate(timeout=120)
    assert process.returncode == 130, err
    assert "continues" in err.splitlines()[-1]
    assert "nip-ray sweep --resume" in err.splitlines()[-1]
    assert "Traceback" not in err
    assert METRIC in out
    assert "unfinished" in json.loads((folder / "sweep.json").read_text())["statuses"]
    assert numbers(resume_sweep(folder, quiet=True)) == numbers(undisturbed)


def test_a_process_that_is_ended_for_memory_is_told_in_one_line(
    ray_session: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tune takes it for a fault of its own, and raises what it caught."""

    class Ended:
        def fit(self) -> None:
            raise RuntimeError("Caught unexpected exception") from OutOfMemoryError("no room")

    monkeypatch.setattr("nip_ray.sweeps.compat.tuner", lambda *_, **__: Ended())
    with pytest.raises(
        TrainingError,
        match=r"ran out of memory; run fewer trials at once .*nip-ray sweep --resume .*tried` continues it",
    ):
        run_sweep(parse_sweep(SWEEP), tmp_path / "tried")
