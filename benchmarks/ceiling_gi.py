"""One PPO iteration through RLlib against a plain torch loop of equal mathematics, in one run, in turns.

    python benchmarks/ceiling_gi.py                        # the published graph isomorphism setting, ended as played
    python benchmarks/ceiling_gi.py --full                 # the same with copies that play (nearly) all rounds
    python benchmarks/ceiling_gi.py --config message_game  # the message game

Prints medians and the spread (smallest to largest), their ratio, the machine's yardstick before and after, and the
machine's limits for comparison: operations in products, also per second, kernels per gradient step (both by torch's own
kernels), and one large product.
"""

import argparse
import resource
import statistics

import torch
from _common import PlainLoop, config, machine, peak_gflops, show, timed, work, yardstick_ms

from nip_ray.cluster.process import prepare_process
from nip_ray.config.experiment import ExperimentConfig
from nip_ray.rllib.cluster import build_algorithm


def main() -> None:
    """Time both in turns."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", default="gi_published")
    parser.add_argument("--iterations", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--full", action="store_true")
    arguments = parser.parse_args()
    overrides = ["protocol.min_rounds=7"] if arguments.full else []
    experiment = config(arguments.config, *overrides)
    prepare_process(arguments.threads)
    print(machine())
    algorithm, plain = build_algorithm(experiment), PlainLoop(experiment)
    torch.set_num_threads(arguments.threads)
    ours, theirs, steps = [], [], []
    for iteration in range(arguments.iterations + 1):
        seconds = timed(algorithm.train)
        plain_seconds = timed(lambda: plain.learn(plain.sample()))
        if iteration:  # the first one warms up
            ours.append(seconds)
            theirs.append(plain_seconds)
            steps.append(algorithm.row["env_steps"])
    median, asked = statistics.median(ours), work(config(arguments.config, *overrides, *uncompiled(experiment)))
    show(
        arguments.config + (" --full" if arguments.full else ""),
        {
            "rllib_s": round(median, 4),
            "rllib_spread_s": [round(min(ours), 4), round(max(ours), 4)],
            "plain_s": round(statistics.median(theirs), 4),
            "plain_spread_s": [round(min(theirs), 4), round(max(theirs), 4)],
            "ratio_of_speeds": round(statistics.median(p / o for p, o in zip(theirs, ours, strict=True)), 3),
            "env_steps": statistics.median(steps),
            "env_steps_per_s": round(statistics.median(steps) / median),
            "peak_memory_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
            **asked,
            "gflop_per_s": round(asked["gflop"] / median, 1),
            "peak_gflop_per_s": round(peak_gflops()),
            "yardstick_after_ms": round(yardstick_ms(), 1),
        },
    )


def uncompiled(experiment: ExperimentConfig) -> list[str]:
    """Overrides that make an experiment compute by torch alone, so that everything is counted."""
    return ["scenario.kernels=torch"] if hasattr(experiment.scenario, "kernels") else []


if __name__ == "__main__":
    main()
