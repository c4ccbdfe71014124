"""The drivers' benchmarks in one command: env steps a second on CartPole-v1, and seconds to a mean return of 475.

python benchmarks/drivers.py

PPO with two nets of 2 x 64 tanh, 2048 transitions an update, 8 passes of 2 parts. Starting Ray and its processes is not
counted. Learners of the parallel driver have a thread each; otherwise torch has --threads. Figures are medians of
--repeat measurements. `seed` is the result of skrl, whose trainers these drivers follow, on two quiet cores;
`times_seed` is the ratio, which is only meaningful on an equally fast and quiet machine. With --beside skrl is measured
after each of ours; `times_beside` is the median ratio of the two. Time to threshold: mean of the last 50 training
episodes, 16 copies, seeds 0 to 2, `tune_configs/runner_cartpole.yaml`; --no-solve leaves it out.
"""

import argparse
import os
import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import drivers_beside
import torch
from _common import machine, show

from nip_ray.drivers.runner import make_driver
from nip_ray.drivers.spec import load_runner, parse_runner

ROOT = Path(__file__).resolve().parents[1]
WARM_UP = 2  # updates
SEED_SOLVES_S = {0: 18.8, 1: 57.9, 2: 17.3}


@dataclass(frozen=True)
class Case:
    """One driver with a number of copies. seed: the reference's env steps a second (None: it has no such driver)."""

    driver: str
    copies: int
    learners: int = 1
    shared: bool = False
    seed: int | None = None

    @property
    def title(self) -> str:
        """A title for readers."""
        shared = ", one environment" if self.shared else ""
        return (
            f"drivers: {self.driver}, {self.copies} copies, {self.learners} learner{'s' * (self.learners > 1)}{shared}"
        )


CASES = [
    Case("sequential", 16, seed=21_850),
    Case("sequential", 64, seed=32_700),
    Case("step", 64, seed=34_800),
    Case("manual", 64),
    Case("sequential", 16, 2, seed=14_550),
    Case("sequential", 64, 2, seed=22_640),
    Case("sequential", 64, 2, shared=True, seed=22_640),
    Case("parallel", 16, 2, seed=2_130),
    Case("parallel", 64, 2, seed=6_390),
    Case("parallel", 64, 2, shared=True, seed=6_390),
]


def main() -> None:
    """Measure everything."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--updates", type=int, default=40, help="measured updates a repetition")
    parser.add_argument("--threads", type=int, default=2, help="torch threads of this process")
    parser.add_argument("--only", default="", help="cases whose title contains this")
    parser.add_argument(
        "--beside", action="store_true", help="measure skrl's sequential trainer, too (see drivers_beside.py)"
    )
    parser.add_argument("--no-solve", action="store_true", help="speeds alone")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    print(machine(), f"load {os.getloadavg()[0]:.1f}", sep=", ")
    cases = [case for case in CASES if arguments.only in case.title]
    for case in cases:
        rates, ratios = [], []
        for _ in range(arguments.repeat):
            rates.append(rate(case, arguments.updates))
            if arguments.beside and case.driver == "sequential":
                ratios.append(rates[-1] / drivers_beside.rate(case.copies, case.learners, arguments.updates))
        value = statistics.median(rates)
        figures: dict[str, Any] = {
            "env_steps_per_s": round(value),
            "least": round(min(rates)),
            "most": round(max(rates)),
        }
        if case.seed is not None:
            figures |= {"seed": case.seed, "times_seed": round(value / case.seed, 2)}
        if ratios:
            figures |= {
                "times_beside": round(statistics.median(ratios), 2),
                "beside_each": [round(ratio, 2) for ratio in ratios],
            }
        show(case.title, figures)
    if not arguments.no_solve:
        for seed, reference in SEED_SOLVES_S.items():
            show(f"drivers: CartPole to 475, seed {seed}", {**solved(seed), "seed_s": reference})
    print(f"load {os.getloadavg()[0]:.1f}")


def rate(case: Case, updates: int) -> float:
    """Env steps a second after the warm-up. Each learner has 2048 transitions per update; learners together make
    `updates` of them."""
    rollouts = 2048 * case.learners // case.copies
    timesteps = rollouts * (WARM_UP + max(1, updates // case.learners))
    data: dict[str, Any] = {
        "environment": {"num_copies": case.copies, "shared": case.shared},
        "learners": [{"algorithm": {"rollouts": rollouts}}] * case.learners,
        "driver": {"name": case.driver, "timesteps": timesteps},
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
    figures = {
        "env_steps": driver.env_steps,
        "seconds": round(time.perf_counter() - start, 1),
        "mean_return": sum(returns) / len(returns),
    }
    driver.close()
    return figures


if __name__ == "__main__":
    main()
