"""One file, one run."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from nip_ray.cli import app
from nip_ray.config.load import load_config
from nip_ray.drivers import runner
from nip_ray.drivers.runner import DRIVERS, EVALUATION, falls_over_timesteps, fingerprint_of, resume_runner, run_runner
from nip_ray.drivers.spec import load_runner, parse_runner, runner_to_yaml
from nip_ray.errors import UserError
from nip_ray.storage.checkpoint import load_checkpoint, rewind_checkpoints
from nip_ray.storage.folder import RunFolder
from nip_ray.storage.stored_config import plain_config
from tests.drivers.small import same

ROOT = Path(__file__).resolve().parents[2]
TINY: dict[str, Any] = {
    "seed": 4,
    "environment": {"num_copies": 5},
    "learners": [
        {"name": "p", "algorithm": {"rollouts": 8, "num_epochs": 2}, "scope": 2},
        {"name": "q", "algorithm": {"name": "dqn", "learning_starts": 4, "memory_size": 100}, "scope": 3},
    ],
    "driver": {"timesteps": 40},
    "evaluation": {"timesteps": 30, "num_copies": 2},
    "experiment": {"write_interval": 10, "checkpoint_interval": 20},
}


def final_state(run_dir: Path) -> dict[str, Any]:
    return load_checkpoint(run_dir / "checkpoints").tensors


def plain_rows(run_dir: Path) -> list[dict[str, Any]]:
    """The rows of metrics without what depends on the clock."""
    with RunFolder.open(run_dir) as folder:
        return [
            {key: value for key, value in row.items() if not key.startswith("time/") and "per_s" not in key}
            for row in folder.metrics()
        ]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"sed": 1}, "sed: unknown key, did you mean seed"),
        ({"driver": {"timstep": 3}}, "driver.timstep: unknown key, did you mean timesteps"),
        ({"driver": {"timesteps": "1000 * 2"}}, "driver.timesteps: got '1000 \\* 2', expected integer >= 1"),
        ({"learners": [{"algorithm": {"name": "dqn", "rollouts": 4}}]}, "learners.0.algorithm.rollouts: unknown key"),
        ({"learners": [{}] * 17}, "got 17 for 16 copies"),
        ({"learners": [{"scope": 3}, {"scope": 3}]}, "expected a sum of 16"),
        ({"learners": [{"name": "a"}, {"name": "a"}]}, "the name a is used twice"),
        ({"learners": [{"network": {"hidden": [4, 0]}}]}, "expected integers >= 1"),
        ({"learners": [{}, {}], "environment": {"shared": True}, "driver": {"name": "manual"}}, "got manual"),
        ({"driver": {"headless": False}}, "driver.headless: got false, but environment.options has no render_mode"),
        (
            {"environment": {"name": "experiment", "config": "x"}, "driver": {"headless": False}},
            "an experiment has no pictures",
        ),
    ],
)
def test_what_is_wrong_is_named(data: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        parse_runner(data)


def test_files_of_the_other_kind_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match=r"quickstart.yaml: is an experiment, not a runner file; start it with `nip-ray train"
    ):
        load_runner(ROOT / "tune_configs" / "quickstart.yaml")
    with pytest.raises(UserError, match=r"runner_cartpole.yaml: is a runner file.* for `nip-ray run`"):
        load_config(ROOT / "tune_configs" / "runner_cartpole.yaml")
    (tmp_path / "config.yaml").write_text("learners: [{}]")
    with pytest.raises(UserError, match="is a runner file"):
        load_config(tmp_path)
    (tmp_path / "both.yaml").write_text("driver: {}\nalgorithm: {name: ppo}")
    with pytest.raises(UserError, match="driver: unknown key"):
        load_config(tmp_path / "both.yaml")


def test_a_run_keeps_what_it_was(tmp_path: Path) -> None:
    (tmp_path / "file.yaml").write_text(yaml.safe_dump(TINY))
    result = run_runner(tmp_path / "file.yaml", tmp_path / "run", ["seed=6"], quiet=True)
    assert result.timesteps == 40
    assert result.settings.seed == 6
    assert load_runner(tmp_path / "run") == result.settings
    rows = plain_rows(result.run_dir)
    assert [row["iteration"] for row in rows] == [10, 20, 30, 40]
    assert rows[-1]["env_steps_total"] == result.env_steps <= 40 * 5
    assert {"p/policy_loss", "q/value_loss", "p/return_mean", "q/exploration"} <= set().union(*rows)
    with RunFolder.open(result.run_dir) as folder:
        evaluation = folder.read_json(EVALUATION)
    assert evaluation["eval/q/env_steps"] == result.metrics["eval/q/env_steps"] > 0
    assert evaluation["eval/p/reward_mean"] == 1
    assert sorted(path.name for path in (result.run_dir / "checkpoints").iterdir()) == ["000020", "000040"]


@pytest.fixture(scope="module")
def stopped_twice(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run, and in `resumed` the same run as the sequential driver resumes it after a kill at timestep 20."""
    folder = tmp_path_factory.mktemp("runs")
    for name in ("whole", "resumed"):
        run_runner(TINY, folder / name, quiet=True)
    rewind_checkpoints(folder / "resumed" / "checkpoints", 20)
    resume_runner(folder / "resumed", quiet=True)
    return folder


