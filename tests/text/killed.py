"""Runs a config again and again, killing the process at random moments of its work, until a run gets to its end.

    python -m tests.text.killed CONFIG RUN_DIR KILLS SEED

What is imported is imported once: each run is a fork. Prints one JSON line: kills, failures (runs that stopped by
themselves), resumed_s (from each fork to its first call or its end).
"""

import json
import os
import random
import signal
import sys
import threading
import time
from pathlib import Path

import nip_ray.runs.experiment
import nip_ray.text.providers.openai
import nip_ray.text.training.trainer
from nip_ray.config.load import load_config
from nip_ray.errors import TrainingError

OVER, STOPPED = 0, 3


def work(config: Path, run_dir: Path) -> int:
    """One run, from the start or from where the last one was."""
    try:
        if (run_dir / "config.yaml").is_file():
            nip_ray.runs.experiment.resume_experiment(run_dir, quiet=True)
        else:
            nip_ray.runs.experiment.run_experiment(load_config(config), run_dir, quiet=True)
    except TrainingError as error:
        print(f"stopped: {error}", file=sys.stderr)
        return STOPPED
    return OVER


def kill_after(delay_s: float) -> None:
    """End this process as a power failure would, so long after its run folder was first written to."""

    def wait_and_kill() -> None:
        time.sleep(delay_s)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=wait_and_kill, daemon=True).start()


def forked(config: Path, run_dir: Path, delay_s: float | None) -> int:
    """The wait status of a run that is killed after `delay_s`."""
    child = os.fork()
    if child:
        return os.waitpid(child, 0)[1]
    try:
        if delay_s is not None:
            kill_after(delay_s)
        code = work(config, run_dir)
        sys.stderr.flush()
        os._exit(code)
    except BaseException as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
        os._exit(1)


def main(config: Path, run_dir: Path, kills: int, seed: int) -> None:
    """Kill until it has been done often enough, then let it end."""
    chance, killed, failures = random.Random(seed), 0, 0
    while True:
        status = forked(config, run_dir, chance.uniform(0.05, 1.0) if killed < kills else None)
        if os.WIFSIGNALED(status):
            killed += 1
        elif os.WEXITSTATUS(status) == STOPPED:
            failures += 1
        else:
            print(json.dumps({"kills": killed, "failures": failures, "exit": os.WEXITSTATUS(status)}))
            return


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
