"""Joining or starting Ray."""

import logging
import os

from nip_ray.errors import UserError
from nip_ray.settings.experiment import RuntimeSettings


def start_ray(runtime: RuntimeSettings, num_cpus: float) -> None:
    """Join the cluster that the config or $RAY_ADDRESS names; else start a local Ray with so many CPUs (or as many as the machine has),
    where any are asked for.

    The local dashboard listens on 127.0.0.1. Raises UserError when a named cluster cannot be reached.
    """
    import ray

    if ray.is_initialized():
        return
    address = runtime.ray_address or os.environ.get("RAY_ADDRESS")
    if address:
        try:
            ray.init(address=address, namespace="nip_ray", log_to_driver=False, logging_level=logging.ERROR)
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise UserError(f"runtime.ray_address: no Ray cluster at {address!r}: {error}") from error
        return
    if num_cpus == 0:
        return
    cpus = runtime.ray_num_cpus or max(int(num_cpus) + 1, len(os.sched_getaffinity(0)))
    ray.init(
        num_cpus=cpus,
        namespace="nip_ray",
        include_dashboard=True,
        dashboard_host="127.0.0.1",
        log_to_driver=False,
        logging_level=logging.ERROR,
        object_store_memory=256 << 20,
    )