@pytest.mark.parametrize("name", sorted(set(DRIVERS) - {"parallel"}))
def test_a_run_that_was_stopped_continues_the_same_however_often_and_by_whatever_driver(
    name: str, stopped_twice: Path, tmp_path: Path
) -> None:
    run_runner({**TINY, "driver": {"timesteps": 40, "name": name}}, tmp_path / "stopped", quiet=True)
    assert same(final_state(stopped_twice / "whole"), final_state(tmp_path / "stopped"))
    rewind_checkpoints(tmp_path / "stopped" / "checkpoints", 20)
    again = resume_runner(tmp_path / "stopped", quiet=True)
    assert again.metrics["eval/q/env_steps"] > 0
    assert same(final_state(stopped_twice / "resumed"), final_state(tmp_path / "stopped"))
    assert plain_rows(stopped_twice / "resumed") == plain_rows(again.run_dir)
    assert plain_rows(stopped_twice / "whole")[:2] == plain_rows(again.run_dir)[:2]


def test_a_run_may_become_longer_where_nothing_falls_over_its_timesteps(tmp_path: Path) -> None:
    data = {**TINY, "learners": [{"name": "p", "algorithm": {"rollouts": 8, "num_epochs": 2}}]}
    run_runner(data, tmp_path / "run", quiet=True)
    before = plain_rows(tmp_path / "run")
    with pytest.raises(UserError, match="got 30, but 40 are done already"):
        resume_runner(tmp_path / "run", ["driver.timesteps=30"], quiet=True)
    again = resume_runner(tmp_path / "run", ["driver.timesteps=60"], quiet=True)
    assert again.timesteps == 60
    rows = plain_rows(again.run_dir)
    assert (rows[:4], [row["iteration"] for row in rows]) == (before, [10, 20, 30, 40, 50, 60])


