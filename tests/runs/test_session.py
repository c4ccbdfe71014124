"""A session continues after what was lost and past what is damaged, with the numbers of one that nothing happened
to."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import ray

from nip_ray.config.load import config_to_yaml
from nip_ray.runs.experiment import run_experiment
from nip_ray.runs.session import WARNINGS, Session, to_the_end
from nip_ray.scenarios.registry import SCENARIOS
from nip_ray.storage.folder import RunFolder
from nip_ray.sweeps.run import run_sweep
from nip_ray.sweeps.spec import parse_sweep
from nip_ray.tracking import TRACKERS, TrackerKind
from tests.chaos.broken import LEARNER, TRIAL, damage_and_die, write_plugin
from tests.runs.small import MESSAGES, small, untimed

EACH = ("checkpoint.interval=1", "checkpoint.keep=null")


@contextmanager
def opened(folder: Path, *overrides: str) -> Iterator[Session]:
    config = small(*EACH, *overrides, base=MESSAGES)
    with RunFolder.create(folder, config_to_yaml(config)) as run:
        session = Session(config, run, quiet=True)
        try:
            session.start()
            yield session
        finally:
            session.close()


def rows(folder: Path) -> list[dict[str, Any]]:
    with RunFolder.open(folder) as run:
        return [untimed(row) for row in run.metrics()]


def calm(folder: Path, *overrides: str) -> list[dict[str, Any]]:
    return rows(run_experiment(small(*EACH, *overrides, base=MESSAGES), folder, quiet=True).run_dir)


def tear(checkpoints: Path) -> Path:
    """Damage the newest checkpoint; returns it."""
    newest = max(path for path in checkpoints.iterdir() if path.name.isdigit())
    (newest / "training.pt").write_bytes(b"torn")
    return newest


@pytest.mark.parametrize("damaged", [0, 1])
def test_a_restart_goes_on_from_the_newest_undamaged_checkpoint(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], damaged: int
) -> None:
    with opened(tmp_path / "run") as session:
        for _ in range(3):
            session.step()
        if damaged:
            tear(session.folder.checkpoints)
        session.restart()
        assert session.iteration == 3 - damaged
        to_the_end(session)
    said = [line for line in capfd.readouterr().err.splitlines() if "warning" in line]
    assert [line.endswith("continuing from iteration 2") and "000003 is damaged" in line for line in said] == [
        True
    ] * damaged
    assert rows(tmp_path / "run") == calm(tmp_path / "calm")


def test_rows_that_were_changed_are_told_of(tmp_path: Path) -> None:
    with opened(tmp_path / "run") as session:
        session.step()
        session.step()
        assert session.newest() is not None
        file = session.folder.path / "metrics.jsonl"
        assert not (session.folder.path / WARNINGS).exists()
        file.write_text(file.read_text().replace('"iteration": 1', '"iteration":  1', 1))
        session.newest()
        assert (
            "metrics.jsonl: rows of iterations 1 are not as they were" in (session.folder.path / WARNINGS).read_text()
        )
        # which takes the place of another
        file.write_text(file.read_text().replace('"iteration":  1', '"iteration": 2', 1))
        (session.folder.path / WARNINGS).unlink()
        session.newest()
        assert "rows of iterations 2 are not as they were" in (session.folder.path / WARNINGS).read_text()


def test_a_restart_without_a_checkpoint_begins_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trackers hear of every iteration once all the same."""
    tracker = Mock()
    monkeypatch.setitem(
        TRACKERS, "notes", TrackerKind(lambda settings: True, lambda settings: None, lambda settings, run: tracker)
    )
    with opened(tmp_path / "run", "checkpoint.interval=100") as session:
        session.step()
        session.restart()
        assert session.iteration == 0
        assert rows(tmp_path / "run") == []
        to_the_end(session)
    assert [call.args[0]["iteration"] for call in tracker.log.call_args_list] == [1, 2, 3, 4]
    assert rows(tmp_path / "run") == calm(tmp_path / "calm")


@pytest.mark.crash
def test_a_learner_that_is_lost_before_the_last_examination_is_made_anew(
    ray_session: None, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with opened(tmp_path / "run", "learners.num_learners=1") as session:
        while not session.over:
            session.step()
        ray.kill(session.algorithm.learner_group._workers[0])
        to_the_end(session)
    assert "warning: a learner of 1 is lost" in capfd.readouterr().err
    assert (tmp_path / "run" / "evaluation.json").is_file()
    assert rows(tmp_path / "run") == calm(tmp_path / "calm", "learners.num_learners=1")


@pytest.mark.crash
def test_a_learner_lost_with_the_newest_checkpoint_costs_one_iteration_more(
    ray_session: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(SCENARIOS, "message_game", SCENARIOS["message_game"])
    plugin, struck = write_plugin(tmp_path, LEARNER, 1, damage_and_die("run/checkpoints"))
    given = ("learners.num_learners=1",)
    run_experiment(small(*EACH, *given, f"plugins=[{plugin}]", base=MESSAGES), tmp_path / "run", quiet=True)
    assert struck.with_name("damaged").exists()
    assert "000002 is damaged" in capfd.readouterr().err
    assert rows(tmp_path / "run") == calm(tmp_path / "calm", *given)


@pytest.mark.crash
def test_a_trial_lost_with_the_newest_checkpoint_costs_one_iteration_more(
    ray_session: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(SCENARIOS, "message_game", SCENARIOS["message_game"])
    plugin, struck = write_plugin(tmp_path, TRIAL, 1, damage_and_die("sweep/trials/*/checkpoints"))
    settings = {"seeds": [MESSAGES["seed"]]}
    data = {**MESSAGES, "checkpoint": {"interval": 1, "keep": None}, "plugins": [str(plugin)], "sweep": settings}
    [trial] = run_sweep(parse_sweep(data), tmp_path / "sweep", quiet=True).trials
    assert (trial.status, trial.iterations) == ("done", 4)
    assert struck.with_name("damaged").read_text() == "000002"
    assert trial.run_dir is not None
    assert "000002 is damaged" in (trial.run_dir / WARNINGS).read_text()
    assert rows(trial.run_dir) == calm(tmp_path / "calm")
