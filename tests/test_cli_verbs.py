"""Verbs about more than one run, run for real: sweep (what needs no Ray), doctor, evaluate over all checkpoints, train
from a run."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from nip_ray.cli import app
from nip_ray.storage.folder import RunFolder
from tests.runs.small import write_small

ROOT = Path(__file__).resolve().parents[1]
TINY = ROOT / "tune_configs" / "sweep_tiny.yaml"


def call(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def refusal(*arguments: str | Path) -> str:
    """The one line that a mistake is answered with."""
    result = call(*arguments)
    assert result.exit_code == 2, result.output
    assert len(result.stderr.splitlines()) == 1
    return result.stderr


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of four iterations with a checkpoint of each, started with --profile."""
    folder = tmp_path_factory.mktemp("verbs")
    config = write_small(folder / "small.yaml")
    settings = [
        "checkpoint.interval=1",
        "checkpoint.keep=null",
        "profiling.wait=0",
        "profiling.warmup=0",
        "profiling.active=1",
    ]
    options = [part for setting in settings for part in ("--set", setting)]
    result = call("train", config, "--run-dir", folder / "run", "--profile", "--quiet", *options)
    assert result.exit_code == 0, result.output
    return folder / "run"


def test_a_profile_is_in_the_run_folder(trained: Path) -> None:
    assert list((trained / "profile").glob("trace-000001.json.gz"))
    assert "CPU" in (trained / "profile" / "table.txt").read_text()


def test_all_checkpoints_are_examined_and_kept(trained: Path) -> None:
    result = call("evaluate", trained, "--all-checkpoints", "--json")
    assert result.exit_code == 0, result.output
    rows = json.loads(result.stdout)["checkpoints"]
    assert [row["iteration"] for row in rows] == [1, 2, 3, 4]
    last = RunFolder.open(trained).metrics()[-1]
    assert rows[-1]["eval/verifier/accuracy"] == last["eval/verifier/accuracy"]
    assert list((trained / "reruns").glob("*.json"))
    shown = call("evaluate", trained, "--all-checkpoints")
    assert "eval/verifier/accuracy" in shown.stdout
    fewer = json.loads(
        call("evaluate", trained, "--all-checkpoints", "--set", "evaluation.max_instances=1", "--json").stdout
    )["checkpoints"]
    assert {row["num_instances"] for row in fewer} == {1}
    assert "is of an attack" in refusal("evaluate", trained, "--all-checkpoints", "--set", "evaluation.attack.seeds=7")
    assert "one of them" in refusal("evaluate", trained, "--all-checkpoints", "--checkpoint", "2")


def test_a_run_stands_for_its_config(trained: Path, tmp_path: Path) -> None:
    result = call(
        "train",
        trained,
        "--seed",
        "11",
        "--iterations",
        "1",
        "--run-dir",
        tmp_path / "again",
        "--quiet",
        "--set",
        "profiling.enabled=false",
    )
    assert result.exit_code == 0, result.output
    text = RunFolder.open(tmp_path / "again").config_yaml()
    assert "seed: 11" in text
    assert "name: small" in text
    assert "no run" in refusal("train", tmp_path)


def test_a_sweep_is_checked_without_being_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = call("sweep", TINY, "--dry-run", "--set", "sweep.seeds=[0, 1]")
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("# 2 settings, 4 trials\n")
    assert not list(tmp_path.iterdir())


def test_mistakes_about_sweeps_are_one_line(trained: Path, tmp_path: Path) -> None:
    assert "nip-ray train" in refusal("sweep", ROOT / "tune_configs" / "message_game.yaml")
    assert "nip-ray sweep" in refusal("train", TINY)
    assert "not both" in refusal("sweep")
    assert "not both" in refusal("sweep", TINY, "--resume", tmp_path)
    assert "leave out" in refusal("sweep", "--resume", tmp_path, "--dry-run")
    assert "sweep.yaml" in refusal("sweep", "--resume", tmp_path)
    assert "nip-ray resume" in refusal("sweep", "--resume", trained)
    (tmp_path / "file").write_text("")
    assert "file" in refusal("sweep", TINY, "--storage", tmp_path / "file")


def test_doctor_says_whether_a_run_would_work(tmp_path: Path) -> None:
    result = call("doctor", "--storage", tmp_path, "--json")
    found = json.loads(result.stdout)
    assert found["ok"] is (result.exit_code == 0)
    assert {finding["status"] for finding in found["findings"]} <= {"ok", "note", "problem"}
    (tmp_path / "file").write_text("")
    broken = call("doctor", "--storage", tmp_path / "file" / "runs")
    assert broken.exit_code == 1
    assert "problem  storage" in broken.stdout
    assert "mend:" in broken.stdout


def test_a_match_is_counted_and_repeats_itself() -> None:
    first, again = (
        call("match", "random", "choose-first", "--rounds", "300", "--seed", "2", "--json") for _ in range(2)
    )
    assert first.exit_code == 0, first.output
    found = json.loads(first.stdout)
    assert found["rounds"] == 300
    assert 1 <= found["games"] <= 60
    assert first.stdout == again.stdout
    assert "unknown player 'nobody'" in refusal("match", "nobody", "random")
    assert "unknown player" in refusal("match", "random", "zeillinger")
