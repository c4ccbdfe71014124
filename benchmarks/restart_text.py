"""Seconds from `nip-ray resume` of a killed run of language agents to its first new reply.

    python benchmarks/restart_text.py [--repeats 3]

The run is `ei_cv_offline.yaml` with few dialogues: its local model has to be loaded and Ray to be restarted. The
process is killed with SIGKILL in the middle of a sampling.
"""

import argparse
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from _common import ROOT, machine, show, yardstick_ms

CONFIG = ROOT / "tune_configs" / "ei_cv_offline.yaml"
SMALL = ("rollouts_per_iteration=200", "format_warmup=0", "test_scheme=none")


def main() -> None:
    """Start, kill, resume; several times."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    print(machine())
    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder) / "run"
        settings = [part for name in SMALL for part in ("--set", f"algorithm.{name}")]
        until_reply(
            ["train", str(CONFIG), "--run-dir", str(run_dir), "--set", "scenario.data.num_train=20", *settings], run_dir
        )
        seconds = [until_reply(["resume", str(run_dir)], run_dir) for _ in range(arguments.repeats)]
    median, spread = statistics.median(seconds), [round(min(seconds), 2), round(max(seconds), 2)]
    show("resume to first new reply", {"median_s": round(median, 2), "spread_s": spread})
    show("machine", {"yardstick_after_ms": round(yardstick_ms(), 1)})


def until_reply(command: list[str], run_dir: Path) -> float:
    """Seconds until there is one more reply; the process is then killed."""
    before, began = replies(run_dir), time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "nip_ray.cli", *command, "-q"],
        cwd=ROOT,
        start_new_session=True,
        stderr=subprocess.DEVNULL,
    )
    try:
        while replies(run_dir) <= before:
            if process.poll() is not None:
                raise SystemExit(f"nip-ray {command[0]} ended with {process.returncode} before it was killed")
            time.sleep(0.02)
        return time.perf_counter() - began
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        time.sleep(2)  # Ray's processes notice and exit


def replies(run_dir: Path) -> int:
    """The number of recorded replies."""
    return sum(
        line.count(b'"event":"reply"')
        for path in run_dir.glob("calls/*.jsonl")
        for line in path.read_bytes().splitlines()
    )


if __name__ == "__main__":
    main()
