"""Seconds that a run needs to continue after one of its processes was killed.

    python benchmarks/recovery.py --out recovery.json     # both experiments, five kills of each kind
    python benchmarks/recovery.py --quick                 # the message game, one kill of each kind: does it work?

Decisions that matter here:
- processes are killed with SIGKILL while they work, at a random moment of an iteration, and the clock starts at the
  kill;
- "next" is the end of the first iteration finished after the kill, "whole" is when all env runners answer again;
- the median of an undisturbed iteration is listed too: the cost of a kill is "next" less one of those;
- one thread per process, and Ray on this machine: network costs are not included, nor the time a cloud needs for
  another machine.
"""

import argparse
import json
import os
import random
import signal
import statistics
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import ray
import yaml
from _common import NIP_RAY, config, machine, show

from nip_ray.cluster.process import prepare_process
from nip_ray.cluster.ray_session import start_local_ray
from nip_ray.config.experiment import ExperimentConfig
from nip_ray.config.load import config_to_yaml
from nip_ray.errors import LearnerLost
from nip_ray.runs.session import Session
from nip_ray.storage.folder import RunFolder
from nip_ray.sweeps.run import run_sweep
from nip_ray.sweeps.spec import parse_sweep

GI = ("pretraining.agents=[]", "scenario.data.num_train=2000", "scenario.data.num_test=100")
COMMON = (
    "iterations=100000",
    "algorithm.anneal_lr=false",
    "evaluation.interval=0",
    "checkpoint.interval=1",
    "runtime.num_threads=1",
)
RUNNER, LEARNER, TRIAL = "ray::ProtocolEnvRunner", "ray::_WrappedExecutable", "ray::ExperimentTrainable"
Times = dict[str, float]


def experiment(name: str, *overrides: str) -> ExperimentConfig:
    """A config of `tune_configs` without an end, that saves after each iteration."""
    return config(name, *COMMON, *(GI if name.startswith("gi") else ()), *overrides)


def kill_one(kind: str, dice: random.Random) -> float:
    """Send SIGKILL to one of this process's Ray workers of that class; returns the time."""
    workers = [
        process
        for process in psutil.Process().children(recursive=True)
        if (process.cmdline() or [""])[0].startswith(kind)
    ]
    dice.choice(sorted(workers, key=lambda process: process.pid)).send_signal(signal.SIGKILL)
    return time.perf_counter()


class Later:
    """Calls `strike` at a random moment of the next `within_s` seconds, in a thread; `at` is when it struck."""

    def __init__(self, dice: random.Random, within_s: float, strike: Callable[[], float]) -> None:
        self.at = float("inf")
        self.delay_s, self.strike = dice.uniform(0, within_s), strike
        threading.Thread(target=self._act, daemon=True).start()

    def _act(self) -> None:
        time.sleep(self.delay_s)
        self.at = self.strike()


@contextmanager
def session(settings: ExperimentConfig) -> Iterator[Session]:
    """A session after its first iterations."""
    with (
        tempfile.TemporaryDirectory() as folder,
        RunFolder.create(Path(folder) / "run", config_to_yaml(settings)) as run,
    ):
        made = Session(settings, run, quiet=True)
        try:
            made.start()
            for _ in range(3):
                made.step()
            yield made
        finally:
            made.close()


def undisturbed_s(made: Session) -> float:
    """The median iteration."""
    return statistics.median(made.step()["time/iteration_s"] for _ in range(5))


def runner_losses(name: str, kills: int, dice: random.Random) -> list[Times]:
    """One of two env runners is killed, repeatedly."""
    found = []
    with session(
        experiment(name, "play.num_env_runners=2", f"fault_tolerance.max_env_runner_restarts={kills}")
    ) as made:
        group, usual = made.algorithm.env_runner_group, undisturbed_s(made)
        for _ in range(kills):
            later, next_at = Later(dice, usual, lambda: kill_one(RUNNER, dice)), 0.0
            while not next_at or group.num_healthy_remote_env_runners() < 2:
                made.step()
                if time.perf_counter() > later.at and not next_at:
                    next_at = time.perf_counter()
                    made.step()  # if it was killed after playing, this iteration notices it
            found.append(
                {"next_s": next_at - later.at, "whole_s": time.perf_counter() - later.at, "iteration_s": usual}
            )
    return found


def learner_losses(name: str, kills: int, dice: random.Random) -> list[Times]:
    """One of two learners is killed, repeatedly."""
    found = []
    with session(experiment(name, "learners.num_learners=2")) as made:
        usual = undisturbed_s(made)
        for _ in range(kills):
            later, lost = Later(dice, usual, lambda: kill_one(LEARNER, dice)), False
            while not lost:
                try:
                    made.step()
                except LearnerLost:
                    lost = True
            made.restart()
            made.step()
            found.append({"next_s": time.perf_counter() - later.at, "iteration_s": usual})
    return found


