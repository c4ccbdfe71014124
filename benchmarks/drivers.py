"""Env steps a second of the drivers on CartPole-v1, and seconds to a mean return of 475. Without --solve, speeds alone.

python benchmarks/drivers.py --solve

PPO with two nets of 2 x 64 tanh, 2048 transitions an update, 8 passes of 2 parts. Starting Ray and its processes is not counted.
Time to threshold: mean of the last 50 training episodes, 16 copies, seeds 0 to 2, `tune_configs/runner_cartpole.yaml`.
"""

import argparse
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from _common import machine, show

from nip_ray.drivers.runner import make_driver
from nip_ray.drivers.spec import load_runner, parse_runner

ROOT = Path(__file__).resolve().parents[1]
WARM_UP = 2  # updates


def main() -> None:
    """Measure what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--updates", type=int, default=40, help="measured updates a repetition")
    parser.add_argument("--threads", type=int, default=2, help="torch threads of this process")
    parser.add_argument("--solve", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    print(machine())
    cases = [("sequential", 16, 1), ("sequential", 64, 1), ("step", 64, 1), ("manual", 64, 1)]
    cases += [("sequential", 16, 2), ("sequential", 64, 2), ("parallel", 16, 2), ("parallel", 64, 2)]
    for shared in (False, True):
        for driver, copies, learners in cases:
            if not shared or learners > 1:
                found = [rate(driver, copies, learners, shared, arguments.updates) for _ in range(arguments.repeat)]
                title = f"drivers: {driver}, {copies} copies, {learners} learners{', one environment' if shared else ''}"
                show(title, {"env_steps_per_s": round(statistics.median(found)), "least": round(min(found)), "most": round(max(found))})
    if arguments.solve:
        for seed in range(3):
            show(f"drivers: CartPole to 475, seed {seed}", solved(seed))


def rate(driver: str, copies: int, learners: int, shared: bool, updates: int) -> float:
    """Env steps a second after the warm-up. Each learner has 2048 transitions an update; learners together make `updates` of them."""
    rollouts = 2048 * learners // copies
    timesteps = rollouts * (WARM_UP + max(1, updates // learners))
    data: dict[str, Any] = {
        "environment": {"num_copies": copies, "shared": shared},
        "learners": [{"algorithm": {"rollouts": rollouts}}] * learners,
        "driver": {"name": driver, "timesteps": timesteps},
    }
    made = make_driver(parse_runner(data), quiet=True)
    try:
        made.train(WARM_UP * rollouts)
        before, start = made.env_steps, time.perf_counter()
        made.train()
        return (made.env_steps - before) / (time.perf_counter() - start)
    finally:
        made.close()


def solved(seed: int) -> dict[str, Any]:
    """Env steps and seconds until the mean of the last 50 episodes of training is 475."""
    driver: Any = make_driver(load_runner(ROOT / "tune_configs" / "runner_cartpole.yaml", [f"seed={seed}"]), quiet=True)
    returns: list[float] = []
    start = time.perf_counter()
    while driver.timestep < driver.settings.timesteps:
        driver.train(driver.timestep + 16)
        finished = driver.core.learners[0].statistics.finished
        returns = (returns + [gain for _, gain, _ in finished])[-50:]
        finished.clear()
        if len(returns) == 50 and sum(returns) / 50 >= 475:
            break
    figures = {"env_steps": driver.env_steps, "seconds": round(time.perf_counter() - start, 1), "mean_return": sum(returns) / len(returns)}
    driver.close()
    return figures


if __name__ == "__main__":
    main()
