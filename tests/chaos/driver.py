"""Disturbed runs on a cluster of several nodes on this machine, beside undisturbed ones; prints what came of each as a
line of JSON.

    python -m tests.chaos.driver FOLDER SEED CASE [CASE ...]

Runs in a process of its own, because a test session has one Ray and this needs a cluster.

Decisions that matter here:
- processes are killed with SIGKILL, nodes with everything on them, at a moment that is drawn from the seed: so long
  after so many iterations were begun;
- undisturbed runs are single runs in this process, for sweeps too: a trial's numbers are those of a single run;
- what was lost is counted by iterations that were begun (`watch.py`), not guessed from the numbers of the end;
- the head node has no CPUs: everything that can be lost is on a worker node, and what is left of the cluster is enough.
"""

import json
import logging
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import ray
import torch
import yaml
from ray.cluster_utils import Cluster

from nip_ray.config.load import config_from_dict
from nip_ray.runs.experiment import run_experiment
from nip_ray.storage.checkpoint import load_checkpoint
from nip_ray.sweeps.run import run_sweep
from nip_ray.sweeps.spec import parse_sweep

ROOT = Path(__file__).resolve().parents[2]
ITERATIONS = 8
CONFIG: dict[str, Any] = {
    "name": "chaos",
    "iterations": ITERATIONS,
    "protocol": {"name": "message_game", "max_rounds": 4},
    "scenario": {"name": "message_game", "num_symbols": 5, "agents": {"_default": {"hidden": 16}}},
    "play": {"num_copies": 64},
    "algorithm": {"num_epochs": 12, "minibatch_size": 64},
    "evaluation": {"interval": 0, "max_instances": 50},
    "checkpoint": {"interval": 1, "keep": None},
    "fault_tolerance": {"restart_delay_s": 0.0, "sample_timeout_s": 60.0},
    "runtime": {"num_threads": 1},
}
WATCH = {"plugins": [str(Path(__file__).with_name("watch.py"))]}
RUNNER, LEARNER, TRIAL = "ray::ProtocolEnvRunner", "ray::_WrappedExecutable", "ray::ExperimentTrainable"
SEEDS = (0, 1)  # of the trials of a sweep
NODE: dict[str, Any] = {"num_cpus": 2, "object_store_memory": 80 << 20}
NUM_NODES = 3
WAIT_S = 150.0


def config(num_env_runners: int = 0, num_learners: int = 0, **changes: Any) -> dict[str, Any]:
    """The experiment with so many workers."""
    workers = {
        "play": {**CONFIG["play"], "num_env_runners": num_env_runners},
        "learners": {"num_learners": num_learners},
    }
    return {**CONFIG, **workers, **changes}


def sweep(workers: tuple[int, int]) -> dict[str, Any]:
    """The experiment as a sweep over seeds."""
    return {**config(*workers, **WATCH), "sweep": {"seeds": list(SEEDS), "max_failures": 3}}


def figures(run_dir: Path) -> list[dict[str, Any]]:
    """Rows without what depends on the clock."""
    rows = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    return [
        {key: value for key, value in row.items() if not key.startswith("time/") and not key.endswith("_per_s")}
        for row in rows
    ]


def weights(folder: Path) -> dict[str, bytes]:
    """All tensors and numbers of the newest checkpoint, by their place in it. The file itself may differ: pickles name
    equal strings once where they are one object.
    """

    def leaves(place: str, value: Any) -> dict[str, bytes]:
        if isinstance(value, dict | list | tuple):
            items = value.items() if isinstance(value, dict) else enumerate(value)
            return {name: leaf for key, inner in items for name, leaf in leaves(f"{place}/{key}", inner).items()}
        return {place: value.numpy().tobytes() if isinstance(value, torch.Tensor) else repr(value).encode()}

    found = leaves("", load_checkpoint(folder / "checkpoints").tensors)
    assert len(found) > 10
    return found


def lines(folder: Path, pattern: str) -> int:
    """Lines of all files below `folder` whose path matches."""
    return sum(path.read_bytes().count(b"\n") for path in folder.glob(pattern))


