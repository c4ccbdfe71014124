"""A run that ends early: when, with what, and how it continues."""

from pathlib import Path
from typing import Any

import pytest

from nip_ray.config.rules import check
from nip_ray.errors import TrainingError, UserError
from nip_ray.runs.experiment import resume_experiment, run_experiment
from nip_ray.runs.stopping import stopped_at
from nip_ray.settings.experiment import StopSettings
from nip_ray.storage.folder import RunFolder
from nip_ray.storage.listing import look_at
from tests.runs.small import MESSAGES, small, untimed

KEY = "eval/verifier/accuracy"
BASE = ("iterations=8", "evaluation.interval=2", "checkpoint.interval=4")


def rows(*values: float | None) -> list[dict[str, Any]]:
    """An evaluation in every second iteration."""
    found: list[dict[str, Any]] = []
    for number, value in enumerate(values, 1):
        found += [{"iteration": 2 * number - 1, "train/verifier/accuracy": 1.0}, {"iteration": 2 * number, KEY: value}]
    return found


@pytest.mark.parametrize(
    ("settings", "values", "expected"),
    [
        ({"until": 0.9}, (0.5, 0.9, 0.2), 4),
        ({"until": 0.9}, (0.5, 0.89), None),
        ({"until": 0.1, "mode": "min"}, (0.5, 0.1), 4),
        ({"patience": 2}, (0.5, 0.4, 0.5), 6),
        ({"patience": 2}, (0.5, 0.4, 0.6, 0.6), None),
        ({"patience": 1, "mode": "min"}, (0.5, 0.4, 0.6), 6),
        ({"patience": 2}, (None, None, 0.1), 4),
        ({"until": 0.9, "patience": 5}, (), None),
    ],
)
def test_when_a_run_stops(settings: dict[str, Any], values: tuple[float | None, ...], expected: int | None) -> None:
    assert stopped_at(rows(*values), StopSettings(**settings)) == expected


def test_without_the_setting_no_row_stops_a_run() -> None:
    assert stopped_at(rows(1.0), None) is None


def test_a_metric_that_is_not_logged_is_named() -> None:
    with pytest.raises(TrainingError, match=f"did you mean {KEY}"):
        stopped_at(rows(1.0), StopSettings(metric="eval/verifier/acuracy", until=1))


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["stop={}"], "until and patience are both null"),
        (["stop={until: 1, metric: train/verifier/accuracy}"], "expected eval/"),
        (["stop={until: 1}", "evaluation.greedy=false"], r"evaluation\.greedy is false"),
        (["stop={until: 1, metric: eval_sampled/verifier/accuracy}", "evaluation.sampled=false"], "sampled is false"),
        (["stop={until: 1}", "evaluation.interval=0"], "would decide nothing"),
        (["stop={patience: 0}"], "stop.patience"),
    ],
)
def test_settings_that_cannot_work_are_refused(overrides: list[str], said: str) -> None:
    with pytest.raises(UserError, match=said):
        check(small(*BASE, *overrides, base=MESSAGES))


def test_a_run_ends_early_and_continues_as_one_that_never_did(tmp_path: Path) -> None:
    whole = run_experiment(small(*BASE, base=MESSAGES), tmp_path / "whole", quiet=True)
    ended = run_experiment(small(*BASE, "stop={until: 0}", base=MESSAGES), tmp_path / "early", quiet=True)
    folder = RunFolder.open(tmp_path / "early")
    assert (whole.iterations, ended.iterations) == (8, 2)
    assert [row["iteration"] for row in folder.metrics()] == [1, 2]
    assert folder.read_json("evaluation.json")["iteration"] == 2
    assert (tmp_path / "early" / "report.html").is_file()
    listed = look_at(tmp_path / "early", tmp_path)
    assert (listed.state, listed.progress) == ("ended", "2/8")
    assert resume_experiment(tmp_path / "early", quiet=True).iterations == 2
    assert resume_experiment(tmp_path / "early", settings=["stop=null"], quiet=True).iterations == 8
    rows_of = [[untimed(row) for row in RunFolder.open(tmp_path / name).metrics()] for name in ("whole", "early")]
    assert rows_of[0] == rows_of[1]


def test_a_misnamed_metric_loses_no_iteration(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    changes = (*BASE, "stop={metric: eval/verifier/acuracy, until: 0}")
    with pytest.raises(TrainingError, match=f"did you mean {KEY}"):
        run_experiment(small(*changes, base=MESSAGES), tmp_path / "run", quiet=True)
    assert [path.name for path in (tmp_path / "run" / "checkpoints").iterdir()] == ["000002"]
    resume_experiment(tmp_path / "run", settings=[f"stop.metric={KEY}"], quiet=True)
    assert resume_experiment(tmp_path / "run", iterations=12, quiet=True).iterations == 2
    assert "--set stop=null" in capsys.readouterr().err
