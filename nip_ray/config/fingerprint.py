"""Which config a checkpoint belongs to."""

from typing import Any

from nip_ray.config.experiment import ExperimentConfig
from nip_ray.config.keys import sections, walk
from nip_ray.storage.fingerprint import fingerprint


def run_fingerprint(config: ExperimentConfig) -> str:
    """A hash of what a checkpoint depends on: not of the number of iterations, nor of what affects no number (see `settings.options`)."""
    free = sections(ExperimentConfig, "affects_numbers", False)
    parts = config.model_dump(
        mode="json",
        exclude={"iterations", *free},
        exclude_defaults=True,  # so that a later version's new options leave it as it is
    )
    for path, key in walk(ExperimentConfig):
        if key.meaning.get("affects_numbers") is False and "." in path:
            _remove(parts, path.split("."))
    return fingerprint(parts)


def _remove(parts: dict[str, Any], path: list[str]) -> None:
    for name in path[:-1]:
        parts = parts.get(name, {})
    parts.pop(path[-1], None)
