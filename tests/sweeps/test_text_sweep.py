"""Sweeps of language models, through Ray Tune: with nobody, a provider on the loopback, and the local model behind the
agents."""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from nip_ray.config.experiment import TextExperimentConfig
from nip_ray.config.load import load_config
from nip_ray.runs.experiment import run_experiment
from nip_ray.storage.folder import RunFolder
from nip_ray.sweeps.run import SweepResult, resume_sweep, run_sweep
from nip_ray.sweeps.spec import parse_sweep
from nip_ray.text.dialogues.records import read_calls
from nip_ray.text.parts import load_state
from tests.text.cooperation import PRICES, config, roles
from tests.text.provider import Provider, provider_thread

OPTIONS: dict[str, Any] = {"situation": "tests.text.cooperation:situation", "prices": PRICES}
ACCURACY = "eval_sampled/verifier/accuracy"
ALONE = {"provider": "nobody", "model": "none"}

pytestmark = pytest.mark.usefixtures("ray_session")

MEET = """
import os, time
from pathlib import Path
folder = Path({folder!r})
(folder / str(os.getpid())).touch()
while len(list(folder.iterdir())) < {number}:
    time.sleep(0.01)
"""
"""A plugin that holds a trial back until so many have come."""

DIE = """
import os, signal, threading, time
from pathlib import Path
marker, trials = Path({marker!r}), Path({trials!r})
def wait_and_die():
    while not any(path.read_text().count('"') for path in trials.glob("*/jobs.jsonl")):
        time.sleep(0.005)
    marker.touch()
    os.kill(os.getpid(), signal.SIGKILL)
if not marker.exists():
    threading.Thread(target=wait_and_die, daemon=True).start()
"""
"""A plugin that ends the first process of a trial as soon as a job is in its journal."""


def nobody(folder: Path, sweep: dict[str, Any], **changes: Any) -> dict[str, Any]:
    rule = {
        "name": "expert_iteration",
        "rollouts_per_iteration": 12,
        "num_test_items": 6,
        "fine_tuning": {"min_examples": 1},
    }
    made = config(folder, rule, iterations=2, runtime={"num_cpus": 0.5})
    made["scenario"]["agents"] = {"_default": dict(ALONE)}
    made["providers"] = {"nobody": {"name": "dummy"}}
    return {**made, "sweep": {"metric": ACCURACY, **sweep}, **changes}


def hosted(folder: Path, provider: Provider, sweep: dict[str, Any], **changes: Any) -> dict[str, Any]:
    rule = {"name": "expert_iteration", "rollouts_per_iteration": 12, "fine_tuning": {"min_examples": 1}}
    made = config(folder, rule, iterations=2, runtime={"num_cpus": 0.5})
    made["providers"]["tables"] |= {"base_url": provider.base_url, "api_key_variable": "NIP_PROVIDER_KEY"}
    return {**made, "sweep": {"metric": ACCURACY, **sweep}, **changes}


def plugin(place: Path, code: str, **values: Any) -> list[str]:
    path = place / "plugin.py"
    path.write_text(code.format(**values))
    return [str(path)]


def swept(tmp_path: Path, data: dict[str, Any]) -> SweepResult:
    return run_sweep(parse_sweep(data), tmp_path / "sweep")


def rollouts(run_dir: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in sorted((run_dir / "rollouts").iterdir())}


def test_a_sweep_runs_every_setting_as_a_single_run_would(tmp_path: Path) -> None:
    data = nobody(tmp_path, {"seeds": [3, 4], "iterations_per_report": 2, "max_concurrent": 2})
    data["scenario"]["agents"]["_default"]["max_invalid_replies"] = {"grid": [1, 3]}
    found = swept(tmp_path, data)
    assert [trial.status for trial in found.trials] == ["done"] * 4
    assert all(trial.run_dir == found.folder / "trials" / trial.trial_id for trial in found.trials)
    assert all(trial.iterations == 2 and len(trial.curve) == 2 for trial in found.trials)
    assert {trial.seed for trial in found.trials} == {3, 4}
    for trial in found.trials:
        assert trial.run_dir is not None
        dumped = load_config(trial.run_dir / "config.yaml").model_dump(mode="json")
        assert (
            dumped["scenario"]["agents"]["_default"]["max_invalid_replies"]
            == trial.values["scenario.agents._default.max_invalid_replies"]
        )
    first = found.trials[0]
    assert first.run_dir is not None
    made = load_config(first.run_dir / "config.yaml")
    assert isinstance(made, TextExperimentConfig)
    alone = run_experiment(made, tmp_path / "alone", quiet=True)
    assert rollouts(alone.run_dir) == rollouts(first.run_dir)
    assert first.metrics[ACCURACY] == alone.metrics[ACCURACY]
    assert (found.folder / "best" / "state.json").is_file()
    assert "sweep.html" in {path.name for path in found.folder.iterdir()}


