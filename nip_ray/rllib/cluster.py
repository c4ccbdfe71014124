"""Build an algorithm from a config, starting or joining Ray only if something runs outside this process."""

import logging
import os
from typing import Any

from nip_ray.cluster.resources import check_cluster, worker_bundles
from nip_ray.config.experiment import ExperimentConfig
from nip_ray.progress import say


def build_algorithm(config: ExperimentConfig) -> Any:
    """The RLlib algorithm of `config`, ready to train, with first weights from the seed: `pretraining` and
    `initial_weights` are applied by `run_experiment`."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    start_ray(config)
    from nip_ray.rllib.registry import ALGORITHMS

    for name in ("ray", "ray.rllib", "ray.tune"):  # after the imports, which set their own levels
        logging.getLogger(name).setLevel(logging.ERROR)

    made = ALGORITHMS[config.algorithm.name]().experiment(config)
    made.debugging(log_level="ERROR")
    return made.build_algo()


def start_ray(config: ExperimentConfig) -> None:
    """Join or start Ray if there are remote workers; see `nip_ray.cluster.ray_session`.

    Raises UserError if the cluster can never hold them; inside a trial of Tune they already have their places.
    """
    import ray

    from nip_ray.cluster import ray_session

    bundles = worker_bundles(config)
    workers = config.play.num_env_runners + config.learners.num_learners
    wanted = sum(bundle.get("CPU", 0) for bundle in bundles)
    cores = len(os.sched_getaffinity(0))
    if ray_session.start_ray(config.runtime, max(wanted, 1.0) if workers else 0.0) and workers > cores:
        fewer = "fewer play.num_env_runners with more play.num_copies play as much"
        if not config.play.num_env_runners:
            fewer = "fewer learners.num_learners learn the same"
        say(
            f"warning: {workers} processes take turns on the {cores} cores of this machine, each with about half a"
            f" gigabyte of memory; {fewer}"
        )
    if bundles and ray.is_initialized() and ray.util.get_current_placement_group() is None:
        check_cluster(bundles, autoscaling=config.runtime.autoscaling)
