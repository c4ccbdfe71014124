"""Read secret environment variables; `nip_ray.redaction` keeps them out of messages and files."""

import os
import re

from nip_ray.errors import UserError
from nip_ray.redaction import HIDDEN, Redactor, is_key

__all__ = ["HIDDEN", "Redactor", "secret"]

_UNSENT = re.compile(r"[^\x21-\x7e]")


def secret(variable: str, owner: str) -> str:
    """The value of an environment variable with a key. owner: of the key. Raises UserError when it is not set, or holds
    characters that no request can carry."""
    is_key(variable)
    value = os.environ.get(variable, "").strip()
    if not value:
        raise UserError(
            f"${variable} is not set; it must hold the key of {owner} (any text for a service that asks for none)"
        )
    if unsent := _UNSENT.search(value):
        what = "a blank or a line break" if unsent[0].isspace() else f"{unsent[0]!a}, which is not ASCII"
        raise UserError(
            f"${variable} cannot be sent as a key: its character {unsent.start() + 1} is {what}; copy the key again"
        )
    return value
