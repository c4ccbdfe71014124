"""Run folders in object stores: "s3://BUCKET/PATH", "gs://BUCKET/PATH", or "file:///PATH" for a mounted file system.

    URL/NAME/{config.yaml, metrics.jsonl, checkpoints/NNNNNN/{manifest.json, ...}, ...}    named as in the run folder

Decisions that matter here:
- a store only keeps whole files under names: no renames of folders, no locks, no ordering between readers. So a
  checkpoint exists there when its `manifest.json` does, which is uploaded last and removed first; checkpoints without
  it are not fetched;
- pyarrow's file systems are used, which come with Ray Tune. Credentials come from the environment, and the files and
  services that it points to. An address with credentials in it is refused, by a message that does not repeat it;
- names in a store are untrusted: if one would lead out of the folder, by dots or by a link, all are refused. Fetched
  files are only stored; readers check them (`nip_ray.storage.checkpoint`). Programs are left out: a fetched config
  could name them as plugins, by their local paths.
"""

import os
import re
import shlex
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from importlib import import_module
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO
from urllib.parse import unquote

from nip_ray.errors import UserError
from nip_ray.storage.folder import CONFIG

MANIFEST = "manifest.json"
FILE_SYSTEMS = {"s3": "S3FileSystem", "gs": "GcsFileSystem", "file": "LocalFileSystem"}
"""Requirements of a scheme: some builds of pyarrow leave a store out."""

_KNOWN = re.compile(r"(s3|gs|file):/")
_ANY_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")
_ONE_SLASH = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/(?!/)")
_CHECKPOINT = re.compile(r"checkpoints/(\d{6,})/.+")
_CONTROL = re.compile(r"[\x00-\x1f\x7f\\]")
_NOT_IN_PATH = re.compile(rf"{_CONTROL.pattern}|[?#]")
_HINT = "write s3://BUCKET/PATH, gs://BUCKET/PATH or file:///PATH"
_CONNECT_S, _ANSWER_S = 5.0, 15.0  # of one attempt; there are three
_CHUNK = 64 * 2**20  # bytes
_ATTEMPTS = 3
_PROGRAMS = (".py", ".pyc", ".pyi", ".pyd", ".so")


@dataclass(frozen=True)
class Place:
    """A folder in a store. url: for display. path: for pyarrow's file system of `scheme`, without a trailing slash."""

    scheme: str
    path: str
    url: str

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path.rpartition("/")[2]

    def below(self, name: str) -> "Place":
        """The folder `name` in this one."""
        return Place(self.scheme, f"{self.path}/{name}", f"{self.url}/{name}")


def is_mirror(source: Path | str) -> bool:
    """True if `source` is an address in a store, also one that was a `Path` and has lost a slash."""
    return _KNOWN.match(str(source)) is not None


def place_of(source: Path | str, what: str) -> Place:
    """The place of an address. Raises UserError, for `what`, for any other text, without repeating possible secrets."""
    text = _ONE_SLASH.sub(lambda match: f"{match[1]}://" + ("/" if match[1] == "file" else ""), str(source), count=1)
    scheme, found, rest = text.partition("://")
    bucket, _, path = rest.partition("/")
    if not found or scheme not in FILE_SYSTEMS:
        fault = f"the scheme {scheme!r} is unknown" if found and scheme.isalnum() else "it has no scheme"
        raise UserError(f"{what}: {fault}; {_HINT}")
    if not (re.fullmatch(r"[\w.-]+", bucket) if scheme != "file" else bucket == ""):
        name = "file: takes a path without a host" if scheme == "file" else "the bucket is missing, or no name of one"
        raise UserError(f"{what}: {name}; credentials (and a port) come from the environment: {_HINT}")
    path = (unquote(path) if scheme == "file" else path).strip("/")
    if _NOT_IN_PATH.search(rest) or (path and any(part in ("", ".", "..") for part in path.split("/"))):
        raise UserError(
            f"{what}: the path has empty parts, dots for parts, ? or #, backslashes or control characters in it;"
            f" {_HINT}"
        )
    return Place(scheme, f"{bucket}/{path}".rstrip("/"), text.rstrip("/"))


def check_library(place: Place, what: str) -> None:
    """Raise UserError, for `what`, if the installed pyarrow does not support the store of `place`."""
    try:
        getattr(import_module("pyarrow.fs"), FILE_SYSTEMS[place.scheme])
    except (ImportError, AttributeError):
        raise UserError(
            f"{what}: this pyarrow knows no {place.scheme}://; install one from PyPI: pip install pyarrow"
        ) from None


