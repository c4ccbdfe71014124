"""What is broken fails loudly and soon, with its own message; what is lost is recreated so often as the settings say,
and no more."""

import time
from pathlib import Path
from typing import Any

import pytest

from nip_ray.config.load import config_from_dict
from nip_ray.errors import TrainingError
from nip_ray.runs.experiment import run_experiment
from nip_ray.scenarios.registry import SCENARIOS
from nip_ray.sweeps.run import run_sweep
from nip_ray.sweeps.spec import parse_sweep
from tests.chaos.broken import (
    DIES,
    HANGS,
    HANGS_ONCE,
    LEARNER,
    RAISES,
    RUNNER,
    STOPS_HALF_A_MINUTE,
    STOPS_ONCE,
    TRIAL,
    write_plugin,
)
from tests.chaos.driver import config, figures, weights

SOON_S = 150.0
"""More than any of these takes on a busy machine; what is retried in vain takes minutes to hours."""


@pytest.fixture(autouse=True)
def _plain_games_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    """The plugins change this process's table of scenarios, too."""
    monkeypatch.setitem(SCENARIOS, "message_game", SCENARIOS["message_game"])


def run(folder: Path, workers: tuple[int, int], plugin: Path | None = None, **changes: Any) -> float:
    """Run the small experiment with so many runners and learners in `folder`/run; returns the seconds that it took."""
    began = time.monotonic()
    plugins = {} if plugin is None else {"plugins": [str(plugin)]}
    settings = {"iterations": 4, **plugins, **changes}
    try:
        run_experiment(config_from_dict(config(*workers, **settings)), folder / "run", quiet=True)
    finally:
        seconds = time.monotonic() - began
        print(f"{seconds:.1f} s")
    return seconds


def refused(folder: Path, workers: tuple[int, int], plugin: Path | None = None, **changes: Any) -> str:
    """The message with which it ends, soon."""
    began = time.monotonic()
    with pytest.raises(TrainingError) as raised:
        run(folder, workers, plugin, **changes)
    assert time.monotonic() - began < SOON_S
    print(raised.value)
    return str(raised.value)


def limits(**changes: Any) -> dict[str, Any]:
    """Limits of fault tolerance that are reached soon."""
    return {"restart_delay_s": 0.0, "sample_timeout_s": 60.0, **changes}


@pytest.mark.parametrize("moment", [pytest.param(1, marks=pytest.mark.crash), 3])
def test_an_error_in_an_env_runner_ends_the_run_with_its_message(
    ray_session: None, tmp_path: Path, moment: int
) -> None:
    plugin, struck = write_plugin(tmp_path, RUNNER, moment, RAISES)
    message = refused(tmp_path, (2, 0), plugin)
    assert message == "ValueError: the dice are loaded"
    assert struck.exists()
    rows = tmp_path / "run" / "metrics.jsonl"
    assert (len(rows.read_text().splitlines()) if rows.exists() else 0) == moment - 1


@pytest.mark.crash
@pytest.mark.parametrize(
    ("worker", "moment", "strikes", "workers", "said"),
    [
        (RUNNER, 0, "raise ValueError('the dice are loaded')", (2, 0), "env runner 1 cannot be made: "),
        (LEARNER, 0, RAISES, (0, 2), "a learner cannot be made: "),
        # the other one waits in an all-reduce
        (LEARNER, 2, "if not before: raise ValueError('the dice are loaded')", (0, 2), ""),
    ],
    ids=["a runner is made", "a learner is made", "one of two learners"],
)
def test_an_error_in_a_worker_ends_the_run_with_its_message(
    ray_session: None, tmp_path: Path, worker: str, moment: int, strikes: str, workers: tuple[int, int], said: str
) -> None:
    plugin, struck = write_plugin(tmp_path, worker, moment, strikes)
    assert refused(tmp_path, workers, plugin) == f"{said}ValueError: the dice are loaded"
    assert len(struck.read_text()) <= 2, "nothing was tried twice"


@pytest.mark.parametrize("learners", [0, pytest.param(2, marks=pytest.mark.crash)])
def test_what_is_not_finite_ends_the_run_by_name(ray_session: None, tmp_path: Path, learners: int) -> None:
    message = refused(
        tmp_path, (0, learners), algorithm={"num_epochs": 1, "minibatch_size": 64, "lr": 1e30, "max_grad_norm": None}
    )
    assert "is not finite; the last checkpoint is untouched. Lower algorithm.lr" in message


