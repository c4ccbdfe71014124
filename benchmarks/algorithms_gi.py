"""Seconds and memory of one iteration of each learning rule in the published graph isomorphism setting, in turns with
PPO's in one run.

    python benchmarks/algorithms_gi.py
    python benchmarks/algorithms_gi.py --rules pspg psos --iterations 5

Memory is the peak of a separate process for each rule while it trains two iterations, and its increase (Linux). Prints
medians and spreads, ratios to PPO, and the machine's yardstick.
"""

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path

import torch
from _common import config, in_turns, machine, show, yardstick_ms

from nip_ray.cluster.process import prepare_process
from nip_ray.rllib.cluster import build_algorithm

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
    seconds = in_turns({name: algorithm.train for name, algorithm in algorithms.items()}, arguments.iterations)
    ppo = memory("gi_published", arguments.threads)
    for name in names:
        median = statistics.median(seconds[name])
        peak = memory(name, arguments.threads)
        ratio = statistics.median(s / p for s, p in zip(seconds[name], seconds["gi_published"], strict=True))
        figures = {
            "median_s": round(median, 3),
            "spread_s": [round(min(seconds[name]), 3), round(max(seconds[name]), 3)],
        }
        ratios = {
            "ratio_to_ppo": round(ratio, 2),
            "memory_ratio": round(peak["peak_memory_mb"] / ppo["peak_memory_mb"], 2),
        }
        show(
            name, {**figures, **peak, **ratios, "growth_ratio": round(peak["growth_mb"] / max(1, ppo["growth_mb"]), 2)}
        )
    show("machine", {"yardstick_after_ms": round(yardstick_ms(), 1)})


def memory(name: str, threads: int) -> dict[str, int]:
    """Peak memory of a process that trains two iterations, and its growth meanwhile, in MB."""
    command = [sys.executable, __file__, "--weigh", name, "--threads", str(threads)]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1])


def weigh(name: str, threads: int) -> None:
    """Train two iterations and print this process's peak memory meanwhile."""
    algorithm = build_algorithm(config(name))
    torch.set_num_threads(threads)
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak of making the data
    before = status_mb("VmRSS")
    for _ in range(2):
        algorithm.train()
    peak = status_mb("VmHWM")
    print(json.dumps({"peak_memory_mb": peak, "growth_mb": peak - before}))


def status_mb(field: str) -> int:
    """A size of this process, from its status file."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field))
    return int(line.split()[1]) // 1024


if __name__ == "__main__":
    main()
