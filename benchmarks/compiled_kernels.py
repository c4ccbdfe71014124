"""Iterations of PPO with graph networks by torch's kernels and by compiled ones (`scenario.kernels`), in turns.

    python benchmarks/compiled_kernels.py --config gi_published --threads 2

Prints the medians, the spread (smallest to largest) and the median of the ratios.
"""

import argparse
import statistics

import torch
from _common import config, in_turns, machine, show

from nip_ray.cluster.process import prepare_process
from nip_ray.rllib.cluster import build_algorithm


def main() -> None:
    """Time both in turns."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", default="gi_published")
    parser.add_argument("--iterations", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    prepare_process(arguments.threads)
    print(machine())
    algorithms = {
        kernels: build_algorithm(config(arguments.config, f"scenario.kernels={kernels}", "schedules={}")) for kernels in ("torch", "native")
    }
    torch.set_num_threads(arguments.threads)
    seconds = in_turns({kernels: algorithm.train for kernels, algorithm in algorithms.items()}, arguments.iterations)
    figures = {f"{kernels}_s": round(statistics.median(taken), 3) for kernels, taken in seconds.items()}
    spread = {f"{kernels}_spread_s": [round(min(taken), 3), round(max(taken), 3)] for kernels, taken in seconds.items()}
    ratio = statistics.median(torchs / ours for torchs, ours in zip(seconds["torch"], seconds["native"], strict=True))
    show(f"compiled kernels, {arguments.config}, {arguments.threads} threads", {**figures, **spread, "ratio": round(ratio, 2)})


if __name__ == "__main__":
    main()
