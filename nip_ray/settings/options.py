"""`option`: one line that declares a typed field, its default, its bounds and its description.

Packages that must run with torch alone declare their settings as frozen standard dataclasses with these fields;
`nip_ray.config` wraps the same classes in pydantic, which reads default, bounds and description from here. So there is
one source of defaults, and no import of pydantic below `nip_ray.config`.

A field also declares how the rest of the package treats its key:
- `path`: "file" (or folder), "run" (a run folder or an address of one), "plugin" (a file, or a module) or "model" (a
  folder or file where the provider is local). Relative ones are made absolute before workers, trials or a later resume
  read them;
- `affects_numbers` false: two configs that differ here alone give the same numbers;
- `resumable` true: a resumed run may change it; false: not even in a section that it may change, since learned weights
  depend on it;
- `over_iterations` true: where it is set, something changes over the run's whole length, which a resumed run then
  cannot change.

A class's `faults()` yields contradictions between its settings, as `key: got ..., use ...`. `nip_ray.config.rules`
also calls those of its bases.
"""

from collections.abc import Mapping
from dataclasses import field
from types import MappingProxyType
from typing import Any

NOTHING_SPECIAL: Mapping[str, Any] = MappingProxyType({})
FREE = MappingProxyType({"affects_numbers": False})
FREE_AND_RESUMABLE = MappingProxyType({"affects_numbers": False, "resumable": True})
RESUMABLE = MappingProxyType({"resumable": True})
OF_THE_WEIGHTS = MappingProxyType({"resumable": False})
OVER_ITERATIONS = MappingProxyType({"over_iterations": True})
FILE = MappingProxyType({"path": "file"})

FORBID_UNKNOWN = {"extra": "forbid", "allow_inf_nan": False}  # set as `__pydantic_config__` on every settings dataclass


def option(default: Any, description: str, *, meaning: Mapping[str, Any] = NOTHING_SPECIAL, **bounds: Any) -> Any:
    """A dataclass field with `default` (a callable without arguments is a factory), a one-line description and bounds
    in pydantic's words (`ge`, `gt`, `le`, `lt`, `min_length` ...). meaning: what the key means for the machinery, see
    the module."""
    metadata = {"description": description, **({"json_schema_extra": dict(meaning)} if meaning else {}), **bounds}
    if callable(default):
        return field(default_factory=default, metadata=metadata)
    return field(default=default, metadata=metadata)
