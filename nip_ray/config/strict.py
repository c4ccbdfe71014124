"""Strict configs: files in which every key is written out, so that nothing is decided by a default, now or in a later version.

`strict: true` at the top of a config asks for it. Nobody writes such a file by hand: `python -m nip_ray.config.strict SHORT > FULL` makes
one of a short file, with the same meaning.

Decisions that matter here:
- what is missing is looked for in what was written, not in what came of it; a stored config is complete, and one of an earlier
  version, which lacks keys that have come since, can still be resumed;
- a mapping of agents' settings is complete when everyone who plays is in it, or `_default` is.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from nip_ray.config.experiment import ExperimentConfig
from nip_ray.config.keys import branches, keys_of, tag_of, value_annotation
from nip_ray.config.players import DEFAULT, playing
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


def full_yaml(config: Any) -> str:
    """`config` as a strict file: every key, `strict: true`, and `_default` settings where agents would have had none.

    The experiment is the same.
    """
    import yaml

    from nip_ray.config.load import Dumper, plain

    made = plain(config)
    made["strict"] = True
    if isinstance(config, ExperimentConfig):
        for group, key in (("scenario", "agents"), ("algorithm", "roles")):
            found = keys_of(type(getattr(config, group))).get(key)
            everyone = playing(config)
            if found is not None and (everyone is None or not {*everyone} <= {*made[group][key]}) and DEFAULT not in made[group][key]:
                made[group][key][DEFAULT] = plain(value_annotation(found.annotation)())
    return yaml.dump(made, Dumper=Dumper, sort_keys=False, allow_unicode=True, width=140)


def main(arguments: list[str]) -> int:
    """Print the config in the file named, with overrides a.b=c behind it, as a strict one."""
    from nip_ray.config.load import load_config

    if not arguments or arguments[0] in ("-h", "--help"):
        sys.stderr.write("usage: python -m nip_ray.config.strict CONFIG [A.B=C ...] > FULL.yaml\n")
        return 0 if arguments else 2
    try:
        sys.stdout.write(full_yaml(load_config(Path(arguments[0]), [*arguments[1:], "strict=false"])))
    except UserError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
