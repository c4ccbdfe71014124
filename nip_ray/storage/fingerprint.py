"""Which content something belongs to: a hash of plain JSON values."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any


def fingerprint(config: Mapping[str, Any]) -> str:
    """16 hexadecimal digits that depend on the content of `config` (plain JSON values) alone, not on the order of its
    keys.

    Callers pass the parts that matter: what may change between a run and its resumption stays out. Raises TypeError for
    other values.
    """
    return checksum(config)[:16]


def checksum(content: Mapping[str, Any]) -> str:
    """The SHA-256 sum of `canonical`."""
    return hashlib.sha256(canonical(content)).hexdigest()


def canonical(content: Mapping[str, Any]) -> bytes:
    """`content` as bytes of JSON that depend on nothing else. Raises TypeError for what JSON has not."""
    return json.dumps(content, sort_keys=True, separators=(",", ":")).encode()
