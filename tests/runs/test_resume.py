"""A run that was stopped anywhere ends with the numbers of one that never was."""

import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from typer.testing import CliRunner

from nip_ray.cli import app
from nip_ray.cluster.interrupts import Interrupted, interruptible, kept
from nip_ray.config.changes import over_iterations
from nip_ray.config.load import config_from_dict, load_config
from nip_ray.errors import UserError
from nip_ray.runs.experiment import resume_as, resume_experiment, run_experiment
from nip_ray.runs.session import Session
from nip_ray.storage.checkpoint import load_checkpoint
from nip_ray.storage.folder import RunFolder
from tests.runs.small import ROOT, command, environment, files, nip_ray, small, untimed, write_small

PAST = "opponents={every: 2, latest: 0.5, size: 2, sampling: prioritised}"
LONG = ("iterations=30", "checkpoint.interval=3", "evaluation.interval=4", PAST)
SHORT = ("iterations=9", "checkpoint.interval=3", "evaluation.interval=4", PAST)

SHOT = """
import os, signal, sys
left, where = int(os.environ["SHOT_AFTER"]), os.environ["SHOT_WHERE"]
def watch(event, arguments):
    global left
    if event in ("open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.truncate") and any(
            isinstance(part, (str, os.PathLike)) and where in os.fspath(part) for part in arguments[:2]):
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
sys.addaudithook(watch)
"""
"""Ends its own process by SIGKILL just before so many accesses to files whose path has `SHOT_WHERE` in it."""


def outcome(path: Path) -> dict[str, Any]:
    """All that a run leaves behind but for what depends on the clock; tensors as lists, so that == compares them bit by
    bit."""
    with RunFolder.open(path) as folder:
        found = load_checkpoint(folder.checkpoints)
        return {
            "metrics": [untimed(row) for row in folder.metrics()],
            "evaluation": folder.read_json("evaluation.json"),
            "transcripts": {name: folder.read_transcripts(name) for name in folder.transcript_names()},
            "checkpoints": sorted(entry.name for entry in folder.checkpoints.iterdir()),
            "skipped": found.skipped,
            "counters": found.state["counters"],
            "training": plain(found.tensors["training"]),
            "config": folder.config_yaml(),
            "left over": sorted(entry.name for entry in path.rglob(".*") if entry.name != ".lock"),
        }