@pytest.mark.slow
def test_asha_stops_a_trial_before_its_next_models_are_paid_for(tmp_path: Path) -> None:
    sweep = {
        "metric": "learn/verifier/examples",
        "max_concurrent": 1,
        "scheduler": {"name": "asha", "grace_iterations": 1},
    }
    data = nobody(tmp_path, {**sweep, "scheduler": {**sweep["scheduler"], "reduction_factor": 2}})
    data["algorithm"]["rollouts_per_iteration"] = {"grid": [20, 2]}
    better, worse = swept(tmp_path, data).trials
    assert (better.status, better.iterations) == ("done", 2)
    assert (worse.status, worse.iterations) == ("stopped", 1)
    assert worse.run_dir is not None
    with RunFolder.open(worse.run_dir) as folder:
        state = load_state(folder)
    assert state.stage == "create_jobs"
    assert (worse.run_dir / "jobs.jsonl").read_bytes() == b""


@contextmanager
def watched(provider: Provider) -> Iterator[list[float]]:
    """When calls were billed, as long as this holds."""
    times: list[float] = []
    over = threading.Event()

    def look() -> None:
        last = False
        while not last:
            last = over.wait(0.05)
            times.extend([time.monotonic()] * (len(provider.ledger("chat")) - len(times)))

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield times
    finally:
        over.set()
        thread.join()


@pytest.mark.slow
@pytest.mark.parametrize("num_talkers", [0, 1])
def test_trials_share_the_limits_of_a_key(tmp_path: Path, num_talkers: int) -> None:
    """Both begin together, each could alone use up the limit: 10 calls a second, after one burst of 10."""
    (tmp_path / "here").mkdir()
    meet = plugin(tmp_path, MEET, folder=str(tmp_path / "here"), number=2)
    with provider_thread(tmp_path, roles=roles(), **OPTIONS) as provider, watched(provider) as times:
        data = hosted(
            tmp_path, provider, {"metric": "train/verifier/accuracy", "seeds": [0, 1]}, iterations=1, plugins=meet
        )
        data["algorithm"] |= {"rollouts_per_iteration": 20, "test_scheme": "none"}
        data["providers"]["tables"]["requests_per_minute"] = 600
        data["talk"] = {"num_talkers": num_talkers, "num_cpus_per_talker": 0.5}
        found = swept(tmp_path, data)
    assert [trial.error for trial in found.trials] == [None, None]
    assert len(times) == 80, "two calls a dialogue, none twice"
    assert times[-1] - times[0] > 5, (
        "7 s at least by the limit, less what a busy machine may be late with the first; 3 s if each had its own"
    )


@pytest.mark.slow
def test_limits_outlive_the_trial_that_made_their_actor(tmp_path: Path) -> None:
    """The short trial ends while the long one calls, which is not broken off by that, to be started again."""
    (tmp_path / "here").mkdir()
    meet = plugin(tmp_path, MEET, folder=str(tmp_path / "here"), number=1)
    with provider_thread(tmp_path, roles=roles(), **OPTIONS) as provider, watched(provider) as times:
        data = hosted(tmp_path, provider, {"metric": "train/verifier/accuracy"}, iterations=1, plugins=meet)
        data["algorithm"] |= {"rollouts_per_iteration": {"grid": [2, 30]}, "test_scheme": "none"}
        data["providers"]["tables"]["requests_per_minute"] = 600
        found = swept(tmp_path, data)
    assert [trial.status for trial in found.trials] == ["done", "done"]
    assert len(list((tmp_path / "here").iterdir())) == 2, "one process for each trial"
    assert len(times) == 64
    assert times[-1] - times[0] > 3, "4.4 s at least, though a new actor has a burst of its own"


@pytest.mark.crash
def test_a_trial_that_is_killed_while_jobs_run_makes_none_twice(tmp_path: Path) -> None:
    marker = tmp_path / "killed"
    die = plugin(tmp_path, DIE, marker=str(marker), trials=str(tmp_path / "sweep" / "trials"))
    with provider_thread(tmp_path, roles=roles(), job_s=0.5, honours_job_keys=True, **OPTIONS) as provider:
        (trial,) = swept(tmp_path, hosted(tmp_path, provider, {}, plugins=die)).trials
        assert marker.exists()
        assert (trial.status, trial.iterations) == ("done", 2)
        assert trial.run_dir is not None
        keys = [job["body"]["metadata"]["nip_key"] for job in provider.jobs()]
        assert len(keys) == len(set(keys)) == 2
        cost = json.loads((trial.run_dir / "cost.json").read_text())
        assert round(cost["usd"] * 1e12) == sum(row["pusd"] for row in provider.ledger())
        answered = {record.key for record in read_calls(trial.run_dir) if record.reply is not None}
        assert len(answered) == len(provider.ledger("chat"))
    assert resume_sweep(tmp_path / "sweep", quiet=True).trials[0].metrics == trial.metrics, (
        "a finished trial stays as it is"
    )
