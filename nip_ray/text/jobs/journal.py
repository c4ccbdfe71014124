"""A write-ahead journal: what is about to be done, and what came of it, in a file that survives a kill at any moment.

Decisions that matter here:
- one entry is one line of JSON, put at the end by a single write and fsynced before `append` returns: once an entry is acted upon, it
  is on disk;
- a kill or a power failure can spoil the last line only. Such a line has no line break at its end, or zeros in it where blocks never
  reached the disk; it was never acted upon, and is as good as none. Any other damage is told, never guessed at;
- every line carries the format version and a CRC-32 of its entry;
- one writer at a time; readers need no lock (`read_journal`);
- after a write that failed nothing more is written: what the disk then holds is known only to who opens the file again.
"""

import io
import json
import threading
import zlib
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

from nip_ray.errors import UserError
from nip_ray.storage.files import LineFile

VERSION = 1
"""The format of every line."""

Entry = dict[str, Any]
"""What was appended: "kind" and the fields given with it."""


class Journal:
    """The journal at `path`, opened for writing and made when missing. Safe to use from several threads.

    Raises UserError when the file is damaged, of a newer version, cannot be opened, or is open for writing elsewhere.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self._guard = threading.Lock()
        self._failed: UserError | None = None
        self._file = LineFile(self.path)
        try:
            self._entries, whole = _read(self.path)
            self._file.cut(whole)
        except BaseException:
            self._file.close()
            raise

    def append(self, kind: str, /, **fields: Any) -> Entry:
        """Add an entry; it is on disk when this returns. `fields` are plain JSON values.

        Raises UserError when it cannot be written, and for every later call on this object; RuntimeError when it is closed.
        """
        line = _line({"kind": kind, **fields})
        with self._guard:
            if self._failed is not None:  # whoever shares it learns the reason, not that it is closed
                raise UserError(*self._failed.args)
            try:
                self._file.append(line)
                self._file.sync()
            except UserError as error:
                self._failed = error
                self._file.close()
                raise
            entry = json.loads(line)["entry"]
            self._entries.append(entry)
        return entry

    def entries(self, kind: str | None = None, /, **fields: Any) -> Iterator[Entry]:
        """The entries of this kind (none: of any) whose fields have these values, the oldest first."""
        for entry in tuple(self._entries):
            if kind in (None, entry["kind"]) and all(entry.get(name) == value for name, value in fields.items()):
                yield entry

    def last(self, kind: str | None = None, /, **fields: Any) -> Entry | None:
        """The newest such entry."""
        found = list(self.entries(kind, **fields))
        return found[-1] if found else None

    def close(self) -> None:
        """Close the file and give the lock back. May be called again."""
        with self._guard:
            self._file.close()

    def __enter__(self) -> "Journal":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def read_journal(path: Path | str) -> list[Entry]:
    """All entries of a journal that another process may be writing, none when it is missing. Raises UserError when it is damaged."""
    return _read(Path(path))[0]


def _line(entry: Entry) -> bytes:
    """The one way in which an entry is written."""
    text = json.dumps(entry, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return f'{{"crc":{zlib.crc32(text.encode())},"entry":{text},"version":{VERSION}}}\n'.encode()


def _read(path: Path) -> tuple[list[Entry], int]:
    """The entries, and the length in bytes of the whole lines that hold them."""
    try:
        lines = io.BytesIO(path.read_bytes()).readlines()
    except FileNotFoundError:
        return [], 0
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror})") from None
    if lines and (not lines[-1].endswith(b"\n") or b"\0" in lines[-1]):
        lines.pop()
    entries = [_parse(line, f"{path}: line {number}") for number, line in enumerate(lines, 1)]
    return entries, sum(len(line) for line in lines)


def _parse(line: bytes, where: str) -> Entry:
    damaged = UserError(f"{where} is damaged; restore the file from a copy, or look through it by hand: it says which jobs were paid for")
    try:
        row = json.loads(line)
        version, entry = row["version"], row["entry"]
    except (ValueError, RecursionError, KeyError, TypeError):
        raise damaged from None
    if type(version) is int and version > VERSION:
        raise UserError(f"{where} has the format version {version}, and this nip_ray knows those up to {VERSION}; use a newer one")
    if not isinstance(entry, dict) or "kind" not in entry or line != _line(entry):
        raise damaged
    return entry
