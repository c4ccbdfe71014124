"""Identity by content: a hash of plain JSON values."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any


def fingerprint(config: Mapping[str, Any]) -> str:
    """16 hexadecimal digits that depend only on the content of `config` (plain JSON values), not on the order of keys.

    Callers pass the relevant parts, without those that may change between a run and its resumption. Raises TypeError
    for other values.
    """
    return checksum(config)[:16]


def checksum(content: Mapping[str, Any]) -> str:
    """The SHA-256 sum of `canonical`."""
    return hashlib.sha256(canonical(content)).hexdigest()


def canonical(content: Mapping[str, Any]) -> bytes:
    """`content` as canonical JSON bytes. Raises TypeError for other types."""
    return json.dumps(content, sort_keys=True, separators=(",", ":")).encode()
