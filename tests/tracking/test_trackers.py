"""Trackers together, and what TensorBoard and MLflow show of a run, read by their own readers."""

import importlib.util
import json
import math
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from nip_ray import tracking
from nip_ray.errors import UserError
from nip_ray.settings.tracking import MlflowSettings, TensorboardSettings, TrackingSettings, WandbSettings
from nip_ray.tracking import RunInfo, TrackerKind, check_trackers, open_trackers
from nip_ray.tracking.base import flat, numbers, values
from tests.tracking.tracked import CONFIG, ROOT, files_news, row, run_folder, track

TENSORBOARD = {"tensorboard": {"enabled": True}}
NOTHING = TrackingSettings(ray_metrics=False)


def test_values_are_plain_and_leave_out_what_has_no_value() -> None:
    given = {"iteration": 3, "a": torch.tensor(0.5), "b": None, "c": math.nan, "d": True, "e": "text", "f": math.inf}
    assert values(given) == {"iteration": 3, "a": 0.5, "d": 1, "e": "text"}
    assert numbers(given) == {"iteration": 3, "a": 0.5, "d": 1}


def test_keys_of_a_config_are_told_from_its_root() -> None:
    given = {"a": {"b": {"c": 1, "d": [1, 2]}, "e": None}, "f": "x"}
    assert flat(given) == {"a.b.c": 1, "a.b.d": "[1, 2]", "a.e": None, "f": "x"}


class Recorder:
    """Remembers what it was told; fails where it is told to."""

    def __init__(self, fails_at: str = "", error: Exception | None = None) -> None:
        self.told: list[str] = []
        self.fails_at, self.error = fails_at, error or RuntimeError("disk full")

    def _hear(self, news: str) -> None:
        self.told.append(news)
        if news == self.fails_at:
            raise self.error

    def log(self, row: Mapping[str, Any]) -> None:
        self._hear(f"log {row['iteration']}")

    def checkpoint(self, folder: Path, iteration: int) -> None:
        self._hear(f"checkpoint {iteration}")

    def transcripts(self, file: Path, iteration: int) -> None:
        self._hear(f"transcripts {iteration}")

    def finish(self, failed: bool) -> None:
        self._hear(f"finish {failed}")


Opened = Callable[[dict[str, Recorder]], tracking.Tracker]


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Opened:
    """Opens recorders as if they were the trackers that there are."""

    def made(recorders: dict[str, Recorder]) -> tracking.Tracker:
        def opener(recorder: Recorder) -> Callable[..., Recorder]:
            def start(settings: TrackingSettings, run: RunInfo) -> Recorder:
                recorder._hear("open")
                return recorder

            return start

        kinds = {
            name: TrackerKind(lambda s: True, lambda s: None, opener(recorder)) for name, recorder in recorders.items()
        }
        monkeypatch.setattr(tracking, "TRACKERS", kinds)
        return open_trackers(NOTHING, RunInfo(tmp_path, "a", "b", {}))

    return made


def tell(tracker: tracking.Tracker) -> None:
    tracker.log({"iteration": 1})
    tracker.checkpoint(Path("c"), 1)
    tracker.transcripts(Path("t"), 1)
    tracker.log({"iteration": 2})
    tracker.finish(False)


ALL = ["open", "log 1", "checkpoint 1", "transcripts 1", "log 2", "finish False"]


@pytest.mark.parametrize("where", ALL)
def test_a_tracker_that_fails_costs_one_warning_and_is_left_alone(
    opened: Opened, where: str, capsys: pytest.CaptureFixture[str]
) -> None:
    bad, good = Recorder(where), Recorder()
    tell(opened({"bad": bad, "good": good}))
    assert bad.told == ALL[: ALL.index(where) + 1]
    assert good.told == ALL
    warned = capsys.readouterr().err
    assert (
        warned
        == "warning: tracker bad failed and is left alone from here on (RuntimeError: disk full); the run continues\n"
    )


