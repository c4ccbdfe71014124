"""Which config a checkpoint belongs to."""

from nip_ray.config.experiment import ExperimentConfig
from nip_ray.runs.checkpoint import fingerprint

_FREE = ("name", "iterations", "evaluation", "checkpoint", "runtime", "learners", "tracking", "fault_tolerance", "profiling")
"""What may change between a checkpoint and what goes on from it: it changes no number, or only how many there are."""


def run_fingerprint(config: ExperimentConfig) -> str:
    """A hash of what a checkpoint depends on: not of the number of iterations, of what is kept, or of threads."""
    parts = config.model_dump(
        mode="json",
        exclude=set(_FREE),
        exclude_defaults=True,  # so that a later version's new options leave it as it is
    )
    for key in ("num_cpus_per_env_runner", "num_gpus_per_env_runner"):
        parts.get("play", {}).pop(key, None)
    parts.get("pretraining", {}).pop("cache", None)
    return fingerprint(parts)
