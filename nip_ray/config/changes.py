"""The settings that a checkpoint depends on, and those that a resumed run may change.

The latter are the options marked `resumable` (see `nip_ray.settings.options`), in runs of every kind.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar

from nip_ray.config.experiment import Experiment, ExperimentConfig, TextExperimentConfig
from nip_ray.config.keys import resumable, sections, walk
from nip_ray.config.load import apply_overrides, config_from_dict, plain
from nip_ray.config.rules import check
from nip_ray.errors import UserError
from nip_ray.settings.protocol import FIXED
from nip_ray.storage.fingerprint import fingerprint

Config = TypeVar("Config", bound=ExperimentConfig | TextExperimentConfig)


def resumed_config(stored: Config, changes: Sequence[str], iterations: int | None = None) -> Config:
    """`stored` with changes ("a.b=c") and another number of iterations (None: its own).

    Raises UserError for a change that a resumed run may not make, and for an invalid config.
    """
    changes = changes if iterations is None else [*changes, f"iterations={iterations}"]
    refuse_fixed(type(stored), changes)
    if not changes:
        return stored
    changed = config_from_dict(apply_overrides(plain(stored), changes))
    assert isinstance(changed, type(stored))
    if key := next(_of_the_weights(stored, changed), None):
        raise UserError(f"{key}: this run's weights were made with another one, which stays; start a new run")
    if changed.iterations != stored.iterations and (key := next(over_iterations(stored), None)):
        raise UserError(
            f"iterations: {key} is annealed over this run's {stored.iterations} iterations, which stay; start a new run"
        )
    check(begun(changed))
    return changed


def over_iterations(config: Any) -> Iterator[str]:
    """The configured keys that change something over the run's whole length, by their options' meaning."""
    for (key, _), value in _options(config, "over_iterations", True):
        if value is not None and value is not False:
            yield key


def _of_the_weights(old: Any, new: Any) -> Iterator[str]:
    """The keys that differ and that learned weights depend on, by their options' meaning."""
    after = dict(_options(new, "resumable", False))
    for place, value in _options(old, "resumable", False):
        if place in after and after[place] != value:
            yield place[0]


def _options(config: Any, meaning: str, wanted: bool, prefix: str = "") -> Iterator[tuple[tuple[str, type], Any]]:
    """((key, settings class), value) of all options whose `meaning` is `wanted`."""
    if isinstance(config, Mapping | Experiment):
        for name, value in dict(config).items():
            yield from _options(value, meaning, wanted, f"{prefix}{name}.")
    elif is_dataclass(config):
        for field in fields(config):
            value = getattr(config, field.name)
            if field.metadata.get("json_schema_extra", {}).get(meaning) is wanted:
                yield (f"{prefix}{field.name}", type(config)), value
            yield from _options(value, meaning, wanted, f"{prefix}{field.name}.")


def begun(config: Config) -> Config:
    """`config` for a run that has started: the sources of its initial weights are no longer needed."""
    return config.model_copy(update={"initial_weights": {}}) if isinstance(config, ExperimentConfig) else config


def refuse_fixed(kind: type, changes: Iterable[str], run_dir: Path | str | None = None) -> None:
    """Raise UserError for the first of the changes ("a.b=c") to settings of a `kind` that a resumed run may not make.

    run_dir: the run from which another file of settings differs by these changes; None if the user gives them one by
    one.
    """
    allowed = resumable(kind)
    for change in changes:
        key = change.partition("=")[0].strip()
        if not {key, key.partition(".")[0]} & {*allowed}:
            onward = issubclass(kind, Experiment) and run_dir is None
            begins = ", from this one's agents by initial_weights or base_run" if onward else ""
            fault = f"--set {change}" if run_dir is None else f"{run_dir}: was begun with another {key}"
            raise UserError(
                f"{fault}: a resumed run can change {', '.join(allowed)} only; start a new run in another"
                f" folder{begins}"
            )


def changes_of(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Overrides ("a.b=c") that turn `old` into `new`."""
    for key in {**old, **new}:
        was, wanted = old.get(key), new.get(key)
        if (
            isinstance(was, Mapping)
            and isinstance(wanted, Mapping)
            and set(was) == set(wanted)
            and not any("." in name for name in was)
        ):
            yield from changes_of(was, wanted, f"{prefix}{key}.")
        elif was != wanted:
            if isinstance(was, Mapping) and isinstance(wanted, Mapping):
                yield f"{prefix}{key}=null"  # else the new mapping would be merged into the old one
            yield f"{prefix}{key}={json.dumps(wanted)}"


def run_fingerprint(config: ExperimentConfig) -> str:
    """A hash of what a checkpoint depends on: without the number of iterations, and options that do not affect numbers
    (see `settings.options`)."""
    free = sections(ExperimentConfig, "affects_numbers", False)
    parts = config.model_dump(
        mode="json",
        exclude={"iterations", *free},
        exclude_defaults=True,  # so that a later version's new options do not change it
    )
    for path, key in walk(ExperimentConfig):
        if key.meaning.get("affects_numbers") is False and "." in path:
            _remove(parts, path.split("."))
    for name in FIXED.get(config.protocol.name, ()):
        _remove(parts, ["protocol", name])  # which configs of earlier versions do not have
    return fingerprint(parts)


def _remove(parts: dict[str, Any], path: list[str]) -> None:
    for name in path[:-1]:
        parts = parts.get(name, {})
    parts.pop(path[-1], None)
