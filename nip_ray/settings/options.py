"""`option`: one line that declares a typed field, its default, its bounds and its description.

Rooms that must run with torch alone declare their settings as frozen standard dataclasses with these fields; the config
room wraps the very same classes in pydantic, which reads default, bounds and description from here. So there is one source
of defaults, and no import of pydantic below `nip_ray.config`.
"""

from dataclasses import field
from typing import Any

FORBID_UNKNOWN = {"extra": "forbid"}  # set as `__pydantic_config__` on every settings dataclass


def option(default: Any, description: str, **bounds: Any) -> Any:
    """A dataclass field with `default` (a callable without arguments is a factory), a one-line description and bounds
    in pydantic's words (`ge`, `gt`, `le`, `lt`, `min_length` ...)."""
    metadata = {"description": description, **bounds}
    if callable(default):
        return field(default_factory=default, metadata=metadata)
    return field(default=default, metadata=metadata)
