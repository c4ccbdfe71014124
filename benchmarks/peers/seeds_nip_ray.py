"""Eight seeds of the message game by nip_ray on one core: in turns, an iteration of each, in one process. What a user
writes is the config."""

import os
from pathlib import Path
from typing import Any

import torch
from _clock import WINDOW, Clock

from nip_ray.config.load import load_config
from nip_ray.rllib.cluster import build_algorithm

CONFIG, SEEDS = Path(__file__).resolve().parents[2] / "tune_configs" / "message_game.yaml", 8

clock = Clock("nip_ray", "torch", "ray")
torch.set_num_threads(1)
os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
configs: list[Any] = [
    load_config(CONFIG, [f"seed={SEEDS * clock.seed + seed}", "runtime.num_threads=1"]) for seed in range(SEEDS)
]
algorithms = [build_algorithm(config) for config in configs]
clock.start()
while True:
    steps, means = 0, []
    for algorithm in algorithms:
        algorithm.train()
        rollout = algorithm.rollout
        steps += rollout.num_copies * rollout.num_rounds
        means.append(float(rollout.reward_BRA[:, :, 1].sum(1).mean()))
    if not clock.goes_on(steps, [min(means)] * WINDOW):  # the worst of the seeds
        break
clock.show()
for algorithm in algorithms:
    algorithm.stop()
