"""Texts for pydantic's faults of a config."""

from collections.abc import Mapping
from typing import Any

from nip_ray.config.keys import branches, keys_of, locate, suggest, tag_of

_UNKNOWN = ("extra_forbidden", "unexpected_keyword_argument")
_LONGEST = 60  # characters of a wrong value that a message shows


def fault_text(detail: Any, config: type) -> str:
    """One validation error of pydantic about a config of this class, in our words."""
    path, key, around = locate(detail["loc"], config)
    kind, given = detail["type"], detail["input"]
    if kind in _UNKNOWN and around is not None:
        name = path.rpartition(".")[2]
        return f"{path}: unknown key, {suggest(name, list(keys_of(around)), path, config)}"
    if kind.startswith("union_tag") and key is not None:
        tags = [tag_of(member) for member in branches(key.annotation)]
        tag = given.get("name") if isinstance(given, Mapping) else given
        own = (
            " (one of your own needs `plugins`)"
            if path in ("scenario", "algorithm") or path.startswith("providers.")
            else ""
        )
        return f"{path}.name: got {shown(tag)}, {suggest(str(tag), tags)}{own}"
    expected = key.expects if key is not None else "mapping"
    if key is not None and len(members := branches(key.annotation)) > 1 and given in map(tag_of, members):
        expected = f"{expected} (did you mean {path}.name={given}?)"
    if kind in ("too_short", "string_too_short"):
        expected = f"{expected}, not empty"
    if kind == "finite_number":
        expected = expected.replace("number", "finite number", 1)
    if key is not None and isinstance(given, str) and expected.startswith("one of "):
        choices = expected.removeprefix("one of ").removesuffix(" or null").split(", ")
        expected = f"{expected} ({suggest(given, choices)})" if suggest(given, choices).startswith("did") else expected
    return f"{path or 'config'}: got {shown(given)}, expected {expected}"


def shown(value: Any) -> str:
    """A value as users write it, cut short."""
    if value is None or isinstance(value, bool):
        return str(value).lower() if value is not None else "nothing (null)"
    text = repr(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
