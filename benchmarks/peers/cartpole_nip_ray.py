"""CartPole by our drivers: `nip-ray run tune_configs/runner_cartpole.yaml` without its files, or with the driver or the
algorithm of --variant. What a user writes is that config."""

from pathlib import Path
from typing import Any

import torch
from _clock import Clock

from nip_ray.drivers.runner import make_driver
from nip_ray.drivers.spec import load_runner, parse_runner

CONFIG = Path(__file__).resolve().parents[2] / "tune_configs" / "runner_cartpole.yaml"
LOSSES = {"dqn": "l2", "dqn_huber": "smooth_l1"}
"""Variant of DQN -> its loss."""

clock = Clock("nip_ray", "torch", "gymnasium", window=50)
torch.set_num_threads(1)
if clock.variant in LOSSES:
    algorithm = {"name": "dqn", "double": False, "loss": LOSSES[clock.variant]}
    settings = parse_runner(
        {
            "seed": clock.seed,
            "environment": {"num_copies": 16},
            "learners": [{"name": "dqn", "algorithm": algorithm}],
            "driver": {"timesteps": 6250},
            "evaluation": {"timesteps": 0},
        }
    )
else:
    settings = load_runner(CONFIG, [f"seed={clock.seed}", f"driver.name={clock.variant or 'sequential'}"])
driver: Any = make_driver(settings, quiet=True)
clock.start()
while driver.timestep < driver.settings.timesteps:
    driver.train(driver.timestep + 64)
    finished = driver.core.learners[0].statistics.finished
    returns = [gain for _, gain, _ in finished]
    finished.clear()
    if not clock.goes_on(64 * 16, returns):
        break
clock.show()
driver.close()