class Store:
    """The files below one place, by their names relative to it ("checkpoints/000002/state.json").

    Methods raise OSError if the store refuses or does not answer, FileNotFoundError for missing files.
    """

    def __init__(self, place: Place) -> None:
        """Raises OSError when the store cannot be reached to get a bucket's region."""
        self.place = place
        self._system: Any = _open(place)

    def files(self) -> dict[str, int]:
        """name -> bytes, of all files except hidden ones; {} for a missing place. Names are as in the store."""
        from pyarrow.fs import FileSelector, FileType

        found = self._system.get_file_info(FileSelector(self.place.path, recursive=True, allow_not_found=True))
        start = len(self.place.path) + 1
        names = {info.path[start:]: info.size for info in found if info.type == FileType.File}
        return {
            name: size
            for name, size in names.items()
            if not any(part.startswith(".") and part != ".." for part in name.split("/"))
        }

    def read(self, name: str) -> bytes:
        """The content of a small file."""
        with self._system.open_input_stream(self._path(name)) as stream:
            return stream.read()

    def put(self, name: str, file: BinaryIO) -> None:
        """Upload `file`, from its position to its end, as `name`. It appears once it is complete."""
        local = self.place.scheme == "file"
        final = self._path(name)
        path = final if not local else f"{final.rpartition('/')[0]}/.{final.rpartition('/')[2]}.tmp"
        chunk = file.read(_CHUNK)  # before opening the stream: closing it publishes its content
        if local:
            self._system.create_dir(final.rpartition("/")[0], recursive=True)
        with self._system.open_output_stream(path) as stream:
            while chunk:
                stream.write(chunk)
                stream.flush()  # else all of a large file waits in memory
                chunk = file.read(_CHUNK)
        if local:
            self._system.move(path, final)

    def remove(self, name: str) -> None:
        """Remove a file; a missing one is not an error."""
        with suppress(FileNotFoundError):
            self._system.delete_file(self._path(name))

    def remove_folder(self, name: str) -> None:
        """Remove everything below `name`; missing files are not errors."""
        with suppress(FileNotFoundError):
            self._system.delete_dir(self._path(name))

    def fetch(self, name: str, path: Path) -> None:
        """Copy a file to `path`, making its folders."""
        path.parent.mkdir(parents=True, exist_ok=True)
        with self._system.open_input_stream(self._path(name)) as stream, path.open("wb") as file:
            while chunk := stream.read(_CHUNK):
                file.write(chunk)

    def leads_out(self, name: str) -> bool:
        """True if `name` would be outside its folder, here or in the store."""
        path = PurePosixPath(name)
        if _CONTROL.search(name) or path.is_absolute() or str(path) != name or ".." in path.parts:
            return True
        root = os.path.realpath(self.place.path)
        return self.place.scheme == "file" and not os.path.realpath(self._path(name)).startswith(f"{root}{os.sep}")

    def _path(self, name: str) -> str:
        return f"{self.place.path}/{name}"


def checkpoint_of(name: str) -> int | None:
    """The iteration of the checkpoint that the file `name` of a run folder belongs to; None for all other files."""
    match = _CHECKPOINT.fullmatch(name)
    return int(match[1]) if match else None


def manifest_of(iteration: int) -> str:
    """The name of a checkpoint's manifest in a run folder."""
    return f"checkpoints/{iteration:06d}/{MANIFEST}"


def fetch_mirror(url: Path | str, into: Path, wanted: Callable[[str], bool] = lambda name: True) -> Path:
    """Download the run folder at `url`, "s3://BUCKET/PATH/NAME", to the new folder `into`, in one step; returns `into`.

    wanted: filter of names (None: all). Checkpoints without a manifest are left out, and programs. Contents are not
    checked. Raises UserError when the address is invalid, there is no run, names lead out of the folder, `into` is not
    empty, or the store or the disk fails.
    """
    place = place_of(url, "the run to fetch")
    check_library(place, place.url)
    if (into / CONFIG).exists():
        onward = f"continue with it by `nip-ray resume {shlex.quote(str(into))}`"
        raise UserError(f"{into} holds a run already; {onward}, or fetch {place.url} elsewhere (--run-dir)")
    if into.exists() and (not into.is_dir() or any(into.iterdir())):
        raise UserError(f"{into} holds something already; {place.url} needs a new or empty folder (--run-dir)")
    try:
        into.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".fetching-", dir=into.parent) as aside:
            made = _download(place, Path(aside), wanted)
            if into.exists():
                into.rmdir()
            made.rename(into)
    except OSError as error:
        raise UserError(f"{place.url} cannot be fetched to {into}: {one_line(error)}") from None
    return into


