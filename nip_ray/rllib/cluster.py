"""Building an algorithm from a config, with Ray started or joined only where something runs outside this process."""

import logging
import os
from typing import Any

from nip_ray.config.experiment import ExperimentConfig


def build_algorithm(config: ExperimentConfig) -> Any:
    """The RLlib algorithm of `config`, ready to train."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    start_ray(config)
    from nip_ray.rllib.algorithms import ALGORITHMS

    for name in ("ray", "ray.rllib", "ray.tune"):  # after the imports, which set levels of their own
        logging.getLogger(name).setLevel(logging.ERROR)

    made = ALGORITHMS[config.algorithm.name]().experiment(config)
    made.debugging(log_level="ERROR")
    return made.build_algo()


def start_ray(config: ExperimentConfig) -> None:
    """Join or start Ray where remote workers are asked for; see `nip_ray.runs.ray_session`."""
    from nip_ray.runs import ray_session

    wanted = config.play.num_env_runners * config.play.num_cpus_per_env_runner
    wanted += config.learners.num_learners * config.learners.num_cpus_per_learner
    workers = config.play.num_env_runners + config.learners.num_learners
    ray_session.start_ray(config.runtime, max(wanted, 1.0) if workers else 0.0)
