"""The batched core and the PPO update on one device, without Ray: message game and the published graph isomorphism setting.

    python benchmarks/gpu_core.py --device cuda --copies 512 4096 16384
    python benchmarks/gpu_core.py --device cpu

Needs torch, pydantic and PyYAML. Times play and learning apart, eager; --compile wraps the agents' networks in torch.compile.
"""

import argparse
import statistics

import torch
from _common import PlainLoop, config, machine, show, timed


def main() -> None:
    """Time every setting at every size."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--copies", type=int, nargs="+", default=[512])
    parser.add_argument("--configs", nargs="+", default=["message_game", "gi_published"])
    parser.add_argument("--iterations", type=int, default=5)
    parser.add_argument("--compile", action="store_true")
    arguments = parser.parse_args()
    print(machine())
    for name in arguments.configs:
        for copies in arguments.copies:
            experiment = config(name, f"play.num_copies={copies}", f"algorithm.minibatch_size={2 * copies}")
            measure(name, PlainLoop(experiment, arguments.device), arguments)


def measure(name: str, loop: PlainLoop, arguments: argparse.Namespace) -> None:
    """Medians of play and of learning."""
    if arguments.compile:
        loop.agents = {agent: torch.compile(network) for agent, network in loop.agents.items()}
    played, learned, steps = [], [], []

    def sample() -> None:
        loop.rollout = loop.sample()
        synchronise(arguments.device)

    def learn() -> None:
        loop.learn(loop.rollout)
        synchronise(arguments.device)

    for iteration in range(arguments.iterations + 1):
        seconds = timed(sample), timed(learn)
        if iteration:
            played.append(seconds[0])
            learned.append(seconds[1])
            steps.append(loop.rollout.env_steps())
    sample_s, learn_s = statistics.median(played), statistics.median(learned)
    show(
        name,
        {
            "device": arguments.device,
            "copies": loop.config.play.num_copies,
            "compiled": arguments.compile,
            "sample_s": round(sample_s, 4),
            "learn_s": round(learn_s, 4),
            "env_steps_per_s": round(statistics.median(steps) / (sample_s + learn_s)),
            "play_env_steps_per_s": round(statistics.median(steps) / sample_s),
        },
    )


def synchronise(device: str) -> None:
    """Wait for the device."""
    if device.startswith("cuda"):
        torch.cuda.synchronize()


if __name__ == "__main__":
    main()
