"""Headers of GGUF files, for tests of what is read without a library."""

import struct
from pathlib import Path


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def write_header(file: Path, tensors: int = 0, **fields: str | int | list[str]) -> Path:
    """A file with these fields (a double underscore stands for a dot), and tensors of one float each."""
    data = b"GGUF" + struct.pack("<IQQ", 3, tensors, len(fields))
    for key, value in fields.items():
        data += text(key.replace("__", "."))
        if isinstance(value, list):
            data += struct.pack("<IIQ", 9, 8, len(value)) + b"".join(map(text, value))
        elif isinstance(value, int):
            data += struct.pack("<II", 4, value)
        else:
            data += struct.pack("<I", 8) + text(value)
    for number in range(tensors):
        data += text(f"tensor {number}") + struct.pack("<IQIQ", 1, 1, 0, 32 * number)
    file.write_bytes(data + (bytes(-len(data) % 32 + 32 * tensors) if tensors else b""))
    return file
