"""Seconds and memory of one iteration of each learning rule in the published graph isomorphism setting, in turns with PPO's in one run.

    python benchmarks/algorithms_gi.py
    python benchmarks/algorithms_gi.py --rules pspg psos --iterations 5

Memory is the peak of a process of its own for each rule, after as many iterations. Prints medians and spreads, ratios to PPO, and the
machine's yardstick.
"""

import argparse
import json
import resource
import statistics
import subprocess
import sys

import torch
from _common import config, machine, show, timed, yardstick_ms

from nip_ray.rllib.cluster import build_algorithm
from nip_ray.runs.experiment import prepare_process

RULES = ("reinforce", "spg", "pspg", "lola", "pola", "sos", "psos")


def main() -> None:
    """Time all, then weigh each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rules", nargs="*", default=RULES)
    parser.add_argument("--iterations", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--weigh", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    prepare_process(arguments.threads)
    if arguments.weigh:
        weigh(arguments.weigh, arguments.threads)
        return
    print(machine())
    names = ["gi_published", *(f"{rule}_gi" for rule in arguments.rules)]
    algorithms = {name: build_algorithm(config(name)) for name in names}
    torch.set_num_threads(arguments.threads)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for iteration in range(arguments.iterations + 1):
        for name, algorithm in algorithms.items():
            found = timed(algorithm.train)
            if iteration:  # the first one warms up
                seconds[name].append(found)
    ppo_mb = memory("gi_published", arguments.threads)
    for name in names:
        median = statistics.median(seconds[name])
        peak = memory(name, arguments.threads)
        ratio = statistics.median(s / p for s, p in zip(seconds[name], seconds["gi_published"], strict=True))
        figures = {"median_s": round(median, 3), "spread_s": [round(min(seconds[name]), 3), round(max(seconds[name]), 3)]}
        show(name, {**figures, "ratio_to_ppo": round(ratio, 2), "peak_memory_mb": peak, "memory_ratio": round(peak / ppo_mb, 2)})
    show("machine", {"yardstick_after_ms": round(yardstick_ms(), 1)})


def memory(name: str, threads: int) -> int:
    """Peak memory in MB of a process that trains two iterations."""
    command = [sys.executable, __file__, "--weigh", name, "--threads", str(threads)]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1])["mb"]


def weigh(name: str, threads: int) -> None:
    """Train two iterations and print this process's peak memory."""
    algorithm = build_algorithm(config(name))
    torch.set_num_threads(threads)
    for _ in range(2):
        algorithm.train()
    print(json.dumps({"mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)}))


if __name__ == "__main__":
    main()
