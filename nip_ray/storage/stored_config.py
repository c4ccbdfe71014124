"""The config in a run's folder, between a header line and its checksum, so that truncation and changes are detected."""

from hashlib import sha256
from pathlib import Path

from nip_ray.errors import UserError
from nip_ray.storage.files import write_atomically

_FIRST = "# the config of this run; the last line is the checksum of those before it\n"
_LAST = "# sha256 "


def write_config(path: Path, text: str) -> None:
    """Write the config `text` (YAML) to `path` in one step. Raises UserError when it cannot be written."""
    text = _FIRST + text.removesuffix("\n") + "\n"
    write_atomically(path, f"{text}{_LAST}{sha256(text.encode()).hexdigest()}\n".encode())


def plain_config(text: str, name: str) -> str:
    """The text passed to `write_config`; text without both added lines (of a user, or of an earlier version) unchanged.

    name: the file in messages. Raises UserError when the checksum is missing or different.
    """
    end = text.rfind(_LAST)
    if not text.startswith(_FIRST) and (end < 0 or "\n" in text[end:].removesuffix("\n")):
        return text
    if end < 0 or text[end:] != f"{_LAST}{sha256(text[:end].encode()).hexdigest()}\n":
        mend = (
            "put it back from a copy, or, if you changed it yourself, remove its first line and the checksum at its end"
        )
        raise UserError(f"{name}: is damaged: it is not as the run wrote it; {mend}")
    return text[len(_FIRST) : end]
