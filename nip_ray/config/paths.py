"""Relative paths of a config made absolute, so that workers, trials and a later resume find the same files.

Options are marked as paths in their definition (`nip_ray.settings.options`).
"""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from nip_ray.config.experiment import ExperimentConfig, TextExperimentConfig
from nip_ray.config.keys import path_kind
from nip_ray.storage.model_files import is_model
from nip_ray.storage.sources import absolute

AnyConfig = TypeVar("AnyConfig", bound=ExperimentConfig | TextExperimentConfig)


def with_absolute_paths(config: AnyConfig) -> AnyConfig:
    """`config` with every path absolute. Raises UserError for an invalid address of a run in a store."""
    dumped = absolute_paths(config.model_dump(mode="json"), type(config))
    if isinstance(config, TextExperimentConfig):
        for agent, settings in config.scenario.agents.items():
            provider = config.providers.get(settings.provider)
            if provider is None or not provider.local_models:
                # a provider's name, even if a folder here has it too
                dumped["scenario"]["agents"][agent]["model"] = settings.model
    return type(config).model_validate(dumped)


def absolute_paths(value: Any, kind: type, key: str = "") -> Any:
    """The value of the dotted `key` of a config of `kind` (none: all), as plain data, with all paths absolute."""
    return mapped_paths(value, kind, lambda sort, path, key: _ABSOLUTE[sort](path), key)


def mapped_paths(value: Any, kind: type, change: Callable[[str, str, str], str], key: str = "") -> Any:
    """The same with every path replaced by `change` of (kind of path, path, its dotted key)."""
    if isinstance(value, Mapping):
        return {name: mapped_paths(item, kind, change, f"{key}.{name}".lstrip(".")) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [mapped_paths(item, kind, change, f"{key}.{i}") for i, item in enumerate(value)]
    found = path_kind(key, kind) if isinstance(value, str) else None
    return value if found is None else change(found, value, key)


_ABSOLUTE: dict[str, Callable[[str], str]] = {
    "file": os.path.abspath,
    "run": lambda value: absolute(value) if value else value,
    "plugin": lambda value: os.path.abspath(value) if value.endswith(".py") else value,
    "model": lambda value: os.path.abspath(value) if is_model(Path(value)) else value,
}