def test_a_warning_is_one_line_without_secrets(
    opened: Opened, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SOME_API_KEY", "canary-of-a-key-31")
    tell(opened({"bad": Recorder("log 1", ValueError("no entry with canary-of-a-key-31\nat line 3\n"))}))
    warned = capsys.readouterr().err
    assert warned.count("\n") == 1
    assert "canary-of-a-key-31" not in warned
    assert "ValueError: no entry with [secret]" in warned


@pytest.mark.parametrize(
    ("missing", "settings", "said"),
    [
        (
            "tensorboardX",
            {"tensorboard": TensorboardSettings(enabled=True)},
            r"tracking\.tensorboard\.enabled .*pip install tensorboardX",
        ),
        (
            "mlflow",
            {"mlflow": MlflowSettings(enabled=True)},
            r"tracking\.mlflow\.enabled .*pip install 'nip_ray\[mlflow\]'",
        ),
        ("sqlalchemy", {"mlflow": MlflowSettings(enabled=True)}, r"there is no sqlalchemy"),
        (
            "wandb",
            {"wandb": WandbSettings(enabled=True, mode="offline")},
            r"tracking\.wandb\.enabled .*'nip_ray\[tracking\]'",
        ),
    ],
)
def test_a_missing_library_is_a_users_mistake(
    missing: str, settings: dict[str, Any], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_trackers(TrackingSettings(**settings))
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == missing else found(name))
    with pytest.raises(UserError, match=said):
        check_trackers(TrackingSettings(**settings))
    check_trackers(TrackingSettings())


def test_trackers_load_no_library_before_they_are_asked_for() -> None:
    code = """
import sys
import nip_ray.tracking.ray_metrics, nip_ray.tracking
from nip_ray.settings.tracking import TrackingSettings
nip_ray.tracking.check_trackers(TrackingSettings())
print([name for name in ("wandb", "mlflow", "tensorboardX", "ray", "torch") if name in sys.modules])
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True, cwd=ROOT
    )
    assert done.stdout.strip() == "[]"


def curves(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """What TensorBoard shows: tag -> (step, value)."""
    read = EventAccumulator(str(folder / "events"))
    read.Reload()
    return {tag: [(event.step, event.value) for event in read.Scalars(tag)] for tag in read.Tags()["scalars"]}


def test_tensorboard_shows_every_number_by_its_own_key_and_iteration(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "run")
    done = track(folder, TENSORBOARD, [row(1), row(2), *files_news(folder), ["finish", False]])
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert curves(folder) == {
        "train/verifier/accuracy": [(1, 0.125), (2, 0.25)],
        "eval/verifier/accuracy/wl_score=-1": [(1, 0.5), (2, 0.5)],
        "time/iteration_s": [(1, 0.25), (2, 0.25)],
    }


@pytest.mark.crash
def test_tensorboard_shows_a_killed_and_resumed_run_without_doubled_steps(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "run")
    first = [
        row(1),
        row(2),
        *files_news(folder),
        row(3),
        row(4),
        ["checkpoint", str(folder / "checkpoints" / "000002"), 4],
        row(5),
        ["kill"],
    ]
    assert track(folder, TENSORBOARD, first).returncode == -9
    for resumed_from, last in ((2, 4), (3, 5)):  # the second perhaps within the same second
        again = [*map(row, range(resumed_from + 1, last + 1)), ["finish", True]]
        assert track(folder, TENSORBOARD, again, resumed_from=resumed_from).returncode == 0
    assert curves(folder)["train/verifier/accuracy"] == [(step, step / 8) for step in range(1, 6)]


def mlflow_settings(store: Path) -> dict[str, Any]:
    return {"mlflow": {"enabled": True, "tracking_uri": str(store), "experiment": "proofs"}}


def mlflow_says(store: Path) -> list[dict[str, Any]]:
    """All runs of the experiment, as MLflow's client reads them."""
    code = f"""
import json
from nip_ray.tracking.mlflow_runs import store
from mlflow.tracking import MlflowClient
client = MlflowClient(store({str(store)!r})[0])
experiment = client.get_experiment_by_name("proofs")
def files(run, folder=None):
    for entry in client.list_artifacts(run, folder):
        yield from files(run, entry.path) if entry.is_dir else [entry.path]
def history(run, key):
    return [[m.step, m.value] for m in client.get_metric_history(run, key)]
print(json.dumps([{{
    "id": run.info.run_id, "name": run.info.run_name, "status": run.info.status,
    "params": run.data.params, "tags": run.data.tags,
    "metrics": {{key: history(run.info.run_id, key) for key in run.data.metrics}},
    "files": sorted(files(run.info.run_id)), "where": run.info.artifact_uri,
}} for run in client.search_runs([experiment.experiment_id])]))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=False, cwd=store.parent
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
def test_mlflow_has_figures_with_steps_parameters_tags_and_files(tmp_path: Path) -> None:
    folder, store = run_folder(tmp_path / "run"), tmp_path / "store"
    (tmp_path / "cwd").mkdir()
    done = track(
        folder, mlflow_settings(store), [row(1), row(2), *files_news(folder), ["finish", True]], cwd=tmp_path / "cwd"
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    (run,) = mlflow_says(store)
    assert run["metrics"] == {
        "iteration": [[1, 1.0], [2, 2.0]],
        "train/verifier/accuracy": [[1, 0.125], [2, 0.25]],
        "eval/verifier/accuracy/wl_score:-1": [[1, 0.5], [2, 0.5]],
        "time/iteration_s": [[1, 0.25], [2, 0.25]],
    }
    assert run["params"] == {
        "name": "proofs",
        "seed": "3",
        "algorithm.lr": "0.01",
        "algorithm.betas": "[0.9, 0.99]",
        "plugins": "[]",
    }
    assert (run["name"], run["status"]) == ("proofs", "FAILED")
    assert (run["tags"]["nip_ray.run_id"], run["tags"]["nip_ray.group"]) == ("proofs-a1b2", "sweep-7")
    assert run["files"] == [
        "checkpoints/000002/manifest.json",
        "checkpoints/000002/tensors/a.bin",
        "config.yaml",
        "transcripts/000002.jsonl",
    ]
    assert run["where"].startswith((store / "artifacts").as_uri())
    assert not any((tmp_path / "cwd").iterdir())


@pytest.mark.slow
def test_mlflow_goes_on_with_the_same_run_and_has_every_step_once(tmp_path: Path) -> None:
    folder, store = run_folder(tmp_path / "run"), tmp_path / "store"
    begun = track(folder, mlflow_settings(store), [*map(row, range(4)), ["finish", True]], resumed_from=-1)
    assert begun.returncode == 0, begun.stderr
    done = track(folder, mlflow_settings(store), [row(3), row(4), ["finish", False]], resumed_from=2)
    assert done.returncode == 0, done.stderr
    (run,) = mlflow_says(store)
    assert run["status"] == "FINISHED"
    assert run["metrics"]["train/verifier/accuracy"] == [[step, step / 8] for step in range(5)]
    assert run["params"] == {
        key: str(json.dumps(value) if isinstance(value, list) else value) for key, value in flat(CONFIG).items()
    }


@pytest.mark.slow
def test_an_mlflow_server_that_is_not_there_costs_one_warning(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "run")
    settings = {"mlflow": {"enabled": True, "tracking_uri": "http://127.0.0.1:9"}, **TENSORBOARD}
    done = track(
        folder, settings, [row(1), row(2), ["finish", False]], environment={"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0"}
    )
    assert done.returncode == 0
    warned = [line for line in done.stderr.splitlines() if line.startswith("warning: tracker ")]
    assert len(warned) == 1
    assert "mlflow failed" in warned[0]
    assert [step for step, _ in curves(folder)["time/iteration_s"]] == [1, 2]


def test_a_password_in_the_address_of_mlflow_is_refused_without_repeating_it() -> None:
    settings = TrackingSettings(mlflow=MlflowSettings(enabled=True, tracking_uri="https://me:canary-31@host.example/"))
    with pytest.raises(UserError, match="MLFLOW_TRACKING_PASSWORD") as caught:
        check_trackers(settings)
    assert "canary-31" not in str(caught.value)
