"""Schedulers, searchers and limits of sweeps, each through the real Tuner."""

import json
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nip_ray.config.load import load_config
from nip_ray.errors import TrainingError
from nip_ray.evaluation.verbs.evaluate import evaluate_run
from nip_ray.storage.folder import RunFolder
from nip_ray.sweeps.run import resume_sweep, run_sweep
from nip_ray.sweeps.spec import parse_sweep
from nip_ray.sweeps.summary import TrialRecord
from nip_ray.sweeps.tuning import bounded, tune_config
from tests.runs.small import MESSAGES

pytestmark = pytest.mark.usefixtures("ray_session")

ACCURACY, RETURN = "eval/verifier/accuracy", "train/verifier/return"
LEARNS: dict[str, Any] = {
    **MESSAGES,
    "iterations": 12,
    "scenario": {**MESSAGES["scenario"], "num_symbols": 4, "num_secrets": 4},
    "algorithm": {"num_epochs": 4, "minibatch_size": 128, "lr": 0.03},
    "play": {"num_copies": 64},
    "evaluation": {"interval": 4, "num_transcripts": 0},
    "runtime": {"num_threads": 1, "num_cpus": 1},
}
"""A message game of which a good learning rate makes something in a dozen iterations."""


MEET = """
import os, time
from pathlib import Path
import ray
if ray.is_initialized() and ray.get_runtime_context().get_actor_id():
    folder, trials = Path({folder!r}), Path({trials!r})
    (folder / str(os.getpid())).touch()
    while len(list(folder.iterdir())) < {number}:
        time.sleep(0.01)
    from nip_ray.sweeps.trainable import ExperimentTrainable
    step = ExperimentTrainable.step

    def behind():
        return min(rows.read_bytes().count(b"\\n") for rows in trials.glob("*/metrics.jsonl"))

    def in_step(self):
        result, end = step(self), time.monotonic() + 60
        while behind() < result["iteration"] - 2 and time.monotonic() < end:
            time.sleep(0.01)
        return result

    if step.__name__ != "in_step":
        ExperimentTrainable.step = in_step
"""
"""A plugin that holds a trial back until so many have come, and then until none is more than two iterations behind
it."""


def config(sweep: dict[str, Any], *, lr: Any, **changes: Any) -> dict[str, Any]:
    return {**LEARNS, "algorithm": {**LEARNS["algorithm"], "lr": lr}, "sweep": {"metric": RETURN, **sweep}, **changes}


def folder_of(trial: TrialRecord) -> RunFolder:
    assert trial.run_dir is not None
    return RunFolder.open(trial.run_dir)


def times(trial: TrialRecord) -> tuple[float, float]:
    """When a trial's folder was made, and when it was written into last."""
    assert trial.run_dir is not None
    return (trial.run_dir / "environment.json").stat().st_mtime, (trial.run_dir / "metrics.jsonl").stat().st_mtime


@pytest.mark.slow
def test_asha_stops_poor_trials_and_lets_good_ones_go_on(tmp_path: Path) -> None:
    """One at a time, so that the good one is the one to be compared with."""
    sweep = {
        "max_concurrent": 1,
        "metric": ACCURACY,
        "scheduler": {"name": "asha", "grace_iterations": 4, "reduction_factor": 2},
    }
    good, poor = run_sweep(parse_sweep(config(sweep, lr={"grid": [0.03, 1e-7]})), tmp_path / "asha", quiet=True).trials
    assert (good.status, good.iterations) == ("done", 12)
    assert (poor.status, poor.iterations) == ("stopped", 4)
    assert json.loads((tmp_path / "asha" / "sweep.json").read_text())["statuses"] == {"done": 1, "stopped": 1}
    assert times(poor)[0] >= times(good)[1]  # max_concurrent
    again = resume_sweep(tmp_path / "asha", quiet=True)
    assert [trial.status for trial in again.trials] == ["done", "stopped"]


def test_asha_knows_of_earlier_trials_when_a_sweep_goes_on() -> None:
    sweep = {"scheduler": {"name": "asha", "grace_iterations": 4, "reduction_factor": 2}}
    spec = parse_sweep(config(sweep, lr={"grid": [0.03, 1e-7]}))

    def decisions(known: dict[str, Any]) -> list[str]:
        scheduler: Any = tune_config(spec, known).scheduler
        scheduler.set_search_properties(RETURN, "max")
        scheduler.on_trial_add(None, new := SimpleNamespace(trial_id="00002"))
        return [
            scheduler.on_trial_result(None, new, {"iteration": at, RETURN: figure})
            for at, figure in ((3, 0.0), (4, 0.55), (8, 0.8))
        ]

    assert decisions({}) == ["CONTINUE", "CONTINUE", "CONTINUE"]
    assert decisions({"00000": [(3, 0.1), (4, 0.5), (8, 0.9)], "00001": [(4, 0.7)]}) == ["CONTINUE", "STOP", "STOP"]


