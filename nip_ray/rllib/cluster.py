"""Building an algorithm from a config, with Ray started or joined only where something runs outside this process."""

import logging
import os
from typing import Any

from nip_ray.config.experiment import ExperimentConfig
from nip_ray.errors import UserError


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
    """Join the cluster that the config or $RAY_ADDRESS names, or start a local Ray where remote workers are asked for.

    The local dashboard listens on 127.0.0.1. Raises UserError when a named cluster cannot be reached.
    """
    import ray

    if ray.is_initialized():
        return
    workers = config.play.num_env_runners + config.learners.num_learners
    address = config.runtime.ray_address or os.environ.get("RAY_ADDRESS")
    if address:
        try:
            ray.init(address=address, namespace="nip_ray", log_to_driver=False, logging_level=logging.ERROR)
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise UserError(f"runtime.ray_address: no Ray cluster at {address!r}: {error}") from error
        return
    if workers == 0:
        return
    wanted = config.play.num_env_runners * config.play.num_cpus_per_env_runner
    wanted += config.learners.num_learners * config.learners.num_cpus_per_learner
    cpus = config.runtime.ray_num_cpus or max(int(wanted) + 1, len(os.sched_getaffinity(0)))
    ray.init(
        num_cpus=cpus,
        namespace="nip_ray",
        include_dashboard=True,
        dashboard_host="127.0.0.1",
        log_to_driver=False,
        logging_level=logging.ERROR,
        object_store_memory=256 << 20,
    )
