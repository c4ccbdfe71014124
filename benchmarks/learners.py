"""What it costs to hold a model in shards: steps of two learners on this machine, whole and in shards, in turns.

    python benchmarks/learners.py --method full --steps 10

The model called `default` (a million weights), 24 turns of 100 tokens in a step; medians over the steps, after one that warms up.
"""

import argparse
import json
import logging
import statistics
import tempfile
import time
from pathlib import Path
from random import Random
from typing import Any

import ray
from _common import machine, show

from nip_ray.learning.token_rows import Turn
from nip_ray.serving.default_model import save_default_model
from nip_ray.serving.learner_group import LearnerGroup
from nip_ray.settings.policy_gradient import PolicyGradientSettings
from nip_ray.settings.providers import LocalProvider


def turns_of(seed: int) -> list[Turn]:
    """Without anything in common."""
    draw = Random(seed)
    return [
        Turn([draw.randrange(6, 2000) for _ in range(80)], [draw.randrange(6, 2000) for _ in range(20)], [-7.0] * 20, 1.0)
        for _ in range(24)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--method", choices=["full", "lora"], default="full")
    parser.add_argument("--steps", type=int, default=10)
    options = parser.parse_args()
    ray.init(num_cpus=4, include_dashboard=False, logging_level=logging.ERROR)
    seconds: dict[str, list[float]] = {"none": [], "full": []}
    with tempfile.TemporaryDirectory() as scratch:
        folder, provider = save_default_model(Path(scratch) / "model", seed=0), LocalProvider(method=options.method, num_threads=1)
        rules: dict[str, Any] = {
            kind: PolicyGradientSettings(num_learners=2, learner_sharding=kind, micro_batch_tokens=400) for kind in ("none", "full")
        }
        groups = {kind: LearnerGroup(folder, provider, rule) for kind, rule in rules.items()}
        for step in range(options.steps + 1):
            for kind, group in groups.items():
                began = time.perf_counter()
                group.step(turns_of(step), rules[kind], 20)
                seconds[kind].append(time.perf_counter() - began)
        for group in groups.values():
            group.close()
    print(json.dumps({"machine": machine()}))
    show(f"learners {options.method}", {kind: statistics.median(given[1:]) for kind, given in seconds.items()})


if __name__ == "__main__":
    main()
