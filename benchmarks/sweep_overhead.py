"""Tune's overhead per iteration: one config through a plain loop in this process, and through the Tuner as the one
trial of a sweep.

Seconds an iteration are wall clock between the rows of metrics.jsonl, so everything between two iterations counts: the
report, the scheduler, the checkpoint. `inside_s` is the median of time/iteration_s, `between_s` the rest of the median
step from one row to the next. Evaluations and checkpoints are as in the config, alike in both ways. The two ways take
turns; the result is the median over `--repeat` pairs.

python benchmarks/sweep_overhead.py --configs gi_published message_game --iterations 20 --repeat 3 --json overhead.json
"""

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from _common import config, machine, show

from nip_ray.config.experiment import ExperimentConfig
from nip_ray.config.load import config_to_yaml
from nip_ray.runs.session import Session
from nip_ray.storage.folder import METRICS, RunFolder
from nip_ray.sweeps.run import run_sweep
from nip_ray.sweeps.spec import parse_sweep

WARM_UP = 3
"""Number of iterations of each run that do not count."""
WATCH = """
import json, os, select, sys, time
size, seen = 0, []
while not select.select([sys.stdin], [], [], 0.001)[0]:
    try:
        if os.stat(sys.argv[1]).st_size > size:
            now = time.perf_counter()
            with open(sys.argv[1], "rb") as file:
                file.seek(size)
                new = file.read()
            size += len(new)
            seen += [now] * new.count(bytes([10]))  # a long row can be seen half written
    except OSError:
        pass
print(json.dumps(seen))
"""
"""Notes when a file grows by a row. It polls a thousand times a second, which costs some thousandths of a core."""


def main() -> None:
    """Time both ways and print a table and a JSON line for each config."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--configs", nargs="+", default=["gi_published", "message_game"])
    parser.add_argument("--iterations", type=int, default=20)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--iterations-per-report", type=int, default=1)
    parser.add_argument("--json", type=Path, default=None)
    arguments = parser.parse_args()
    os.environ.setdefault("RAY_AUTH_MODE", "disabled")
    print(machine())
    results = [measured(name, arguments) for name in arguments.configs]
    print(f"{'config':16} {'way':6} {'s/iteration':>12} {'inside':>9} {'between':>9} {'overhead':>9}")
    for result in results:
        for way in ("plain", "tuner"):
            found, over = result[way], f"{result['overhead']:+.1%}" if way == "tuner" else ""
            print(
                f"{result['config']:16} {way:6} {found['step_s']:12.4f} {found['inside_s']:9.4f}"
                f" {found['between_s']:9.4f} {over:>9}"
            )
    for result in results:
        show("sweep overhead", result)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps({"machine": machine(), "results": results}, indent=2) + "\n")


def measured(name: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Both ways of one config. overhead: median over pairs of (tuner - plain) / plain, in seconds an iteration."""
    experiment = config(name, f"iterations={arguments.iterations + WARM_UP}", "runtime.num_threads=1")
    pairs = []
    for _ in range(arguments.repeat):
        with tempfile.TemporaryDirectory() as folder:
            plain = timed_rows(Path(folder) / "plain", lambda path: run_plainly(experiment, path))
            swept = Path(folder) / "sweep"
            tuner = timed_rows(
                swept / "trials" / "00000",
                lambda _, swept=swept: run_as_trial(experiment, swept, arguments.iterations_per_report),
            )
            pairs.append((plain, tuner))
    overheads = [tuner["step_s"] / plain["step_s"] - 1 for plain, tuner in pairs]
    middle = {
        way: {key: statistics.median(pair[i][key] for pair in pairs) for key in pairs[0][i]}
        for i, way in enumerate(("plain", "tuner"))
    }
    return {
        "config": name,
        "overhead": statistics.median(overheads),
        "overheads": [round(x, 4) for x in overheads],
        **middle,
    }


def run_plainly(experiment: ExperimentConfig, path: Path) -> None:
    """The loop that a Tune trial is compared with: only iterations."""
    with RunFolder.create(path, config_to_yaml(experiment)) as folder:
        session = Session(experiment, folder, quiet=True)
        try:
            session.start()
            while not session.over:
                session.step()
        finally:
            session.close()


def run_as_trial(experiment: ExperimentConfig, folder: Path, iterations_per_report: int) -> None:
    """The same as the one trial of a sweep."""
    settings = {"metric": "env_steps_per_s", "iterations_per_report": iterations_per_report}
    run_sweep(parse_sweep({**experiment.model_dump(mode="json"), "sweep": settings}), folder, quiet=True)


def timed_rows(path: Path, run: Callable[[Path], None]) -> dict[str, float]:
    """The time at which each row of the run at `path` appeared, watched by a separate process, while `run(path)` works.

    Returns seconds: step_s between two rows on average, inside_s and between_s as above.
    """
    with subprocess.Popen(
        [sys.executable, "-c", WATCH, str(path / METRICS)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as watcher:
        try:
            run(path)
            out, _ = watcher.communicate("over\n", timeout=30)
        finally:
            watcher.kill()
    seen, rows = json.loads(out), RunFolder.open(path).metrics()
    inside = statistics.median(row["time/iteration_s"] for row in rows[WARM_UP:])
    if len(seen) != len(rows):
        raise RuntimeError(f"{len(rows)} rows, of which {len(seen)} were seen: iterations are too short to be watched")
    steps = [after - before for before, after in itertools.pairwise(seen[WARM_UP - 1 :])]
    return {"step_s": statistics.mean(steps), "inside_s": inside, "between_s": statistics.median(steps) - inside}


if __name__ == "__main__":
    main()
