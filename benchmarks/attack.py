"""What an examination of 1,000 held-out pairs and an attack cost, on a finished run: wall clock, processor time, and what was found.

python benchmarks/attack.py runs/quickstart-seed0
"""

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from _common import machine, show

from nip_ray.config.load import load_stored_config
from nip_ray.evaluation.verbs.attack import attack
from nip_ray.evaluation.verbs.evaluate import bench, examine, newest_or
from nip_ray.storage.folder import CONFIG, RunFolder


def main() -> None:
    """Load the run's newest checkpoint, examine it as `nip-ray evaluate` does, and attack it as `--attack` does."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run_dir", type=Path)
    options = parser.parse_args()
    print(machine())
    folder = RunFolder.open(options.run_dir)
    config = load_stored_config(folder.path / CONFIG)
    made, loading = measured(lambda: bench(folder.path, config, None, None))
    found = newest_or(folder, None, config)
    document, examining = measured(lambda: examine(made, found, deep=True))
    scenario, ids, settings = made.examination.scenario, made.examination.ids, config.evaluation.attack
    attacked, attacking = measured(lambda: attack(config, scenario, made.networks, ids, config.seed, settings))
    for name, (wall, processor) in {"loading": loading, "examining": examining, "attacking": attacking}.items():
        show(name, {"wall_s": round(wall, 2), "processor_s": round(processor, 2)})
    print(f"accuracy {document['greedy']['verifier/accuracy']['estimate']:.3f} of {document['num_instances']}")
    print(f"soundness {interval(document['greedy']['verifier/soundness'])}, error under attack {interval(attacked['soundness_error'])}")
    for key in ("any_attacker", "every_message"):
        print(f"  {key}: {interval(attacked['attack']['soundness'][key])}")


def measured(function: Callable[[], Any]) -> tuple[Any, tuple[float, float]]:
    """(what it returns, (seconds by the clock, seconds of this process's processors))."""
    wall, processor = time.perf_counter(), time.process_time()
    found = function()
    return found, (time.perf_counter() - wall, time.process_time() - processor)


def interval(record: dict[str, Any] | None) -> str:
    """A record in words."""
    return "not asked" if record is None else f"{record['estimate']:.3f} [{record['lower']:.3f}, {record['upper']:.3f}] of {record['n']}"


if __name__ == "__main__":
    main()
