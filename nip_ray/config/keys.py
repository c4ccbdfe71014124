"""The tree of keys of a config: the keys at a place, their values, and suggestions for misspelt ones.

Read off the models themselves, so messages, documentation and checks cannot drift from them.
"""

import dataclasses
import difflib
import re
import types
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from pydantic import BaseModel

_BOUNDS = {"ge": ">=", "gt": ">", "le": "<=", "lt": "<"}
_TEXT = {int: "integer", float: "number", bool: "true or false", str: "text", type(None): "null"}
_PLACES = {
    "providers": "<provider>",
    "prices": "<model>",
    "layers": "<number>",
    "by_role": "<role>",
    "curriculum": "<number>",
}  # placeholders for names in a mapping, or places in a list; elsewhere it is an agent's
_TAG = "name"  # the key that selects a member of a union


@dataclasses.dataclass(frozen=True)
class Key:
    """One key of a settings class. bounds: pydantic's words (`ge`, `lt`, `min_length`, `pattern` ...) and their values.
    meaning: for the machinery, see `nip_ray.settings.options`."""

    name: str
    annotation: Any
    default: Any
    description: str
    bounds: Mapping[str, Any]
    meaning: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def expects(self) -> str:
        """Its valid values, in words: `integer >= 1 or null`."""
        return _words(self.annotation, self.bounds)


@cache
def keys_of(kind: type) -> Mapping[str, Key]:
    """The keys of a settings class (a pydantic model or a settings dataclass) in their order, `name` first."""
    made: dict[str, Key] = {}
    if issubclass(kind, BaseModel):
        for name, info in kind.model_fields.items():
            default = info.get_default(call_default_factory=True)
            meaning = info.json_schema_extra if isinstance(info.json_schema_extra, dict) else {}
            limits = (*_BOUNDS, "min_length", "max_length", "pattern")
            stated = [(limit, getattr(m, limit, None)) for m in info.metadata for limit in limits]
            bounds = {limit: value for limit, value in stated if value is not None}
            made[name] = Key(name, info.annotation, default, info.description or "", bounds, meaning)
        return made
    hints = get_type_hints(kind)
    for field in dataclasses.fields(kind):
        default = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
        bounds = {
            name: value for name, value in field.metadata.items() if name not in ("description", "json_schema_extra")
        }
        meaning = field.metadata.get("json_schema_extra", {})
        made[field.name] = Key(
            field.name, hints[field.name], default, field.metadata.get("description", ""), bounds, meaning
        )
    return {_TAG: made.pop(_TAG), **made} if _TAG in made else made


def branches(annotation: Any) -> tuple[type, ...]:
    """The settings classes in an annotation: several for a union with variants by `name`, none for a value."""
    annotation = get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation
    members = get_args(annotation) if get_origin(annotation) in (Union, types.UnionType) else (annotation,)
    return tuple(
        m for m in members if isinstance(m, type) and (dataclasses.is_dataclass(m) or issubclass(m, BaseModel))
    )


def tag_of(kind: type) -> str:
    """The `name` that chooses this member of a union."""
    return str(keys_of(kind)[_TAG].default)


def value_annotation(annotation: Any) -> Any:
    """The values of a `dict[str, X]` or a `tuple[X, ...]`, None for anything else."""
    return {dict: lambda a: a[1], tuple: lambda a: a[0]}.get(get_origin(annotation), lambda a: None)(
        get_args(annotation)
    )


def with_tags(data: Mapping[str, Any], kind: type) -> dict[str, Any]:
    """`data` with the default member named wherever a union's `name` was left out."""
    made = dict(data)
    for key in keys_of(kind).values():
        value = made.get(key.name)
        if len(branches(key.annotation)) > 1 and isinstance(value, Mapping) and _TAG not in value:
            made[key.name] = {_TAG: tag_of(type(key.default)), **value}
    return made


