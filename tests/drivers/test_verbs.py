"""`nip-ray run`, and `nip-ray resume` for what it made."""

from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from nip_ray.cli import app
from nip_ray.drivers.spec import is_runner_folder
from nip_ray.storage.checkpoint import load_checkpoint, rewind_checkpoints
from tests.drivers.small import same
from tests.drivers.test_runner import TINY


def call(*arguments: str) -> tuple[int, str]:
    """(exit code, all that was printed)."""
    done = CliRunner().invoke(app, list(arguments))
    return done.exit_code, done.output


@pytest.fixture
def runner(tmp_path: Path) -> Path:
    """A runner file."""
    file = tmp_path / "runner.yaml"
    file.write_text(yaml.safe_dump(TINY))
    return file


def test_a_run_is_resumed_by_the_verb_that_resumes_all_runs(runner: Path, tmp_path: Path) -> None:
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    for folder in (whole, stopped):
        code, said = call("run", str(runner), "--run-dir", str(folder))
        assert code == 0, said
        assert "eval/p/return_mean" in said
    assert is_runner_folder(stopped)
    rewind_checkpoints(stopped / "checkpoints", 20)
    code, said = call("resume", str(stopped), "--set", "driver.name=step")
    assert code == 0, said
    assert "eval/q/return_mean" in said
    assert same(load_checkpoint(whole / "checkpoints").tensors, load_checkpoint(stopped / "checkpoints").tensors)
    assert yaml.safe_load((stopped / "config.yaml").read_text())["driver"]["name"] == "step"
    for arguments, words in (
        (["--iterations", "90"], "start a new run"),
        (["--set", "seed=4"], "can change driver, evaluation, experiment"),
        (["--set", "driver.timesteps=50"], "over which learners.1.algorithm.exploration_fraction falls"),
        (["--set", "driver.nam=step"], "did you mean name"),
    ):
        code, said = call("resume", str(stopped), *arguments)
        assert code == 2, said
        assert words in said
        assert said.startswith("error: ")
        assert said.count("\n") == 1
    code, said = call("run", str(runner), "--run-dir", str(whole))
    assert code == 2
    assert "resume" in said
    other = tmp_path / "other"
    other.mkdir()
    (other / "config.yaml").write_text("learners: {num_learners: 0}\n")
    assert not is_runner_folder(other)