def processes(kind: str) -> list[psutil.Process]:
    """The Ray workers below this process that are actors of class `kind`."""
    found = []
    for process in psutil.Process().children(recursive=True):
        try:
            if process.cmdline() and process.cmdline()[0].startswith(kind):
                found.append(process)
        except psutil.Error:
            continue
    return sorted(found, key=lambda process: process.pid)


def kill_one(kind: str, dice: random.Random) -> str:
    chosen = dice.choice(processes(kind))
    chosen.kill()
    return kind


def lose_node(cluster: Cluster, dice: random.Random, kinds: tuple[str, ...]) -> str:
    """Take a worker node away on which one of `kinds` is at work, all its processes at once."""
    raylets = {process.ppid() for kind in kinds for process in processes(kind)}
    busy = [node for node in cluster.worker_nodes if node.all_processes["raylet"][0].process.pid in raylets]
    cluster.remove_node(dice.choice(sorted(busy, key=lambda node: node.unique_id)), allow_graceful=False)
    return "node"


class Blow:
    """Strikes once, in a thread, at a moment drawn by `dice` of what goes on in `folder`; `told` then has what it
    did."""

    def __init__(self, folder: Path, dice: random.Random, strike: Callable[[], str], runs: int = 1) -> None:
        self.folder, self.strike, self.told = folder, strike, dict[str, Any]()
        self.begun, self.delay_s = dice.randint(2, ITERATIONS - 4) * runs, dice.uniform(0.0, 0.2)
        self.thread = threading.Thread(target=self._act, daemon=True)
        self.thread.start()

    def _act(self) -> None:
        deadline = time.monotonic() + WAIT_S
        while lines(self.folder, "**/begun.log") < self.begun:
            if time.monotonic() > deadline:
                return
            time.sleep(0.005)
        time.sleep(self.delay_s)
        killed = self.strike()
        self.told = {"killed": killed, "at": time.time(), "rows": lines(self.folder, "**/metrics.jsonl")}


