"""Seconds from `nip-ray train` to the first row of metrics, in a process of its own.

python benchmarks/first_row.py --config gi_published --repeat 5
"""

import argparse
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

from _common import NIP_RAY, ROOT, machine, show


def main() -> None:
    """Time it several times."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", default="gi_published")
    parser.add_argument("--repeat", type=int, default=5)
    arguments = parser.parse_args()
    print(machine())
    seconds = [first_row(arguments.config) for _ in range(arguments.repeat)]
    show(
        f"first row of {arguments.config}",
        {
            "median_s": round(statistics.median(seconds), 2),
            "spread_s": [round(min(seconds), 2), round(max(seconds), 2)],
        },
    )


def first_row(name: str) -> float:
    """Seconds until `metrics.jsonl` has a row."""
    with tempfile.TemporaryDirectory() as folder:
        rows = Path(folder) / "run" / "metrics.jsonl"
        command = [NIP_RAY, "train", str(ROOT / "tune_configs" / f"{name}.yaml")]
        start = time.perf_counter()
        process = subprocess.Popen([*command, "--run-dir", str(rows.parent), "--iterations", "2", "--quiet"])
        try:
            while not (rows.exists() and rows.stat().st_size):
                if process.poll() is not None:
                    raise RuntimeError(f"nip-ray ended with {process.returncode} before its first row")
                time.sleep(0.02)
            return time.perf_counter() - start
        finally:
            process.wait()


if __name__ == "__main__":
    main()
