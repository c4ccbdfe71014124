"""What a strict config leaves out: every key is to be written out, so that nothing is decided by a default, now or in a later version.

What is missing is looked for in what was written, not in what came of it; a stored config is complete, and one of an earlier version, which
lacks keys that have come since, can still be resumed.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from nip_ray.config.keys import branches, keys_of, tag_of, value_annotation
from nip_ray.errors import UserError

_SHOWN = 5


def refuse_missing_tags(data: Mapping[str, Any], kind: type) -> None:
    """Raise a UserError where `data` says `strict: true` and not which algorithm or scenario: a default would judge all keys below it."""
    if data.get("strict") is True:
        unions = {name: data.get(name) for name, key in keys_of(kind).items() if len(branches(key.annotation)) > 1}
        _refuse([f"{name}.name" for name, part in unions.items() if isinstance(part, Mapping) and "name" not in part])


def refuse_missing(data: Mapping[str, Any], kind: type) -> None:
    """Raise a UserError that names the keys of a config of class `kind` that are missing in `data`, where that says `strict: true`."""
    if data.get("strict") is not True:
        return
    _refuse(list(missing_keys(data, kind)))


def _refuse(missing: Sequence[str]) -> None:
    if missing:
        more = f" and {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else ""
        what, them = ("1 key is", "it") if len(missing) == 1 else (f"{len(missing)} keys are", "them")
        hint = f"write {them} out (`python -m nip_ray.config.strict FILE` prints the file with all keys), or set strict to false"
        raise UserError(f"strict: {what} missing: {', '.join(missing[:_SHOWN])}{more}; {hint}")


def missing_keys(data: Mapping[str, Any], kind: type, prefix: str = "") -> Iterator[str]:
    """Dotted keys of the settings class `kind` that `data` lacks, those below mappings and lists included. Of a missing group: itself."""
    for name, key in keys_of(kind).items():
        if name not in data:
            yield f"{prefix}{name}"
        else:
            yield from _missing_in(data[name], key.annotation, f"{prefix}{name}")


def _missing_in(value: Any, annotation: Any, path: str) -> Iterator[str]:
    below = value_annotation(annotation)
    if below is not None:
        parts = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list | tuple) else ()
        for name, part in parts:
            yield from _missing_in(part, below, f"{path}.{name}")
        return
    kinds = branches(annotation)
    if len(kinds) > 1 and isinstance(value, Mapping):
        if "name" not in value:
            yield f"{path}.name"
        kinds = tuple(kind for kind in kinds if tag_of(kind) == value.get("name"))
    if len(kinds) == 1 and isinstance(value, Mapping):  # anything else is refused elsewhere
        yield from missing_keys(value, kinds[0], f"{path}.")
