"""File writing: atomically as a whole, or by appending lines, with one writer at a time.

Decisions that matter here:
- a whole file is written aside, fsynced and renamed: readers, also after a crash, see all of the old content or all of
  the new;
- a line is appended by a single write. A kill can tear only the last line; it was never acted upon, and is cut off when
  the file is opened next;
- every line carries the version of its format (`check_version`) and, if money depends on it, a CRC-32 (`sealed`);
- locks are `flock`: the kernel releases one with the process that holds it, so none is ever stale. Readers take none. A
  file system without locks gets a warning instead.
"""

import errno
import fcntl
import hashlib
import json
import os
import shutil
import warnings
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path
from typing import IO, Any, NoReturn

from nip_ray.errors import UserError

_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EINVAL)


def write_atomically(path: Path, data: bytes) -> None:
    """Write `data` to `path` in one step. Raises UserError when it cannot be written; the old content is then kept."""
    with written_aside(path) as aside:
        aside.write_bytes(data)


@contextmanager
def written_aside(path: Path) -> Iterator[Path]:
    """A path beside `path` to write a file to, which is then renamed to `path` in one step; the folder must exist.

    Raises UserError for an OSError on the way; the old file is then kept.
    """
    aside = path.with_name(f".{path.name}.tmp-{os.getpid()}")
    try:
        yield aside
        sync(aside)
        aside.replace(path)
        sync(path.parent)
    except OSError as error:
        cannot_write(path, error)
    finally:
        with suppress(OSError):  # already gone after the rename
            aside.unlink(missing_ok=True)


def make_parents(path: Path) -> None:
    """Make the parent folder of `path`; its name is on disk on return. Raises UserError when it cannot be made."""
    try:
        make_folder(path.parent)
    except OSError as error:
        cannot_write(path, error)


def refuse_unwritable(path: Path) -> None:
    """Raise UserError, before any work, if no file can be written at `path`; make its folder."""
    make_parents(path)
    if path.is_dir() or not os.access(path.parent, os.W_OK):
        raise UserError(f"{path}: cannot be written; name a file in a folder that can be written")


def make_folder(path: Path) -> None:
    """Make the folder and missing parents; their names are on disk on return. Raises OSError when it cannot be made."""
    if not path.is_dir():
        make_folder(path.absolute().parent)
        path.mkdir(exist_ok=True)
        sync(path.absolute().parent)


def sync(path: Path) -> None:
    """Force a file's content, or a folder's own entries (new names, renames), to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def put_in_place(aside: Path, folder: Path) -> None:
    """Rename the finished folder `aside` to `folder`; if another writer came first, its (equal) work stays."""
    for entry in aside.rglob("*"):
        if entry.is_file():
            sync(entry)
    try:
        aside.rename(folder)
    except OSError:
        if not folder.is_dir():
            raise
        shutil.rmtree(aside, ignore_errors=True)
    sync(folder.parent)


def lock(file: IO[Any] | FileIO, path: Path) -> None:
    """Lock `file` until it is closed or the process ends. path: its name in messages.

    Raises UserError when another process holds it, with that process if the file's text has it.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in _NO_LOCKS:
            warnings.warn(
                f"{path}: this file system has no locks; see to it that one process writes here at a time", stacklevel=3
            )
            return
        holder = ""
        if file.readable():
            file.seek(0)
            holder = str(file.read()).strip()
        raise UserError(
            f"{path} is being written by {holder or 'another process'}; wait for it to end, or end it"
        ) from None


def is_locked(path: Path) -> bool:
    """True if a process holds the lock of the file at `path`."""
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        return isinstance(error, BlockingIOError)
    return False


class LineFile:
    """The file at `path`, locked and opened to append lines; it and its folder are made if missing.

    Raises UserError when it cannot be opened, or is open for writing elsewhere. locked: False if another lock guards
    it.
    """

    def __init__(self, path: Path, *, locked: bool = True) -> None:
        self.path = path
        self._file: FileIO | None = None
        make_parents(path)
        try:
            file = path.open("ab", buffering=0)
            # an old file too: its writer may have been killed before its name or last line was on disk
            for part in (path, path.parent):
                sync(part)
        except OSError as error:
            cannot_write(path, error)
        try:
            if locked:
                lock(file, path)
        except UserError:
            file.close()
            raise
        self._file = file

    def cut(self, length: int | None = None) -> None:
        """Truncate it to `length` bytes (None: to its last complete line)."""
        try:
            whole = self.path.read_bytes().rfind(b"\n") + 1 if length is None else length
            self._open().truncate(whole)
        except OSError as error:
            cannot_write(self.path, error)

    def append(self, line: bytes) -> None:
        """Append a line, which the operating system has on return. Raises UserError when it cannot be written, leaving
        no part of it."""
        file = self._open()
        try:
            if (written := file.write(line)) != len(line):
                file.truncate(file.tell() - written)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            cannot_write(self.path, error)

    def sync(self) -> None:
        """Return when all appended lines are on disk. Raises UserError on failure."""
        try:
            os.fsync(self._open().fileno())
        except OSError as error:
            cannot_write(self.path, error)

    def close(self) -> None:
        """Close the file and release the lock. May be called again."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _open(self) -> FileIO:
        if self._file is None:
            raise RuntimeError(f"{self.path} is closed")
        return self._file


def lines_of(path: Path) -> list[bytes]:
    """The lines, with line ends, of a file that another process may be writing: the last may lack its end, or
    contain zeros where blocks never reached the disk. None when the file is missing. Raises UserError when it cannot
    be read."""
    try:
        with path.open("rb") as file:
            return file.readlines()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror})") from None


def sealed(entry: Any, version: int) -> bytes:
    """A JSON value with its CRC-32 as one line."""
    text = json.dumps(entry, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return f'{{"crc":{zlib.crc32(text.encode())},"entry":{text},"version":{version}}}\n'.encode()


def unsealed(line: bytes, newest: int, where: str) -> Any:
    """The value of a `sealed` line. Raises ValueError for a changed line, UserError for one of a newer version."""
    try:
        row = json.loads(line)
        version, entry = row["version"], row["entry"]
    except (RecursionError, KeyError, TypeError) as error:
        raise ValueError(str(error)) from None
    check_version(version, newest, where)
    if line != sealed(entry, version):
        raise ValueError("its checksum is another")
    return entry


def check_version(version: Any, newest: int, where: str) -> None:
    """Raise UserError for a line or a document of a newer version of its format than `newest`, or without a version."""
    if type(version) is not int or version < 1:
        raise UserError(f"{where} is damaged: its format version is {version!r}")
    if version > newest:
        raise UserError(
            f"{where} has the format version {version}, and this nip_ray knows those up to {newest}; use a newer one"
        )


def cannot_write(path: Path, error: OSError) -> NoReturn:
    """Raise the UserError for a place that cannot be written."""
    raise UserError(
        f"{path} cannot be written ({error.strerror or error}); what was saved before is untouched"
    ) from None


def sum_of(path: Path) -> str:
    """The SHA-256 sum of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_files(folder: Path, sums: Mapping[str, str]) -> None:
    """Raise UserError if a file of an export is missing or changed."""
    for name, expected in sums.items():
        path = folder / name
        if not path.resolve().is_relative_to(folder.resolve()) or not path.is_file():
            raise UserError(f"{path} is missing; fetch the export again")
        if sum_of(path) != expected:
            raise UserError(f"{path} does not match its checksum; fetch the export again")