def trial_losses(name: str, kills: int, dice: random.Random) -> list[Times]:
    """The actor of a sweep's trial is killed, repeatedly."""
    found: list[Times] = []
    data = {**yaml.safe_load(config_to_yaml(experiment(name))), "iterations": 10**6}
    data["sweep"] = {"seeds": [0], "max_failures": kills, "iterations_per_report": 1, "time_budget_s": 3600}
    with tempfile.TemporaryDirectory() as folder:
        stop = threading.Event()

        def act() -> None:
            rows = wait_for_rows(Path(folder), "sweep/trials/*/metrics.jsonl", 4)
            for _ in range(kills):
                usual = seconds_a_row(Path(folder), "sweep/trials/*/metrics.jsonl")
                time.sleep(dice.uniform(0, usual))
                at, rows = kill_one(TRIAL, dice), newest(Path(folder), "sweep/trials/*/metrics.jsonl")
                wait_for_rows(Path(folder), "sweep/trials/*/metrics.jsonl", rows + 1)
                found.append({"next_s": time.perf_counter() - at, "iteration_s": usual})
            stop.set()
            os.kill(os.getpid(), signal.SIGINT)  # Tune ends a sweep on it, as on the user's

        threading.Thread(target=act, daemon=True).start()
        run_sweep(parse_sweep(data), Path(folder) / "sweep", quiet=True)
        assert stop.is_set(), "the sweep ended by itself"
    return found


def driver_losses(name: str, kills: int, dice: random.Random) -> list[Times]:
    """`nip-ray train` is killed, and `nip-ray resume` called at once, repeatedly."""
    found = []
    with tempfile.TemporaryDirectory() as folder:
        run, file = Path(folder) / "run", Path(folder) / "config.yaml"
        file.write_text(config_to_yaml(experiment(name)), encoding="utf-8")
        process = nip_ray("train", str(file), "--run-dir", str(run))
        try:
            wait_for_rows(run, "metrics.jsonl", 4)
            for _ in range(kills):
                usual = seconds_a_row(run, "metrics.jsonl")
                time.sleep(dice.uniform(0, usual))
                process.kill()
                at = time.perf_counter()
                process.wait()
                rows = newest(run, "metrics.jsonl")
                process = nip_ray("resume", str(run))
                wait_for_rows(run, "metrics.jsonl", rows + 1)
                found.append({"next_s": time.perf_counter() - at, "iteration_s": usual})
        finally:
            process.kill()
            process.wait()
    return found


def nip_ray(*arguments: str) -> subprocess.Popen[bytes]:
    """The command line."""
    return subprocess.Popen([NIP_RAY, *arguments, "--quiet"])


def newest(folder: Path, pattern: str) -> int:
    """The last iteration with a complete row, in the first file that matches."""
    path = next(folder.glob(pattern), None)
    lines = path.read_bytes().rpartition(b"\n")[0].splitlines() if path else []
    return json.loads(lines[-1])["iteration"] if lines else 0


def wait_for_rows(folder: Path, pattern: str, iteration: int) -> int:
    """Wait until there is a row of that iteration."""
    deadline = time.monotonic() + 300
    while (found := newest(folder, pattern)) < iteration:
        if time.monotonic() > deadline:
            raise TimeoutError(f"no iteration {iteration} in {folder}/{pattern}")
        time.sleep(0.02)
    return found


def seconds_a_row(folder: Path, pattern: str) -> float:
    """Seconds for the next three iterations, by three."""
    began, rows = time.perf_counter(), newest(folder, pattern)
    done = wait_for_rows(folder, pattern, rows + 3) - rows
    return (time.perf_counter() - began) / done


LOSSES: dict[str, Callable[[str, int, random.Random], list[Times]]] = {
    "env runner": runner_losses,
    "learner": learner_losses,
    "trial": trial_losses,
    "driver": driver_losses,
}


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--configs", nargs="*", default=["gi_fast", "message_game"])
    parser.add_argument("--kills", type=int, default=5, help="of each kind, in each experiment")
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    parser.add_argument("--only", nargs="*", choices=list(LOSSES), default=list(LOSSES), help="kinds of losses")
    parser.add_argument("--quick", action="store_true", help="the message game, one kill of each kind")
    parser.add_argument("--out", type=Path, help="write everything to this JSON file")
    arguments = parser.parse_args()
    names, kills = (["message_game"], 1) if arguments.quick else (arguments.configs, arguments.kills)
    os.environ["OMP_NUM_THREADS"] = "1"  # the workers'
    prepare_process(1)
    print(machine())
    start_local_ray(num_cpus=4, include_dashboard=False)
    found: dict[str, dict[str, list[Times]]] = {name: {} for name in names}
    try:
        print(f"{'experiment':<16}{'lost':<12}{'iteration':>10}{'next':>18}{'whole':>18}   seconds, median (largest)")
        for name in names:
            for lost in arguments.only:
                times = found[name][lost] = LOSSES[lost](name, kills, random.Random(arguments.seed))
                next_s, whole_s = shown(times, "next_s"), shown(times, "whole_s")
                print(f"{name:<16}{lost:<12}{times[0]['iteration_s']:>10.2f}{next_s:>18}{whole_s:>18}")
    finally:
        ray.shutdown()
    for name in names:
        show(f"recovery of {name}", found[name])
    if arguments.out:
        arguments.out.write_text(json.dumps({"kills": kills, "experiments": found}, indent=1) + "\n", encoding="utf-8")


def shown(times: list[Times], key: str) -> str:
    """Median and largest."""
    values = [found[key] for found in times if key in found]
    return f"{statistics.median(values):.1f} ({max(values):.1f})" if values else "-"


if __name__ == "__main__":
    main()
