"""Minutes until a verifier of graph isomorphism reaches the published held-out accuracy: `gi_fast.yaml` on the
published test split, new seeds.

    python benchmarks/headline.py --test PUBLISHED_TEST.npz --seeds 100 101 102 103 104

Everything counts from the start of `nip-ray train` on: imports, making pairs, pretraining, evaluations. A seed is done
when greedy held-out accuracy (undecided counted as wrong) has been at least 0.945, the published figure, at three
evaluations running, of which there is one every ten iterations; its time is that of the first of the three. A run that
does not reach it is shown with its accuracy.
"""

import argparse
import json
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from _common import NIP_RAY, ROOT, machine, show

KEY, GOAL, RUNNING = "eval/verifier/accuracy", 0.945, 3


def main() -> None:
    """Seed by seed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--test", type=Path, required=True, help="The published test split.")
    parser.add_argument("--seeds", type=int, nargs="+", default=[100, 101, 102, 103, 104])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--set", action="append", default=[], help="Further settings.")
    arguments = parser.parse_args()
    settings = [
        f"scenario.data.test={arguments.test.resolve()}",
        f"runtime.num_threads={arguments.threads}",
        "evaluation.interval=10",
    ]
    for seed in arguments.seeds:
        print(machine())
        show(f"headline, seed {seed}", until_right(seed, [*settings, *arguments.set]))


def until_right(seed: int, settings: list[str]) -> dict[str, Any]:
    """Minutes, or none if the run ended without it; and held-out accuracy at each evaluation."""
    with tempfile.TemporaryDirectory() as folder:
        rows = Path(folder) / "run" / "metrics.jsonl"
        command = [NIP_RAY, "train", str(ROOT / "tune_configs" / "gi_fast.yaml")]
        options = [part for setting in (*settings, f"seed={seed}") for part in ("--set", setting)]
        start = time.perf_counter()
        process = subprocess.Popen([*command, *options, "--run-dir", str(rows.parent), "--quiet"])
        seen: list[tuple[float, float]] = []
        try:
            while True:
                ended = process.poll()
                lines = rows.read_text().splitlines(keepends=True) if rows.exists() else []
                found = [row[KEY] for line in lines if line.endswith("\n") and KEY in (row := json.loads(line))]
                seen += [(time.perf_counter() - start, accuracy) for accuracy in found[len(seen) :]]
                right = [
                    all(accuracy >= GOAL for _, accuracy in seen[i : i + RUNNING])
                    for i in range(len(seen) - RUNNING + 1)
                ]
                accuracies = [accuracy for _, accuracy in seen]
                if any(right):
                    return {"minutes": round(seen[right.index(True)][0] / 60, 2), "accuracy": accuracies}
                if ended is not None:
                    minutes = round((time.perf_counter() - start) / 60, 2)
                    return {"minutes": None, "ended_after": minutes, "exit": ended, "accuracy": accuracies}
                time.sleep(0.5)
        finally:
            process.terminate()
            process.wait()


if __name__ == "__main__":
    main()