class Stage:
    """A cluster, the undisturbed runs so far, and the cases that are played on it."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder, self.seed = folder, seed
        self.cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "object_store_memory": 80 << 20})
        for _ in range(NUM_NODES):
            self.cluster.add_node(**NODE)
        ray.init(address=self.cluster.address, log_to_driver=False, logging_level=logging.ERROR)

    def close(self) -> None:
        ray.shutdown()
        self.cluster.shutdown()

    def play(self, case: str) -> dict[str, Any]:
        """One case; afterwards the cluster is whole again."""
        self.dice = random.Random(f"{case} {self.seed}")
        self.place = self.folder / f"{case}-{self.seed}"
        began = time.monotonic()
        found = CASES[case](self)
        while len(self.cluster.worker_nodes) < NUM_NODES:
            self.cluster.add_node(**NODE)
        return {"case": case, "iterations": ITERATIONS, **found, "seconds": time.monotonic() - began}

    def calm(self, workers: tuple[int, int], seed: int = 0) -> list[dict[str, Any]]:
        """Rows of the undisturbed run."""
        path = self.folder / f"calm-{workers[0]}-{workers[1]}-{seed}"
        if not path.exists():
            run_experiment(config_from_dict(config(*workers, seed=seed, **WATCH)), path, quiet=True)
        return figures(path)

    def outcome(self, blow: Blow, runs: dict[Path, list[dict[str, Any]]]) -> dict[str, Any]:
        """What came of the disturbed runs: folder -> the undisturbed one's rows."""
        blow.thread.join(WAIT_S)
        begun = [lines(path, "begun.log") for path in runs]
        return {**blow.told, "begun": begun, "calm": list(runs.values()), "disturbed": [figures(path) for path in runs]}

    def train(self, strike: Callable[[], str]) -> dict[str, Any]:
        """A run with two env runners and two learners, of which something is lost."""
        calm = self.calm((2, 2))
        blow = Blow(self.place, self.dice, strike)
        run_experiment(config_from_dict(config(2, 2, **WATCH)), self.place, quiet=True)
        return self.outcome(blow, {self.place: calm})

    def tune(self, workers: tuple[int, int], strike: Callable[[], str]) -> dict[str, Any]:
        """A sweep of two trials, of which something is lost."""
        calm = [self.calm(workers, seed) for seed in SEEDS]
        blow = Blow(self.place, self.dice, strike, len(SEEDS))
        run_sweep(parse_sweep(sweep(workers)), self.place, quiet=True)
        return self.outcome(blow, self.trials(calm))

    def trials(self, calm: list[list[dict[str, Any]]]) -> dict[Path, list[dict[str, Any]]]:
        """The run folders of a sweep's trials, by seed."""
        folders = {
            yaml.safe_load((path / "config.yaml").read_text())["seed"]: path
            for path in (self.place / "trials").iterdir()
        }
        return {folders[seed]: rows for seed, rows in zip(SEEDS, calm, strict=True)}

    def kill_train(self) -> dict[str, Any]:
        """`nip-ray train`, killed, then `nip-ray resume`."""
        calm = self.calm((1, 0))
        blow = self.kill_driver(config(1, 0, **WATCH), ["train", "--run-dir", str(self.place)], 1)
        self.nip_ray("resume", str(self.place), "--quiet").wait(WAIT_S)
        return self.outcome(blow, {self.place: calm})

    def kill_sweep(self) -> dict[str, Any]:
        """`nip-ray sweep`, killed, then `nip-ray sweep --resume`."""
        calm = [self.calm((0, 0), seed) for seed in SEEDS]
        named = {**sweep((0, 0)), "name": self.place.name}
        blow = self.kill_driver(named, ["sweep", "--storage", str(self.folder)], len(SEEDS))
        self.nip_ray("sweep", "--resume", str(self.place), "--quiet").wait(WAIT_S)
        return self.outcome(blow, self.trials(calm))

    def kill_driver(self, content: dict[str, Any], verb: list[str], runs: int) -> Blow:
        """Start the command line on `content`, and SIGKILL it at the drawn moment."""
        file = self.folder / f"{self.place.name}.yaml"
        file.write_text(yaml.safe_dump(content))
        process = self.nip_ray(verb[0], str(file), *verb[1:], "--quiet")

        def strike() -> str:
            assert process.poll() is None, "it was over too soon"
            process.kill()
            return "driver"

        blow = Blow(self.place, self.dice, strike, runs)
        process.wait(WAIT_S)
        return blow

    def nip_ray(self, *arguments: str) -> subprocess.Popen[bytes]:
        """The command line, in a process of its own, on this cluster."""
        command = [sys.executable, "-c", "from nip_ray.cli import main; main()", *arguments]
        return subprocess.Popen(
            command, cwd=ROOT, env={**os.environ, "RAY_ADDRESS": str(self.cluster.address)}, stdout=sys.stderr
        )


CASES: dict[str, Callable[[Stage], dict[str, Any]]] = {
    "env_runner": lambda stage: stage.train(lambda: kill_one(RUNNER, stage.dice)),
    "learner": lambda stage: stage.train(lambda: kill_one(LEARNER, stage.dice)),
    "node": lambda stage: stage.train(lambda: lose_node(stage.cluster, stage.dice, (RUNNER, LEARNER))),
    "trial": lambda stage: stage.tune((0, 0), lambda: kill_one(TRIAL, stage.dice)),
    "trial_node": lambda stage: stage.tune((1, 0), lambda: lose_node(stage.cluster, stage.dice, (TRIAL,))),
    "driver": Stage.kill_train,
    "sweep_driver": Stage.kill_sweep,
}


def main() -> None:
    """Play the cases and print an outcome a line."""
    folder, seed, cases = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
    folder.mkdir(parents=True, exist_ok=True)
    stage = Stage(folder, seed)
    try:
        for case in cases:
            print(json.dumps(stage.play(case)), flush=True)
    finally:
        stage.close()


if __name__ == "__main__":
    main()