def test_processes_are_shared_where_nothing_stays_behind_in_them(tmp_path: Path) -> None:
    files = [tmp_path / "a.py", tmp_path / "b.py"]
    for file in files:
        file.write_text("")

    def shares(sweep: dict[str, Any], **changes: Any) -> bool:
        return bool(tune_config(parse_sweep(config(sweep, lr={"uniform": [0.01, 0.1]}, **changes)), {}).reuse_actors)

    assert shares({"seeds": [0, 1]})
    assert not shares({"num_samples": 2, "scheduler": {"name": "pbt", "interval": 4}})
    assert not shares({}, plugins={"grid": [[str(file)] for file in files]})


@pytest.mark.slow
def test_members_of_a_population_go_on_from_better_ones_with_changed_settings(tmp_path: Path) -> None:
    sweep = {
        "num_samples": 2,
        "scheduler": {"name": "pbt", "interval": 3, "quantile": 0.5, "resample_probability": 0.0},
    }
    (tmp_path / "here").mkdir()
    (tmp_path / "meet.py").write_text(
        MEET.format(folder=str(tmp_path / "here"), trials=str(tmp_path / "pbt" / "trials"), number=2)
    )
    spaces = {
        "lr": {"loguniform": [1e-3, 3e-2]},
        "num_epochs": {"choice": [1, 2, 4]},
        "clip_epsilon": {"uniform": [0.1, 0.3]},
    }
    data = config(sweep, lr=None, iterations=24, plugins=[str(tmp_path / "meet.py")])
    data["algorithm"] |= spaces
    trials = run_sweep(parse_sweep(data), tmp_path / "pbt", quiet=True).trials
    assert [(trial.status, trial.iterations) for trial in trials] == [("done", 24), ("done", 24)]
    moved = [
        (trial, step)
        for trial in trials
        if (folder_of(trial).path / "lineage.json").is_file()
        for step in steps_of(trial)
    ]
    assert moved
    for trial, step in moved:
        assert step["from"] == next(other.trial_id for other in trials if other is not trial)
        assert step["iteration"] % 3 == 0
    for trial in trials:
        assert [row["iteration"] for row in folder_of(trial).metrics()] == list(range(1, 25))
        assert trial.run_dir is not None
        made = load_config(trial.run_dir / "config.yaml").model_dump(mode="json")["algorithm"]
        assert made["lr"] == trial.values["algorithm.lr"]
        assert made["num_epochs"] == trial.values["algorithm.num_epochs"]
        assert evaluate_run(trial.run_dir)["iteration"] == 24
    values = [step["values"] for _, step in moved] + [trial.values for trial in trials]
    assert all(1e-3 <= found["algorithm.lr"] <= 3e-2 for found in values)
    assert all(found["algorithm.num_epochs"] in (1, 2, 4) for found in values)
    assert all(0.1 <= found["algorithm.clip_epsilon"] <= 0.3 for found in values)


def steps_of(trial: TrialRecord) -> list[dict[str, Any]]:
    return folder_of(trial).read_json("lineage.json")["steps"]


def test_changed_settings_are_put_back_into_their_spaces() -> None:
    """Else a setting that grew for a while, unseen, beyond its end would take as long to come back."""
    sweep = {"num_samples": 2, "scheduler": {"name": "pbt", "interval": 4}}
    spec = parse_sweep(config(sweep, lr={"loguniform": [1e-3, 3e-2]}))
    told = {"values": {"algorithm.lr": 0.05}, "run_root": "x"}
    assert bounded(spec.spaces)(told) == {"values": {"algorithm.lr": 0.03}, "run_root": "x"}


@pytest.mark.slow
def test_optuna_tries_each_of_its_settings_with_every_seed(tmp_path: Path) -> None:
    """One of the settings cannot work, which optuna has to bear."""
    data = config(
        {"num_samples": 2, "seeds": [3, 4], "search": {"name": "optuna"}}, lr={"choice": [0.02, 1e30]}, iterations=2
    )
    data["evaluation"]["interval"] = 0
    result = run_sweep(parse_sweep({**data, "seed": 0}), tmp_path / "optuna", quiet=True)
    assert [trial.seed for trial in result.trials] == [3, 4, 3, 4]
    assert [len(setting.trials) for setting in result.summary.settings] in ([2, 2], [4])
    values = [trial.values["algorithm.lr"] for trial in result.trials]
    assert values[0] == values[1]
    assert values[2] == values[3]
    assert [trial.status for trial in result.trials] == ["done" if lr == 0.02 else "failed" for lr in values]
    again = resume_sweep(tmp_path / "optuna", quiet=True)
    assert [(trial.trial_id, trial.values) for trial in again.trials] == [
        (trial.trial_id, trial.values) for trial in result.trials
    ]


