"""Iterations of one experiment under two settings, in turns, in one process.

    python benchmarks/compare_settings.py --one scenario.kernels=torch --other scenario.kernels=native
    python benchmarks/compare_settings.py --other runtime.num_threads=1 --both scenario.kernels=torch

Prints the medians, the spread (smallest to largest) and the median of the ratios (of the first to the second, above 1
if the second is faster). All agents always learn.
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
    for which, help_ in (("one", "the first, as key=value ..."), ("other", "the second"), ("both", "what both have")):
        parser.add_argument(f"--{which}", nargs="*", default=[], metavar="KEY=VALUE", help=help_)
    arguments = parser.parse_args()
    prepare_process(arguments.threads)
    print(machine())
    both = ["schedules={}", *arguments.both]
    algorithms = {
        which: build_algorithm(config(arguments.config, *both, *getattr(arguments, which)))
        for which in ("one", "other")
    }
    torch.set_num_threads(arguments.threads)
    seconds = in_turns({which: algorithm.train for which, algorithm in algorithms.items()}, arguments.iterations)
    figures = {f"{which}_s": round(statistics.median(taken), 3) for which, taken in seconds.items()}
    spread = {f"{which}_spread_s": [round(min(taken), 3), round(max(taken), 3)] for which, taken in seconds.items()}
    ratio = statistics.median(one / other for one, other in zip(seconds["one"], seconds["other"], strict=True))
    what = (
        f"{arguments.config}, {arguments.threads} threads, {' '.join(arguments.one)} against"
        f" {' '.join(arguments.other)}"
    )
    show(what, {**figures, **spread, "ratio": round(ratio, 2)})
    for algorithm in algorithms.values():
        algorithm.stop()


if __name__ == "__main__":
    main()
