"""Keys that configs of earlier versions have, and what replaces each.

A run folder keeps a config with every key. So a key that is gone is dropped there, and in any config where it has a value that changed
nothing; else it is an error that says what to write instead.
"""

from collections.abc import Mapping
from typing import Any

from nip_ray.errors import UserError

_ANY = None  # whatever value it has: it says nothing without another key
_SIGTERM = "a run ends in order at SIGTERM, which Kubernetes, SkyPilot, Slurm and Ray's autoscaler send; leave it out"
GONE: dict[str, tuple[tuple[Any, ...] | None, str]] = {
    "runtime.spot_notices": ((None,), _SIGTERM),
    "runtime.spot_interval_s": (_ANY, _SIGTERM),
    "runtime.spot_address": (_ANY, _SIGTERM),
    "strict": ((False,), "leave it out; `nip-ray train FILE --dry-run` prints the config with every key"),
}
"""Dotted key -> (values that changed nothing, none: all; what to do instead)."""


def without_gone(data: Mapping[str, Any], *, stored: bool) -> dict[str, Any]:
    """`data` without keys that are gone. stored: as an earlier version wrote it, so that no value of these is refused.

    Raises one UserError that names all of them that said something.
    """
    made, faults = dict(data), []
    for path, (silent, instead) in GONE.items():
        section, _, key = path.rpartition(".")
        part = made.get(section) if section else made
        if not isinstance(part, Mapping) or key not in part:
            continue
        if not stored and silent is not _ANY and part[key] not in silent:
            faults.append(f"{path}: was removed; {instead}")
        rest = {name: value for name, value in part.items() if name != key}
        made = {**made, section: rest} if section else rest
    if faults:
        raise UserError(*faults)
    return made