def plain(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return (str(value.dtype), value.tolist())
    if isinstance(value, dict):
        return {key: plain(part) for key, part in value.items()}
    return [plain(part) for part in value] if isinstance(value, list | tuple) else value


# ------------------------------------------------------------------------------------------------------------ kill -9


@pytest.mark.crash
@pytest.mark.timeout(900)
def test_killed_at_random_moments(tmp_path: Path) -> None:
    """At least 10 kills: at any time from the start of the process on, during training, and between any two accesses to
    the run folder."""
    config = write_small(tmp_path / "small.yaml", *LONG)
    plans = [
        [("start", 6.0), ("row", 0.5), ("file", 150), ("row", 0.5), ("start", 6.0)],
        [("file", 40), ("row", 0.5), ("row", 0.5), ("start", 6.0), ("end", 12)],
        [("row", 0.5), ("file", 20), ("file", 150), ("row", 0.5), ("end", 12)],
    ]
    whole = tmp_path / "whole"
    with ThreadPoolExecutor(2) as pool:
        reference = pool.submit(nip_ray, "train", config, "--run-dir", whole, "--quiet", check=0)
        runs = [tmp_path / f"killed{number}" for number in range(len(plans))]
        drawn = [random.Random(number) for number in range(len(plans))]
        kills = list(pool.map(lambda job: killed_run(config, *job), zip(runs, plans, drawn)))
        reference.result()
    assert sum(kills) >= 10
    expected = outcome(whole)
    assert [row["iteration"] for row in expected["metrics"]] == list(range(1, 31))
    for run in runs:
        found = outcome(run)
        for part, value in expected.items():
            assert found[part] == value, f"{run.name}: {part}"


def killed_run(config: Path, run: Path, plan: list[tuple[str, float]], drawn: random.Random) -> int:
    """Train with the kills of `plan`, then to the end; returns how many processes were killed before they were done."""
    kills = 0
    for kind, most in plan:
        process = launch(config, run, kind, most, drawn)
        if kind in ("start", "row"):
            strike(process, run, kind, drawn.uniform(0, most))
        _, said = process.communicate(timeout=240)
        assert process.returncode in (0, -signal.SIGKILL), said
        kills += process.returncode != 0
    process = launch(config, run, "", 0, drawn)
    _, said = process.communicate(timeout=240)
    assert (process.returncode, said) == (0, "")
    return kills


def launch(config: Path, run: Path, kind: str, most: float, drawn: random.Random) -> subprocess.Popen[str]:
    begun = (run / "config.yaml").exists()
    arguments = ["resume", run, "--quiet"] if begun else ["train", config, "--run-dir", run, "--quiet"]
    shot = {"file": str(run), "end": "evaluation.json" if drawn.random() < 0.5 else "curves"}.get(kind)
    aim = (
        {"SHOT_AFTER": str(drawn.randint(1, int(most) if shot != "evaluation.json" else 3)), "SHOT_WHERE": shot}
        if shot
        else {}
    )
    code = SHOT if shot else ""
    return subprocess.Popen(
        command(arguments, code),
        env={**environment(), **aim},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def strike(process: subprocess.Popen[str], run: Path, kind: str, after: float) -> None:
    """SIGKILL so many seconds after the start, or after the first row of metrics that the process writes."""
    if kind == "row":
        for before in sizes(run / "metrics.jsonl", process):
            if before[0] < before[1]:
                break
    try:
        process.wait(after)
    except subprocess.TimeoutExpired:
        process.kill()


def sizes(path: Path, process: subprocess.Popen[str]) -> Iterator[tuple[int, int]]:
    """(size before, size now) of a file, as long as the process runs."""
    last = path.stat().st_size if path.exists() else 0
    while process.poll() is None:
        now = path.stat().st_size if path.exists() else 0
        yield last, now
        last = now
        time.sleep(0.002)


# ------------------------------------------------------------------------------------------------------- resume in
# general


@pytest.mark.crash
def test_a_run_that_is_killed_while_it_writes_a_checkpoint_goes_on(finished: Path, tmp_path: Path) -> None:
    config, run = write_small(tmp_path / "small.yaml", *SHORT), tmp_path / "run"
    aim = {"SHOT_AFTER": "3", "SHOT_WHERE": "000006"}
    done = subprocess.run(
        command(["train", config, "--run-dir", run, "--quiet"], SHOT),
        env={**environment(), **aim},
        capture_output=True,
        timeout=240,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert load_checkpoint(run / "checkpoints").iteration == 3
    resume_experiment(run, quiet=True)
    assert outcome(run) == outcome(finished)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_experiment(small(*SHORT), tmp_path_factory.mktemp("finished") / "run", quiet=True).run_dir


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    """A copy of it to do anything with."""
    return Path(shutil.copytree(finished, tmp_path / "run"))


def cut_back(run: Path, iteration: int) -> None:
    """As a kill after the checkpoint of `iteration` leaves it."""
    for entry in (run / "checkpoints").iterdir():
        if int(entry.name) > iteration:
            shutil.rmtree(entry)
    for name in ("evaluation.json", "report.html"):
        (run / name).unlink()


def test_a_damaged_checkpoint_is_named_and_the_one_before_is_used(
    finished: Path, run: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    torn = run / "checkpoints" / "000009" / "training.pt"
    torn.write_bytes(torn.read_bytes()[:-100])
    resume_experiment(run)
    said = [line for line in capfd.readouterr().err.splitlines() if "warning" in line]
    assert len(said) == 1
    assert str(torn.parent) in said[0]
    assert "is damaged" in said[0]
    assert said[0].endswith("continuing from iteration 6")
    assert outcome(run) == outcome(finished)


def test_a_run_that_has_lost_all_checkpoints_says_that_it_begins_anew(
    finished: Path, run: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    cut_back(run, 0)
    (run / "run.json").unlink()  # where it stands that the run is finished
    resume_experiment(run)
    (said,) = [line for line in capfd.readouterr().err.splitlines() if "warning" in line]
    assert said.endswith("there is no checkpoint, the run begins again; 9 iterations are done again")
    assert outcome(run) == outcome(finished)


def test_without_an_undamaged_checkpoint_nothing_is_touched(run: Path) -> None:
    for path in (run / "checkpoints").rglob("training.pt"):
        path.write_bytes(b"")
    before = files(run)
    with pytest.raises(UserError, match="no undamaged checkpoint is left"):
        resume_experiment(run, quiet=True)
    assert files(run) == before


@pytest.mark.parametrize("order", [[1, 2, 2, 3], [2, 1, 3]])
def test_rows_that_are_repeated_or_swapped_are_put_in_order(
    finished: Path, run: Path, capfd: pytest.CaptureFixture[str], order: list[int]
) -> None:
    cut_back(run, 3)
    metrics = run / "metrics.jsonl"
    lines = metrics.read_bytes().splitlines(keepends=True)
    metrics.write_bytes(b"".join(lines[number - 1] for number in order))
    resume_experiment(run)
    (said,) = [line for line in capfd.readouterr().err.splitlines() if "warning" in line]
    assert "rows stood twice or out of order" in said
    assert outcome(run)["metrics"] == outcome(finished)["metrics"]


@pytest.mark.parametrize("left", ["a torn row", "three rows", "nothing", "a finished run"])
def test_rows_that_are_lost_are_marked(finished: Path, run: Path, capfd: pytest.CaptureFixture[str], left: str) -> None:
    """Those up to the checkpoint are; those after it are made again."""
    if left != "a finished run":
        cut_back(run, 6)
    metrics = run / "metrics.jsonl"
    lines = metrics.read_bytes().splitlines(keepends=True)
    kept = {
        "a torn row": [*lines[:5], lines[5][:-40]],
        "three rows": lines[:3],
        "nothing": [],
        "a finished run": [lines[0], *lines[2:]],
    }
    metrics.write_bytes(b"".join(kept[left]))
    if left == "nothing":
        metrics.unlink()
    lost = {"a torn row": [6], "three rows": [4, 5, 6], "nothing": [1, 2, 3, 4, 5, 6], "a finished run": [2]}[left]
    resume_as(load_config(run), run)
    (said,) = [line for line in capfd.readouterr().err.splitlines() if "warning" in line]
    assert f"{len(lost)} rows before the checkpoint are lost" in said
    expected = [
        {"iteration": n, "missing": True} if (n := row["iteration"]) in lost else row
        for row in outcome(finished)["metrics"]
    ]
    assert outcome(run)["metrics"] == expected
    assert (run / "report.html").is_file()


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_run_after_the_iteration_that_it_came_in(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, signum: int
) -> None:
    step, before = Session.step, signal.getsignal(signum)

    def struck(session: Session) -> dict[str, Any]:
        if session.iteration == 4:
            signal.raise_signal(signum)
        return step(session)

    run = tmp_path / "run"
    with monkeypatch.context() as patched:
        patched.setattr(Session, "step", struck)
        ended = CliRunner().invoke(
            app, ["train", str(write_small(tmp_path / "small.yaml", *SHORT)), "--run-dir", str(run)]
        )
    assert ended.exit_code == 128 + signum
    assert ended.stderr.splitlines()[-1].endswith(f"`nip-ray resume {run}` continues it")
    assert max(path.name for path in (run / "checkpoints").iterdir()) == "000005"
    assert signal.getsignal(signum) == before
    resume_experiment(run, quiet=True)
    found, expected = outcome(run), outcome(finished)
    assert all(found[part] == expected[part] for part in ("metrics", "evaluation", "training", "counters"))


@pytest.mark.parametrize(
    ("part", "struck_in", "kept_every_s", "left"),
    [("_evaluate", 8, 1e6, 7), pytest.param("_trained", 7, 0.0, 6, marks=pytest.mark.slow), ("_trained", 7, 1e6, 3)],
    ids=["an evaluation", "a slow iteration", "what was kept is older"],
)
def test_what_takes_longer_than_the_grace_is_done_again(
    finished: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    part: str,
    struck_in: int,
    kept_every_s: float,
    left: int,
) -> None:
    """From the iteration before it, or the one before the last evaluation where nothing was kept since."""
    whole = getattr(Session, part)

    def slow(session: Session, iteration: int) -> dict[str, Any]:
        if iteration == struck_in:
            signal.raise_signal(signal.SIGTERM)
            time.sleep(60)
        return whole(session, iteration)

    run, config = tmp_path / "run", write_small(tmp_path / "small.yaml", *SHORT, "checkpoint.interval=100")
    with monkeypatch.context() as patched:
        patched.setattr(Session, part, slow)
        patched.setattr("nip_ray.runs.session._KEPT_EVERY_S", kept_every_s)
        patched.setattr("nip_ray.cluster.interrupts.GRACE_S", 0.05)
        ended = CliRunner().invoke(app, ["train", str(config), "--run-dir", str(run)])
    assert ended.exit_code == 143
    assert f"checkpoint of iteration {left} of 9" in ended.stderr
    assert RunFolder.open(run).metrics()[-1]["iteration"] == left
    capfd.readouterr()
    resume_experiment(run, quiet=True)
    assert "warning" not in capfd.readouterr().err
    found, expected = outcome(run), outcome(finished)
    assert all(
        found[part] == expected[part] for part in ("metrics", "evaluation", "transcripts", "training", "counters")
    )


def test_an_interrupt_without_a_signal_is_told_by_the_last_signal() -> None:
    """Ray's blocking calls raise a plain KeyboardInterrupt whatever came."""

    @interruptible()
    def blocked() -> None:
        try:
            signal.raise_signal(signal.SIGTERM)
        except Interrupted:
            raise KeyboardInterrupt from None

    with pytest.raises(Interrupted) as caught:
        blocked()
    assert caught.value.signum == signal.SIGTERM


def test_whoever_joins_ray_keeps_its_handlers() -> None:
    """From the first moment: Ray sets its own long before it is there."""

    @interruptible()
    def joining() -> None:
        with kept():
            signal.signal(signal.SIGTERM, lambda signum, frame: sys.exit(signum))  # as ray.init does
            signal.raise_signal(signal.SIGTERM)

    before = signal.signal
    with pytest.raises(Interrupted):
        joining()
    assert signal.signal is before


LASTING = {
    "networks": ("train", "message_game.yaml", "--iterations=100000", "--set=play.num_copies=32",
                 "--set=algorithm.minibatch_size=32", "--set=play.num_env_runners=1", "--run-dir=run"),
    "text": ("train", "ei_cv_offline.yaml", "--iterations=1000", "--set=providers={random: {name: dummy}}",
             "--set=scenario.agents._default.provider=random", "--set=scenario.data.num_train=8",
             "--set=scenario.data.num_test=4",
             "--set=algorithm.format_warmup=0", "--set=algorithm.rollouts_per_iteration=8", "--run-dir=run"),
    "driver": ("run", "runner_cartpole.yaml", "--set=driver.timesteps=10000000", "--set=experiment.write_interval=500",
               "--run-dir=run"),
    "sweep": ("sweep", "sweep_tiny.yaml", "--set=iterations=100000", "--storage=."),
}  # fmt: skip


@pytest.mark.crash
@pytest.mark.parametrize("kind", LASTING)
def test_sigterm_ends_any_work_within_twenty_seconds(tmp_path: Path, kind: str) -> None:
    verb, config, *more = LASTING[kind]
    arguments = command([verb, ROOT / "tune_configs" / config, *more], "")
    process = subprocess.Popen(
        arguments, cwd=tmp_path, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    while process.poll() is None and not any(path.stat().st_size for path in tmp_path.rglob("metrics.jsonl")):
        time.sleep(0.1)
    began = time.monotonic()
    process.terminate()
    _, said = process.communicate(timeout=60)
    assert process.returncode == 143, said
    assert time.monotonic() - began < 20
    assert "stopped by SIGTERM, `nip-ray" in said.splitlines()[-1]
    assert "***" not in said, "a stack of C++"
    if kind != "text":  # which saves every answer when it comes
        rows = next(path for path in tmp_path.rglob("metrics.jsonl") if path.stat().st_size)
        last = RunFolder.open(rows.parent).metrics()[-1]["iteration"]
        assert max(int(path.name) for path in (rows.parent / "checkpoints").iterdir() if path.name.isdigit()) >= last


def test_a_finished_run_stays_as_it_is(finished: Path, run: Path) -> None:
    rows = (run / "metrics.jsonl").read_bytes()
    result = resume_experiment(run, quiet=True)
    assert result.iterations == 9
    assert result.metrics["iteration"] == 9
    assert "eval/verifier/accuracy" in result.metrics
    assert (run / "metrics.jsonl").read_bytes() == rows
    assert outcome(run) == outcome(finished)


def test_more_iterations(finished: Path, run: Path, tmp_path: Path) -> None:
    """Going on from 9 to 12 is the same as 12 at once, but for the examination that the first end made."""
    result = resume_experiment(run, iterations=12, quiet=True)
    assert result.iterations == 12
    whole = run_experiment(small(*SHORT, "iterations=12"), tmp_path / "whole", quiet=True).run_dir
    extended, expected = outcome(run), outcome(whole)
    extended["transcripts"].pop("000009")
    extended["metrics"][8] = {key: value for key, value in extended["metrics"][8].items() if not key.startswith("eval")}
    assert extended == expected
    with pytest.raises(UserError, match="12 iterations are done already"):
        resume_experiment(run, iterations=10, quiet=True)
    assert outcome(run)["config"] == extended["config"]


def test_a_setting_that_cannot_work_does_not_stick(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = (run / "config.yaml").read_text()

    def too_small(*_: Any) -> None:
        raise UserError("the cluster is too small")

    monkeypatch.setattr("nip_ray.rllib.cluster.start_ray", too_small)
    with pytest.raises(UserError, match="too small"):
        resume_experiment(run, iterations=12, settings=["learners.num_learners=1"], quiet=True)
    assert (run / "config.yaml").read_text() == before


def test_an_annealed_run_keeps_its_length(tmp_path: Path) -> None:
    run = run_experiment(small("algorithm.anneal_lr=true", "iterations=2"), tmp_path / "run", quiet=True).run_dir
    before = files(run)
    for longer in (["--iterations", "5"], ["--set", "iterations=5"]):
        refused = CliRunner().invoke(app, ["resume", str(run), *longer])
        assert (refused.exit_code, len(refused.stderr.splitlines())) == (2, 1)
        assert "algorithm.anneal_lr is annealed over this run's 2 iterations" in refused.stderr
    assert files(run) == before


@pytest.mark.parametrize(
    ("config", "key"),
    [
        ({"search": {"last_share": 0.5}}, "search.last_share"),
        ({"algorithm": {"name": "policy_gradient", "anneal_learning_rate": True}}, "algorithm.anneal_learning_rate"),
        (
            {"algorithm": {"name": "policy_gradient", "agents": {"a": {"final_kl_coefficient": 0.1}}}},
            "algorithm.agents.a.final_kl_coefficient",
        ),
        (
            {"algorithm": {"name": "policy_gradient", "kl_coefficient": 0.1, "final_kl_coefficient": 0}},
            "algorithm.final_kl_coefficient",
        ),
        ({}, None),
        ({"pretraining": {"agents": ["verifier"], "anneal_lr": True}}, None),
    ],
)
def test_what_changes_over_the_whole_length_is_found_by_what_its_option_means(
    config: dict[str, Any], key: str | None
) -> None:
    assert next(over_iterations(config_from_dict(config)), None) == key


def test_a_checkpoint_of_another_config_is_refused(run: Path) -> None:
    cut_back(run, 6)
    config = yaml.safe_load((run / "config.yaml").read_text(encoding="utf-8"))
    config["algorithm"]["gamma"] = 0.5
    (run / "config.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    before = files(run)
    with pytest.raises(UserError, match="checkpoint of another config") as refused:
        resume_experiment(run, quiet=True)
    assert str(run / "checkpoints" / "000006") in str(refused.value)
    assert files(run) == before


def test_what_is_kept_may_change_between_two_starts(finished: Path, run: Path) -> None:
    """It is no part of what a checkpoint belongs to."""
    cut_back(run, 3)
    config = yaml.safe_load((run / "config.yaml").read_text(encoding="utf-8"))
    config["checkpoint"] = {"interval": 1, "keep": None}
    config["evaluation"]["num_transcripts"] = 0
    (run / "config.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    resume_experiment(run, quiet=True)
    changed, expected = outcome(run), outcome(finished)
    assert changed["checkpoints"] == [f"{iteration:06d}" for iteration in range(3, 10)]
    assert all(changed[part] == expected[part] for part in ("metrics", "evaluation", "training", "counters"))
