"""One disturbed run on a cluster of several nodes on this machine, beside an undisturbed one; prints what came of both as JSON.

    python -m tests.chaos.driver CASE FOLDER SEED

Runs in a process of its own, because a test session has one Ray and this needs a cluster. Processes are killed with SIGKILL.
"""

import json
import random
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import ray
from ray.cluster_utils import Cluster

from nip_ray.config.load import config_from_dict
from nip_ray.runs.experiment import run_experiment

CONFIG: dict[str, Any] = {
    "name": "chaos",
    "iterations": 6,
    "protocol": {"name": "message_game", "max_rounds": 4},
    "scenario": {"name": "message_game", "num_symbols": 5, "agents": {"_default": {"hidden": 16}}},
    "play": {"num_copies": 64},
    "algorithm": {"num_epochs": 12, "minibatch_size": 64},
    "evaluation": {"interval": 0, "max_instances": 50},
    "checkpoint": {"interval": 1, "keep": None},
    "fault_tolerance": {"restart_delay_s": 0.0, "sample_timeout_s": 60.0},
    "runtime": {"num_threads": 1},
}
RUNNER, LEARNER, TRIAL = "ProtocolEnvRunner", "_WrappedExecutable", "ExperimentTrainable"


def config(num_env_runners: int = 0, num_learners: int = 0, **changes: Any) -> dict[str, Any]:
    """The experiment with so many workers."""
    workers = {"play": {**CONFIG["play"], "num_env_runners": num_env_runners}, "learners": {"num_learners": num_learners}}
    return {**CONFIG, **workers, **changes}


def processes(kind: str) -> list[psutil.Process]:
    """The Ray workers below this process that are actors of class `kind`."""
    found = []
    for process in psutil.Process().children(recursive=True):
        try:
            if process.cmdline() and process.cmdline()[0].startswith(f"ray::{kind}"):
                found.append(process)
        except psutil.Error:
            continue
    return found


def kill_one(kind: str, dice: random.Random) -> dict[str, Any]:
    """SIGKILL one of them."""
    chosen = dice.choice(sorted(processes(kind), key=lambda process: process.pid))
    chosen.kill()
    return {"killed": kind}


def when_rows(run_dir: Path, rows: int, delay_s: float) -> None:
    """Wait until a run has so many rows of metrics, and a moment longer."""
    metrics = run_dir / "metrics.jsonl"
    deadline = time.monotonic() + 200
    while not metrics.is_file() or metrics.read_bytes().count(b"\n") < rows:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{metrics} never had {rows} rows")
        time.sleep(0.005)
    time.sleep(delay_s)


def figures(run_dir: Path) -> list[dict[str, Any]]:
    """Rows without what depends on the clock."""
    rows = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in row.items() if not key.startswith("time/") and not key.endswith("_per_s")} for row in rows]


def disturb(run_dir: Path, dice: random.Random, strike: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """In a thread: strike once at a random moment of the run. What it did and when comes into the returned dict."""
    told: dict[str, Any] = {}
    rows, delay_s = dice.randint(1, CONFIG["iterations"] - 2), dice.uniform(0.0, 0.3)

    def act() -> None:
        when_rows(run_dir, rows, delay_s)
        told.update(strike(), rows=rows, delay_s=delay_s, at=time.time())

    threading.Thread(target=act, daemon=True).start()
    return told


def lose_node(cluster: Cluster, dice: random.Random) -> dict[str, Any]:
    """Take a worker node away on which somebody works, all its processes at once."""
    working = {process.ppid() for kind in (RUNNER, LEARNER, TRIAL) for process in processes(kind)}
    busy = [node for node in cluster.worker_nodes if node.all_processes["raylet"][0].process.pid in working]
    cluster.remove_node(dice.choice(sorted(busy, key=lambda node: node.unique_id)), allow_graceful=False)
    return {"killed": "node"}


NODE = {"num_cpus": 2, "object_store_memory": 80 << 20}


def train(case: str, folder: Path, dice: random.Random) -> dict[str, Any]:
    """`run_experiment` on three worker nodes, of which two would do."""
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "object_store_memory": 80 << 20})
    for _ in range(3):
        cluster.add_node(**NODE)
    ray.init(address=cluster.address, log_to_driver=False, logging_level="error")
    try:
        workers = {"env_runner": (2, 0), "learner": (0, 2), "node": (2, 1)}[case]
        made = config_from_dict(config(*workers))
        run_experiment(made, folder / "calm", quiet=True)
        strikes: dict[str, Callable[[], dict[str, Any]]] = {
            "env_runner": lambda: kill_one(RUNNER, dice),
            "learner": lambda: kill_one(LEARNER, dice),
            "node": lambda: lose_node(cluster, dice),
        }
        told = disturb(folder / "disturbed", dice, strikes[case])
        began = time.monotonic()
        run_experiment(made, folder / "disturbed", quiet=True)
        return {**told, "seconds": time.monotonic() - began, "calm": figures(folder / "calm"), "disturbed": figures(folder / "disturbed")}
    finally:
        ray.shutdown()
        cluster.shutdown()


def main() -> None:
    """Run a case and print its outcome as the last line."""
    case, folder, seed = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    outcome = train(case, folder, random.Random(f"{case} {seed}"))
    print(json.dumps(outcome))


if __name__ == "__main__":
    main()