@pytest.mark.crash
def test_what_a_hanging_env_runner_owes_is_played_by_another(
    ray_session: None, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    calm, disturbed = tmp_path / "calm", tmp_path / "disturbed"
    calm.mkdir()
    disturbed.mkdir()
    run(calm, (2, 0))
    plugin, struck = write_plugin(disturbed, RUNNER, 2, HANGS_ONCE)
    seconds = run(disturbed, (2, 0), plugin, fault_tolerance=limits(sample_timeout_s=3.0))
    assert struck.exists()
    assert seconds < SOON_S
    assert figures(disturbed / "run") == figures(calm / "run")
    assert "gave no answer in 3 s (fault_tolerance.sample_timeout_s) and is recreated" in capfd.readouterr().err


@pytest.mark.crash
@pytest.mark.parametrize(
    ("worker", "workers"), [(RUNNER, (2, 0)), (LEARNER, (0, 2)), (LEARNER, (0, 1))], ids=["runner", "learner", "only"]
)
@pytest.mark.parametrize(
    ("deed", "timeout_s"), [(STOPS_ONCE, 10.0), (STOPS_HALF_A_MINUTE, 120.0)], ids=["for ever", "for 30 s"]
)
def test_a_process_that_is_stopped_is_replaced_or_waited_for(
    ray_session: None,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    worker: str,
    workers: tuple[int, int],
    deed: str,
    timeout_s: float,
) -> None:
    calm, disturbed = tmp_path / "calm", tmp_path / "disturbed"
    calm.mkdir()
    disturbed.mkdir()
    run(calm, workers)
    plugin, struck = write_plugin(disturbed, worker, 3, deed)
    seconds = run(disturbed, workers, plugin, fault_tolerance=limits(hang_timeout_s=timeout_s))
    assert struck.exists()
    assert figures(disturbed / "run") == figures(calm / "run")
    assert weights(disturbed / "run") == weights(calm / "run")
    replaced = f"gave no answer in {timeout_s:g} s (fault_tolerance.hang_timeout_s)" in capfd.readouterr().err
    assert replaced == (deed == STOPS_ONCE)
    assert seconds < SOON_S
    assert replaced or seconds > 29.0, "it was stopped, and went on"


@pytest.mark.crash
@pytest.mark.parametrize(
    ("deed", "timeout_s"), [(STOPS_ONCE, 20.0), (STOPS_HALF_A_MINUTE, 120.0)], ids=["for ever", "for 30 s"]
)
def test_a_trial_that_is_stopped_is_started_again_or_waited_for(
    ray_session: None, tmp_path: Path, capfd: pytest.CaptureFixture[str], deed: str, timeout_s: float
) -> None:
    run(tmp_path, (0, 0))
    plugin, struck = write_plugin(tmp_path, TRIAL, 3, deed)
    content = config(iterations=4, plugins=[str(plugin)], fault_tolerance=limits(hang_timeout_s=timeout_s))
    began = time.monotonic()
    run_sweep(parse_sweep({**content, "sweep": {"seeds": [0], "max_failures": 3}}), tmp_path / "sweep", quiet=True)
    seconds = time.monotonic() - began
    assert struck.exists()
    [trial] = [path for path in (tmp_path / "sweep" / "trials").iterdir() if path.is_dir()]
    assert figures(trial) == figures(tmp_path / "run")
    assert weights(trial) == weights(tmp_path / "run")
    ended = "gave no sign of life for 20 s (fault_tolerance.hang_timeout_s) and is ended" in capfd.readouterr().err
    assert ended == (deed == STOPS_ONCE)
    assert seconds < SOON_S
    assert ended or seconds > 29.0, "it was stopped, and went on"


@pytest.mark.crash
@pytest.mark.parametrize("deed", [HANGS, DIES], ids=["hang", "die"])
def test_env_runners_that_are_all_lost_end_the_run(ray_session: None, tmp_path: Path, deed: str) -> None:
    plugin, struck = write_plugin(tmp_path, RUNNER, 2, deed)
    message = refused(tmp_path, (2, 0), plugin, fault_tolerance=limits(sample_timeout_s=3.0, max_env_runner_restarts=0))
    assert "all env runners are lost for good (fault_tolerance.max_env_runner_restarts: 0" in message
    assert len(struck.read_text()) == 2


@pytest.mark.crash
def test_learners_that_die_again_and_again_end_the_run(ray_session: None, tmp_path: Path) -> None:
    plugin, _ = write_plugin(tmp_path, LEARNER, 2, DIES)
    message = refused(tmp_path, (0, 1), plugin, fault_tolerance=limits(max_learner_failures=1))
    assert message.startswith(
        "learners were lost 2 times (fault_tolerance.max_learner_failures: 1), at last so: a learner of 1 is lost"
    )
    assert "nip-ray resume" in message
