"""The batched core and the PPO update on one device, without Ray: message game and the published graph isomorphism
setting.

    python benchmarks/gpu_core.py --copies 512 4096 16384      # on a GPU if there is one: every row, by one command
    python benchmarks/gpu_core.py --device cpu                 # the same on the CPU

Needs torch, pydantic and PyYAML. A row for each way, in turns: eager, and with --compile networks in torch.compile.
Medians of play and of learning, kernels per round and per gradient step, and the speed-up over eager.
"""

import argparse
import statistics
from typing import Any

import torch
from _common import PlainLoop, config, kernels, machine, show, timed


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
    if arguments.device.startswith("cuda"):
        print(torch.cuda.get_device_name(arguments.device))
    for name in arguments.configs:
        for copies in arguments.copies:
            measure(name, copies, arguments)


def measure(name: str, copies: int, arguments: argparse.Namespace) -> None:
    """All ways of one setting at one size."""
    sizes = [f"play.num_copies={copies}", f"algorithm.minibatch_size={2 * copies}"]
    experiment = config(name, *sizes, *([] if name == "message_game" else ["scenario.kernels=torch"]))
    loops = {"eager": PlainLoop(experiment, arguments.device)}
    if arguments.compile:
        loops["compiled"] = PlainLoop(experiment, arguments.device)
        loops["compiled"].agents = {
            agent: torch.compile(network) for agent, network in loops["compiled"].agents.items()
        }
    counts = {way: kernels(loop) if way != "compiled" else {} for way, loop in loops.items()}
    taken: dict[str, list[tuple[float, float, int]]] = {way: [] for way in loops}
    for iteration in range(arguments.iterations + 2):
        for way, loop in loops.items():
            found = iterate(loop, arguments.device)
            if iteration > 1:
                taken[way].append(found)
    seconds = {way: [statistics.median(column) for column in zip(*rows, strict=True)] for way, rows in taken.items()}
    for way, (sample_s, learn_s, steps) in seconds.items():
        figures: dict[str, Any] = {"device": arguments.device, "copies": copies, "way": way, **counts[way]}
        figures |= {"sample_s": round(sample_s, 4), "learn_s": round(learn_s, 4)}
        figures |= {
            "env_steps_per_s": round(steps / (sample_s + learn_s)),
            "play_env_steps_per_s": round(steps / sample_s),
        }
        show(name, {**figures, "times_eager": round(sum(seconds["eager"][:2]) / (sample_s + learn_s), 2)})


def iterate(loop: PlainLoop, device: str) -> tuple[float, float, int]:
    """Seconds of play, seconds of learning, and rounds played."""
    rollouts = []

    def sample() -> None:
        rollouts.append(loop.sample())
        synchronise(device)

    def learn() -> None:
        loop.learn(rollouts[0])
        synchronise(device)

    played, learned = timed(sample), timed(learn)
    return played, learned, rollouts[0].env_steps()


def synchronise(device: str) -> None:
    """Wait for the device."""
    if device.startswith("cuda"):
        torch.cuda.synchronize()


if __name__ == "__main__":
    main()
