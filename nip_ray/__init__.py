"""Neural interactive proofs on Ray: train verifiers that stronger, untrusted provers cannot fool.

Importing this package is cheap: its exports are loaded on first use. The packages `protocols`, `scenarios`, `networks`,
`learning` and `play` need only torch and numpy.
"""

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

from nip_ray.version import __version__

if TYPE_CHECKING:
    from nip_ray.config.experiment import ExperimentConfig, TextExperimentConfig
    from nip_ray.runs.experiment import run_experiment
    from nip_ray.runs.load import load_run

__all__ = ["ExperimentConfig", "TextExperimentConfig", "__version__", "load_run", "run_experiment"]

# torch's threads otherwise spin while they wait for one another, and if another process has their core an iteration
# takes thirty times as long (benchmarks/results.md). libgomp reads this once, when torch is loaded.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")

_LAZY = {
    "ExperimentConfig": "nip_ray.config.experiment",
    "TextExperimentConfig": "nip_ray.config.experiment",
    "load_run": "nip_ray.runs.load",
    "run_experiment": "nip_ray.runs.experiment",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_LAZY[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
