"""The header of a GGUF file, read fast and without a library."""

import os
import struct
from pathlib import Path
from typing import IO, Any

from nip_ray.errors import UserError

_PLAIN = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_TEXT, _LIST = 8, 9
_LONGEST = 1 << 28


def gguf_header(file: Path) -> dict[str, Any]:
    """Key -> value of the header, without lists (vocabularies are long). Raises UserError for a file that is not a GGUF
    file of version 2 or 3, or ends before its last tensor begins."""
    try:
        with file.open("rb") as data:
            if data.read(4) != b"GGUF" or _plain(data, "I") not in (2, 3):
                raise UserError(f"{file}: is not a GGUF file of version 2 or 3")
            tensors = _plain(data, "Q")
            found = {}
            for _ in range(_plain(data, "Q")):
                key, kind = _text(data), _plain(data, "I")
                if kind == _LIST:
                    _skip_list(data)
                else:
                    found[key] = _text(data) if kind == _TEXT else _plain(data, _PLAIN[kind])
            last = max((_offset(data) for _ in range(tensors)), default=0)
            if tensors and os.fstat(data.fileno()).st_size <= data.tell() + last:
                raise ValueError("the file is cut, get the whole one")
            return found
    except (OSError, struct.error, KeyError, ValueError, RecursionError) as error:
        raise UserError(f"{file}: its header cannot be read ({error})") from None


def _plain(data: IO[bytes], form: str) -> Any:
    return struct.unpack(f"<{form}", data.read(struct.calcsize(f"<{form}")))[0]


def _text(data: IO[bytes]) -> str:
    length = _plain(data, "Q")
    found = data.read(length) if length < _LONGEST else b""
    if len(found) != length:
        raise ValueError("it is cut")
    return found.decode()


def _offset(data: IO[bytes]) -> int:
    """Of the next tensor, from the end of the header on."""
    _text(data)
    if (axes := _plain(data, "I")) > 8:
        raise ValueError(f"a tensor of {axes} axes")
    _plain(data, f"{axes}QI")  # its sizes, and their type
    return _plain(data, "Q")


def _skip_list(data: IO[bytes]) -> None:
    kind, count = _plain(data, "I"), _plain(data, "Q")
    if kind in _PLAIN:
        data.seek(count * struct.calcsize(f"<{_PLAIN[kind]}"), 1)
        return
    for _ in range(count):
        if kind == _TEXT:
            data.seek(_plain(data, "Q"), 1)
        else:
            _skip_list(data)
