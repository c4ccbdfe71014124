"""A process with a Ray of its own that logs rows as a run does, and prints what its metrics endpoint then says.

`python log_to_ray.py TEMP_DIR ROWS LAST`: rows as JSON; LAST is a text that the endpoint shows once everything has
arrived.
"""

import json
import sys
import time
import urllib.request
from pathlib import Path

import ray

from nip_ray.tracking import ray_metrics
from nip_ray.tracking.base import RunInfo

PATIENCE_S = 60


def main(temp_dir: str, rows: str, last: str) -> None:
    tracker = ray_metrics.start(RunInfo(Path(temp_dir), "run-7", "proofs", {}))
    tracker.log({"iteration": 1, "env_steps": 1000})  # no Ray yet: let go
    ray.init(
        address="local",
        num_cpus=1,
        num_gpus=0,
        include_dashboard=False,
        object_store_memory=100 * 2**20,
        log_to_driver=False,
        logging_level="error",
        _temp_dir=temp_dir,
        _node_ip_address="127.0.0.1",
        _system_config={"metrics_report_interval_ms": 500},
    )
    try:
        for row in json.loads(rows):
            tracker.log(row)
        tracker.finish(failed=False)
        print(scrape(ray.nodes()[0], last))
    finally:
        ray.shutdown()


def scrape(node: dict, last: str) -> str:
    """What the endpoint says as soon as `last` is in it."""
    address = f"http://{node['NodeManagerAddress']}:{node['MetricsExportPort']}/metrics"
    text, until = "", time.monotonic() + PATIENCE_S
    while last not in text:
        if time.monotonic() > until:
            raise TimeoutError(f"{last!r} never came; there is\n{text}")
        time.sleep(0.3)
        try:
            with urllib.request.urlopen(address, timeout=10) as answer:
                text = answer.read().decode()
        except OSError:
            continue  # the agent is still starting
    return text


if __name__ == "__main__":
    main(*sys.argv[1:])