@pytest.mark.slow
@pytest.mark.parametrize("in_thread", [False, True])
def test_a_sweep_that_is_out_of_time_ends_and_can_go_on(tmp_path: Path, in_thread: bool) -> None:
    data = config({"seeds": [3], "time_budget_s": 1.0}, lr=0.02, iterations=6, checkpoint={"interval": 1})
    began, interrupt = time.monotonic(), signal.getsignal(signal.SIGINT)
    if in_thread:
        with ThreadPoolExecutor(1) as pool:
            late = pool.submit(run_sweep, parse_sweep(data), tmp_path / "late", quiet=True).result()
    else:
        late = run_sweep(parse_sweep(data), tmp_path / "late", quiet=True)
    assert signal.getsignal(signal.SIGINT) is interrupt
    assert time.monotonic() - began < 60
    assert not late.interrupted
    assert [trial.status for trial in late.trials] == ["unfinished"]
    more_time(tmp_path / "late")
    assert [trial.status for trial in resume_sweep(tmp_path / "late", quiet=True).trials] == ["done"]


def more_time(sweep: Path) -> None:
    text = (sweep / "sweep.yaml").read_text()
    assert "time_budget_s: 1.0" in text
    (sweep / "sweep.yaml").write_text(text.replace("time_budget_s: 1.0", "time_budget_s: 300.0"))


@pytest.mark.slow
def test_one_failure_ends_a_sweep_that_is_to_fail_fast(tmp_path: Path) -> None:
    data = config({"fail_fast": True, "max_concurrent": 1}, lr={"grid": [1e30, 0.02]}, iterations=3)
    with pytest.raises(
        TrainingError, match=r"trial 00000 failed \(iteration .*\), which ends the sweep .*--resume"
    ) as raised:
        run_sweep(parse_sweep(data), tmp_path / "fast", quiet=True)
    assert "\n" not in str(raised.value)
    assert not (tmp_path / "fast" / "trials" / "00001" / "report.html").exists()
    again = resume_sweep(tmp_path / "fast", quiet=True)
    assert [trial.status for trial in again.trials] == ["failed", "done"]


@pytest.mark.slow
def test_optuna_goes_on_with_seeds_that_are_not_done(tmp_path: Path) -> None:
    sweep = {"num_samples": 2, "seeds": [3, 4], "search": {"name": "optuna"}, "max_concurrent": 1, "time_budget_s": 1.0}
    data = config(sweep, lr={"loguniform": [1e-3, 1e-1]}, iterations=4)
    late = run_sweep(parse_sweep(data), tmp_path / "optuna", quiet=True)
    assert len(late.trials) < 4
    more_time(tmp_path / "optuna")
    trials = resume_sweep(tmp_path / "optuna", quiet=True).trials
    assert [(trial.seed, trial.status) for trial in trials] == [(3, "done"), (4, "done"), (3, "done"), (4, "done")]
    assert trials[0].values == trials[1].values == late.trials[0].values
    assert trials[2].values == trials[3].values != trials[0].values


@pytest.mark.slow
def test_a_population_goes_on_in_step(tmp_path: Path) -> None:
    sweep = {"num_samples": 2, "scheduler": {"name": "pbt", "interval": 5, "quantile": 0.5}, "time_budget_s": 1.0}
    (tmp_path / "here").mkdir()
    (tmp_path / "meet.py").write_text(
        MEET.format(folder=str(tmp_path / "here"), trials=str(tmp_path / "pbt" / "trials"), number=2)
    )
    plugins = [str(tmp_path / "meet.py")]
    data = config(sweep, lr={"loguniform": [1e-3, 3e-2]}, iterations=40, plugins=plugins, checkpoint={"interval": 3})
    run_sweep(parse_sweep(data), tmp_path / "pbt", quiet=True)
    more_time(tmp_path / "pbt")
    trials = resume_sweep(tmp_path / "pbt", quiet=True).trials
    assert [trial.status for trial in trials] == ["done", "done"]
    assert all([row["iteration"] for row in folder_of(trial).metrics()] == list(range(1, 41)) for trial in trials)
    moved = [step for trial in trials if (folder_of(trial).path / "lineage.json").is_file() for step in steps_of(trial)]
    assert moved
    assert all(step["iteration"] % 5 == 0 for step in moved)
