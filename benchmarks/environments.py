"""Speed of the environments for learners of other libraries, by number of copies: message game, uniform legal actions,
no learning.

    python benchmarks/environments.py
"""

import argparse
import statistics
import time
from typing import Any

import numpy as np
import torch

import nip_ray.vector


def main() -> None:
    """Numbers of copies in turns, `--repeats` times."""
    from _common import ROOT, machine, show  # beside this file, not visible to tests

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--copies", type=int, nargs="+", default=[1, 64, 256, 1024])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print(machine())
    config = ROOT / "tune_configs" / "message_game.yaml"
    made = {copies: nip_ray.vector.parallel(config, copies) for copies in arguments.copies}
    rates: dict[int, list[float]] = {copies: [] for copies in made}
    for _ in range(arguments.repeats):
        for copies, env in made.items():
            rates[copies].append(rounds_per_s(env, arguments.seconds))
    for copies, found in rates.items():
        show(f"{copies} copies", {"rounds_per_s": statistics.median(found), "least": min(found), "most": max(found)})


def rounds_per_s(env: Any, seconds: float) -> float:
    """Rounds of all copies in a second, drawing the actions included."""
    random = np.random.default_rng(0)
    seen, _ = env.reset(seed=0)
    began, rounds = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        actions = {agent: drawn(env.copies.sizes[agent], one["action_mask"], random) for agent, one in seen.items()}
        seen, *_ = env.step(actions)
        rounds += env.num_copies
    return rounds / (time.perf_counter() - began)


def drawn(sizes: list[int], mask_BS: Any, random: np.random.Generator) -> Any:
    """(B, factors): uniform legal choices."""
    noise_BS = np.where(mask_BS == 1, random.random(mask_BS.shape), -1)
    return np.stack([part.argmax(1) for part in np.split(noise_BS, np.cumsum(sizes)[:-1], 1)], 1)


if __name__ == "__main__":
    main()
