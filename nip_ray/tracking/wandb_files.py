"""Reading the files that Weights & Biases keeps of an offline run: which steps of it are there.

The format is LevelDB's log: a header of 7 bytes, blocks of 32 KiB, each with records of (checksum 4, length 2, kind 1) bytes before
their data; a record that is split says so by its kind. What is in it is one protocol buffer a record.
"""

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_HEADER, _BLOCK, _RECORD = 7, 32 * 1024, struct.Struct("<IHB")
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4


def last_step(folder: Path) -> int:
    """The largest step in the offline files of earlier processes below the `wandb/` folder of a run; 0 if there is none."""
    steps = [step for file in sorted(folder.glob("offline-run-*/*.wandb")) for record in records(file) if (step := _step(record))]
    return max(steps, default=0)


def records(file: Path) -> Iterator[Any]:
    """The records of a .wandb file, as far as it is whole: the last one may be torn where a process was killed."""
    from google.protobuf.message import DecodeError
    from wandb.proto import wandb_internal_pb2

    for data in _chunks(file.read_bytes()):
        record = wandb_internal_pb2.Record()  # pyright: ignore[reportAttributeAccessIssue]  # made at run time
        try:
            record.ParseFromString(data)
        except DecodeError:
            return
        yield record


def _chunks(data: bytes) -> Iterator[bytes]:
    place, parts = _HEADER, b""
    while place < len(data):
        left = _BLOCK - place % _BLOCK
        if left < _RECORD.size:  # padding
            place += left
            continue
        if place + _RECORD.size > len(data):
            return
        _, length, kind = _RECORD.unpack_from(data, place)
        begin, place = place + _RECORD.size, place + _RECORD.size + length
        if kind not in (_FULL, _FIRST, _MIDDLE, _LAST) or place > len(data):
            return
        parts = data[begin:place] if kind in (_FULL, _FIRST) else parts + data[begin:place]
        if kind in (_FULL, _LAST):
            yield parts


def _step(record: Any) -> int:
    return record.history.step.num if record.WhichOneof("record_type") == "history" else 0
