"""Secret environment variables: keys are read here; what keeps them out of messages and files is `nip_ray.redaction`."""

import os

from nip_ray.errors import UserError
from nip_ray.redaction import HIDDEN, Redactor, is_key

__all__ = ["HIDDEN", "Redactor", "secret"]


def secret(variable: str, owner: str) -> str:
    """The value of an environment variable that holds a key. owner: whose key it is. Raises UserError when it is not set."""
    is_key(variable)
    value = os.environ.get(variable, "").strip()
    if not value:
        raise UserError(f"${variable} is not set; it must hold the key of {owner} (any text for a service that asks for none)")
    return value