def test_a_resumed_run_may_write_rows_more_often(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Rows of the interval before are no gaps, and the config keeps its checksum."""
    data = {**TINY, "learners": [{"name": "p", "algorithm": {"rollouts": 8, "num_epochs": 2}}]}
    run_runner(data, tmp_path / "run", quiet=True)
    again = resume_runner(tmp_path / "run", ["driver.timesteps=60", "experiment.write_interval=5"], quiet=True)
    assert [row["iteration"] for row in plain_rows(again.run_dir)] == [10, 20, 30, 40, 45, 50, 55, 60]
    assert "lost" not in capsys.readouterr().err
    text = (again.run_dir / "config.yaml").read_text()
    assert plain_config(text, "config.yaml") != text


def test_a_change_that_cannot_be_made_does_not_stick(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_runner(TINY, tmp_path / "run", quiet=True)
    before = (tmp_path / "run" / "config.yaml").read_text()
    monkeypatch.setattr(runner, "make_driver", refused)
    with pytest.raises(UserError, match="too small"):
        resume_runner(tmp_path / "run", ["driver.name=parallel"], quiet=True)
    assert (tmp_path / "run" / "config.yaml").read_text() == before


def refused(*_: Any, **__: Any) -> Any:
    raise UserError("the cluster is too small")


def test_the_verb_that_resumes_all_runs_resumes_this_one(tmp_path: Path) -> None:
    run_runner(TINY, tmp_path / "run", quiet=True)
    rewind_checkpoints(tmp_path / "run" / "checkpoints", 20)
    resume = ["resume", str(tmp_path / "run")]
    done = CliRunner().invoke(app, [*resume, "--set", "driver.name=step"])
    assert (done.exit_code, "eval/q/return_mean" in done.output) == (0, True), done.output
    assert load_runner(tmp_path / "run").driver.name == "step"
    for arguments, words in (
        (["--iterations", "90"], "start a new run"),
        (["--set", "seed=4"], "can change driver, evaluation, experiment"),
        (["--set", "driver.timesteps=50"], "over which learners.1.algorithm.exploration_fraction falls"),
        (["--set", "driver.nam=step"], "did you mean name"),
    ):
        refused = CliRunner().invoke(app, [*resume, *arguments])
        assert (refused.exit_code, words in refused.output, refused.output.count("\n")) == (2, True, 1), refused.output


def test_one_command_begins_resumes_and_says_that_the_run_is_finished(tmp_path: Path) -> None:
    (tmp_path / "file.yaml").write_text(yaml.safe_dump(TINY))
    again = ["run", str(tmp_path / "file.yaml"), "--run-dir", str(tmp_path / "run"), "--or-resume"]
    said = []
    for kept in (40, 20, 0):
        done = CliRunner().invoke(app, again)
        assert done.exit_code == 0
        said.append(done.stderr)
        assert final_state(tmp_path / "run")["driver"]["timestep"] == 40
        rewind_checkpoints(tmp_path / "run" / "checkpoints", kept)
    assert ["finished, all 40 timesteps" in text for text in said] == [False, True, False]
    restarted = CliRunner().invoke(app, again)
    assert "there is no checkpoint, the run begins again; 40 timesteps are done again" in restarted.stderr
    other = CliRunner().invoke(app, [*again, "--set", "seed=7"])
    assert (other.exit_code, "was begun with another seed: a resumed run can change driver" in other.stderr) == (
        2,
        True,
    )


@pytest.mark.parametrize(
    ("algorithm", "key"),
    [
        ({"name": "ppo", "anneal_lr": True}, "learners.0.algorithm.anneal_lr"),
        ({"name": "dqn"}, "learners.0.algorithm.exploration_fraction"),
        ({"name": "dqn", "exploration_start": 0.1, "exploration_end": 0.1}, None),
        ({"name": "random"}, None),
    ],
)
def test_what_falls_over_all_timesteps_is_named(algorithm: dict[str, Any], key: str | None) -> None:
    short, long = (parse_runner({"learners": [{"algorithm": algorithm}], "driver": {"timesteps": n}}) for n in (10, 20))
    assert falls_over_timesteps(short) == key
    assert (fingerprint_of(short) == fingerprint_of(long)) is (key is None)


def test_drivers_go_on_from_each_others_checkpoints(stopped_twice: Path, tmp_path: Path, ray_session: None) -> None:
    run_runner(TINY, tmp_path / "stopped", quiet=True)
    rewind_checkpoints(tmp_path / "stopped" / "checkpoints", 20)
    parallel = parse_runner({**TINY, "driver": {"timesteps": 40, "name": "parallel"}})
    (tmp_path / "stopped" / "config.yaml").write_text(runner_to_yaml(parallel))
    resume_runner(tmp_path / "stopped", quiet=True)
    assert same(final_state(stopped_twice / "resumed"), final_state(tmp_path / "stopped"))
    assert plain_rows(stopped_twice / "resumed") == plain_rows(tmp_path / "stopped")