def fetch_copy(url: str, run_dir: Path) -> bool:
    """Fetch the missing run folder `run_dir` from its copy below `url`; return True if there is one.

    Raises UserError as `fetch_mirror` does, in particular if the store is unreachable: then it is unknown whether the
    run exists.
    """
    place = place_of(url, "tracking.mirror.url").below(run_dir.resolve().name)
    try:
        there = CONFIG in Store(place).files()
    except OSError as error:
        raise UserError(
            f"--or-resume: {place.url} cannot be queried for the run ({one_line(error)}); fix that, or leave"
            " --or-resume out"
        ) from None
    if there:
        fetch_mirror(place.url, run_dir)
    return there


def local_run(source: Path | str, into: Path | None = None) -> Path:
    """The run folder given on a command line: a path unchanged; an address, fetched to `into` (None: ``runs/NAME``).

    Raises UserError for `into` with a path, and as `fetch_mirror` does.
    """
    text = str(source)
    if _ANY_SCHEME.match(text) is None or (not is_mirror(text) and Path(text).exists()):
        if into is not None:
            raise UserError(
                f"{text} is a folder here already; another one (--run-dir) is for a run that is fetched from a"
                " store (s3://...)"
            )
        return Path(text)
    place = place_of(text, "the run to fetch")
    return fetch_mirror(place.url, into if into is not None else Path("runs") / place.name)


def one_line(error: Exception) -> str:
    """An error on one line without secrets."""
    from nip_ray.secrets import Redactor

    lines = Redactor()(str(error)).strip().splitlines() or [type(error).__name__]
    return lines[0] if len(lines[0]) <= 300 else f"{lines[0][:300]}..."


def _download(place: Place, aside: Path, wanted: Callable[[str], bool]) -> Path:
    """A new folder in `aside` with the wanted files. Starts again if a continuing run has removed listed files."""
    store = Store(place)
    for attempt in range(_ATTEMPTS):
        made = aside / f"run-{attempt}"
        made.mkdir()
        names = _complete(store)
        try:
            for name in sorted(filter(wanted, names), key=lambda name: (checkpoint_of(name) is None, name)):
                store.fetch(name, made / name)  # checkpoints first: rows copied later are not older
        except FileNotFoundError:
            continue
        return made
    raise UserError(
        f"{place.url}: is being written faster than it can be fetched; try again, or end the run that writes it"
    )


def _complete(store: Store) -> list[str]:
    """The names of a run's files without programs and unfinished checkpoints. Raises UserError if there is no run, or
    for an invalid name."""
    found: Mapping[str, int] = store.files()
    for name in found:
        if store.leads_out(name):
            raise UserError(
                f"{store.place.url}: {name!r} would be outside its folder; nothing was fetched, this is not a copy that"
                " nip_ray made"
            )
    if CONFIG not in found:
        raise UserError(
            f"{store.place.url}: no run here ({'it has no ' + CONFIG if found else 'there is nothing'}); name URL/NAME"
            " of a run"
        )
    finished = {
        number for name in found if (number := checkpoint_of(name)) is not None and manifest_of(number) in found
    }
    kept = [name for name in found if not name.lower().endswith(_PROGRAMS)]
    return [name for name in kept if (number := checkpoint_of(name)) is None or number in finished]


def _open(place: Place) -> Any:
    """pyarrow's file system of a place."""
    from pyarrow import fs

    if place.scheme == "file":
        return fs.LocalFileSystem()
    if place.scheme == "gs":
        return fs.GcsFileSystem(retry_time_limit=timedelta(seconds=_ATTEMPTS * _ANSWER_S))
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    if region is None and endpoint is None:
        region = fs.resolve_s3_region(place.path.partition("/")[0])
    limits = {"connect_timeout": _CONNECT_S, "request_timeout": _ANSWER_S}
    # delayed: a small file is one request
    return fs.S3FileSystem(endpoint_override=endpoint, region=region, allow_delayed_open=True, **limits)