def locate(loc: Sequence[str | int], kind: type) -> tuple[str, Key | None, type | None]:
    """The place of a validation error: (dotted key, the key or None if there is none, the settings class around it).

    Steps of pydantic's path that are not keys (tags and members of unions) are left out.
    """
    path: list[str] = []
    annotation: Any = kind
    key: Key | None = None
    around: type | None = None
    parts = list(loc)
    while parts:
        kinds = branches(annotation)
        if len(kinds) > 1:
            kinds = tuple(k for k in kinds if tag_of(k) == parts[0])
            parts.pop(0)
            if not parts or not kinds:
                break
        if kinds:
            around = kinds[0]
            path.append(str(parts[0]))
            key = keys_of(around).get(str(parts.pop(0)))
            if key is None:
                break
            annotation = key.annotation
        elif value_annotation(annotation) is not None:
            annotation = value_annotation(annotation)
            path.append(str(parts.pop(0)))
            key = Key(path[-1], annotation, None, "", {})
        else:
            break
    return ".".join(path), key, around


def walk(kind: type, prefix: str = "") -> Iterator[tuple[str, Key]]:
    """Every key below a settings class with its dotted path; `<agent>` and other placeholders match any name."""
    for name, key in keys_of(kind).items():
        path = f"{prefix}{name}"
        yield path, key
        below = value_annotation(key.annotation)
        for member in branches(key.annotation if below is None else below):
            yield from walk(member, f"{path}." if below is None else f"{path}.{place(name)}.")


def sections(kind: type, meaning: str, value: bool) -> tuple[str, ...]:
    """The top-level keys of a config whose `meaning` (`affects_numbers`, `resumable`) is `value`."""
    return tuple(name for name, key in keys_of(kind).items() if key.meaning.get(meaning) is value)


@cache
def resumable(kind: type) -> tuple[str, ...]:
    """The keys that a resumed run may change: whole sections of a config, then single keys of others."""
    whole = sections(kind, "resumable", True)
    single = (
        path for path, key in walk(kind) if key.meaning.get("resumable") is True and path.partition(".")[0] not in whole
    )
    return (*whole, *dict.fromkeys(single))


@cache
def path_kind(key: str, kind: type) -> str | None:
    """The kind of path of a dotted config key ("file", "run", "plugin", "model"), None if it is not a path."""
    for pattern, found in walk(kind):
        if "path" in found.meaning and _same_place(pattern, re.sub(r"\.\d+$", "", key)):
            return str(found.meaning["path"])
    return None


def place(mapping: str) -> str:
    """The placeholder for names below the key `mapping`."""
    return _PLACES.get(mapping, "<agent>")


def suggest(name: str, valid: Sequence[str], path: str = "", kind: type | None = None) -> str:
    """The second half of "unknown ...": the nearest valid names, or else all of them.

    path: the place of `name` as a key; then a key of this name elsewhere in a config of `kind` is also suggested.
    """
    lower = {v.lower(): v for v in reversed(valid)}
    near = [lower[v] for v in difflib.get_close_matches(name.lower(), lower, 1)] or [
        v for v in valid if name and v.startswith(name)
    ][:1]
    if path and kind is not None:
        near += [full for full, _ in walk(kind) if full.rpartition(".")[2] == name and not _same_place(full, path)][:1]
    return f"did you mean {' or '.join(near)}?" if near else f"expected one of {', '.join(valid)}"


def _same_place(pattern: str, path: str) -> bool:
    ours, theirs = pattern.split("."), path.split(".")
    return len(ours) == len(theirs) and all(a == b or a.startswith("<") for a, b in zip(ours, theirs, strict=True))


def _words(annotation: Any, bounds: Mapping[str, Any]) -> str:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin in (Union, types.UnionType) and not branches(annotation):
        words = [
            word for member in arguments for word in _words(member, bounds).split(" or " if member is bool else "\n")
        ]
        return f"{', '.join(words[:-1])} or {words[-1]}"
    if origin is Literal:
        words = [str(argument) for argument in arguments]
        return words[0] if len(words) == 1 else f"one of {', '.join(words)}"
    if origin is tuple:
        words = _words(arguments[0], {})
        return f"list, each {words}" if words.startswith("one of ") else f"list of {_plural(words)}"
    if branches(annotation) or origin is dict:
        return "mapping"
    words = _TEXT[annotation]
    if annotation in (int, float):
        limits = " and ".join(f"{sign} {bounds[name]}" for name, sign in _BOUNDS.items() if name in bounds)
        words = f"{words} {limits}".rstrip()
    return f"{words} matching {bounds['pattern']}" if "pattern" in bounds else words


def _plural(words: str) -> str:
    if words.startswith("list of "):
        return words.replace("list", "lists", 1)
    return words if words == "text" else f"{words}s"
