"""The run folder, the same for every trainer.

    config.yaml  metrics.jsonl  checkpoints/NNNNNN/{manifest.json, ...}  transcripts/*.jsonl  instances.json
    evaluation.json  report.html environment.json

Decisions that matter here:
- a folder is a run once it has a `config.yaml`, which is written last and atomically; leftovers of a killed `create`
  count as empty, so that it can be repeated;
- files are replaced, never overwritten. The one exception is `metrics.jsonl`, to which rows are appended; a torn last
  line is ignored (see `nip_ray.storage.files`);
- one writer at a time, which holds the lock of `.lock`;
- JSON stays valid: non-finite numbers are written as null. Every document and every line carries a format version,
  which readers check and remove; newer versions are refused, not guessed at.
"""

import functools
import json
import math
import os
import platform
import re
import shlex
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from hashlib import sha256
from importlib import metadata
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

from nip_ray.errors import UserError
from nip_ray.storage.files import LineFile, cannot_write, check_version, lines_of, make_parents, sync, write_atomically
from nip_ray.storage.files import lock as lock_file
from nip_ray.storage.stored_config import plain_config, write_config
from nip_ray.version import __version__

VERSION = 1
"""The format of every file written here."""

CONFIG, METRICS, LOCK = "config.yaml", "metrics.jsonl", ".lock"
IDENTITY = "run.json"
EXPORTED = "exported.json"
"""In a folder exported from a run: it can be evaluated, not resumed."""
WARM_UP = "warm_up"
"""The folder of checkpoints of an unfinished warm-up of language models."""
_BEFORE_THE_FIRST_ITERATION = {CONFIG, "environment.json", "run.json", "state.json", "warnings.log", "experiment.yaml"}

_TRANSCRIPT = re.compile(r"(?:[A-Za-z_]+-)?(\d{6,})")
_MENDED_BY = {"run.json": "remove it, and the run gets a new name", "state.json": "go back to a copy of the folder"}
_LEFTOVER = re.compile(r"\..+\.tmp-(\d{1,9})")


class RunFolder:
    """One run on disk, from `create` or `open`; a context manager that releases its lock at the end.

    path: the folder. checkpoints: the folder of `nip_ray.storage.checkpoint`. writable: True if this object holds the
    lock.
    """

    def __init__(self, path: Path, lock: TextIO | None) -> None:
        """For `create` and `open` alone."""
        self.path, self.checkpoints, self.transcripts = path, path / "checkpoints", path / "transcripts"
        self._lock: TextIO | None = lock
        self._metrics: LineFile | None = None
        self._figures: dict[str, Any] | None = None  # else thousands of rows are read again after each of them

    @classmethod
    def create(cls, path: Path | str, config_yaml: str) -> "RunFolder":
        """A new run at `path`, opened for writing, with parents and `config_yaml` with its checksum. A run that ended
        before its first iteration is replaced; one of the same config leaves its name, by which trackers and a copy in
        a store know it.

        Raises UserError when the folder already holds a run or anything else, cannot be written, or is being written by
        another process.
        """
        path = Path(path)
        try:
            path.mkdir(parents=True, exist_ok=True)
            foreign = sorted(
                entry.name for entry in path.iterdir() if entry.name != LOCK and not _LEFTOVER.fullmatch(entry.name)
            )
        except FileExistsError:
            raise UserError(f"{path} is a file; a run needs a folder: choose another path") from None
        except OSError as error:
            raise UserError(
                f"{path}: no run can be made here ({error.strerror}); choose a folder that can be written"
            ) from None
        if CONFIG not in foreign and foreign:
            raise UserError(
                f"{path} is not empty and holds no run (it has {', '.join(foreign[:3])}); choose a new or empty folder"
            )
        if not only_begun(path):
            _refuse_run(path)
        run = cls(path, lock(path))
        try:
            if only_begun(path):  # another process may have made one before we got the lock
                same = run.config_yaml() == config_yaml
                for name in _BEFORE_THE_FIRST_ITERATION - ({"run.json"} if same else set()):
                    (path / name).unlink(missing_ok=True)
            _refuse_run(path)
            _remove_leftovers(path)
            write_config(path / CONFIG, config_yaml)
            run._sync_name()
        except BaseException:
            run.close()
            raise
        return run

    @classmethod
    def open(cls, path: Path | str, write: bool = False) -> "RunFolder":
        """The run at `path`; with `write` it is locked against other writers until `close`.

        Raises UserError when there is no run, or with `write` when another process holds it.
        """
        path = Path(path)
        if not path.is_dir():
            raise UserError(
                f"{path}: no run here, {'it is not a folder' if path.exists() else 'there is no such folder'}"
            )
        if not (path / CONFIG).is_file():
            raise UserError(f"{path}: no run here, {CONFIG} is missing")
        if (path / IDENTITY).is_file():
            _refuse_newer(path / IDENTITY)
        run = cls(path, lock(path) if write else None)
        if write:
            _remove_leftovers(path)
            try:
                run._sync_name()  # its creator may have been killed before its name was on disk
            except UserError:
                run.close()
                raise
        return run

    @property
    def writable(self) -> bool:
        """True if this object holds the lock."""
        return self._lock is not None

    def config_yaml(self) -> str:
        """The config as passed to `create`. Raises UserError when it cannot be read."""
        return plain_config(_read_text(self.path / CONFIG), str(self.path / CONFIG))

    def replace_config(self, text: str) -> None:
        """Put `text` (YAML) in the place of the stored config, unless it is the same. Raises UserError when it cannot
        be written."""
        if text != self.config_yaml():
            write_config(self.path / CONFIG, text)

    def append_metrics(self, row: Mapping[str, Any]) -> None:
        """Append one row, a flat mapping with an integer "iteration", to `metrics.jsonl`; on return the system has it.

        Values are numbers (Python's, numpy's, or tensors with one element), strings, booleans or None. NaN and both
        infinities are written as null: the file stays valid JSON, and the kind is lost. Raises UserError when the file
        cannot be written, ValueError for a row that is not flat or has no iteration.
        """
        self._require_lock()
        plain = json_ready(row)
        if type(plain.get("iteration")) is not int or "version" in plain:
            raise ValueError(
                f"a row of metrics needs an integer `iteration` and leaves `version` to us (got {row!r:.200})"
            )
        nested = [key for key, value in plain.items() if isinstance(value, dict | list)]
        if nested:
            raise ValueError(f"rows of metrics are flat, but {', '.join(nested)} is not a single value")
        if self._metrics is None:
            path = self.path / METRICS
            self._metrics = LineFile(path, locked=False)  # the run's own lock guards it
            self._metrics.cut(sum(len(line) for _, line in _read_lines(path, "iteration", torn_tail=True)))
        self._metrics.append(_line(plain))
        if self._figures is not None:
            self._figures = _after(self._figures, plain)

    def metrics(self) -> list[dict[str, Any]]:
        """All rows of `metrics.jsonl`, without a torn last line. Raises UserError naming a damaged line before it."""
        return [row for row, _ in _read_lines(self.path / METRICS, "iteration", torn_tail=True)]

    def figures(self) -> dict[str, Any]:
        """The last row of metrics, with the metrics of the last evaluation if that was in an earlier iteration."""
        found = self._figures
        if found is None:
            found = functools.reduce(_after, self.metrics(), dict[str, Any]())
            self._figures = found if self.writable else None  # another process may append
        return dict(found)

    def rewind_metrics(self, iteration: int) -> None:
        """Drop, in one step, the rows of iterations after `iteration` and a torn last line.

        Raises UserError for a damaged line before the last, or when the folder cannot be written.
        """
        self._require_lock()
        self._close_metrics()
        path = self.path / METRICS
        if path.exists():
            kept = [
                line for row, line in _read_lines(path, "iteration", torn_tail=True) if row["iteration"] <= iteration
            ]
            write_atomically(path, b"".join(kept))

    def mend_metrics(self, iterations: Iterable[int]) -> str:
        """Order the rows, with only the last of each iteration, and a row `missing: true` for each of these iterations
        without one.

        Returns a warning, "" if nothing was changed.
        """
        rows = self.metrics()
        found = [row["iteration"] for row in rows]
        missing = sorted(set(iterations) - set(found))
        faults = []
        if missing:
            shown = ", ".join(map(str, missing[:3])) + (f" ... {missing[-1]}" if len(missing) > 3 else "")
            lost = f"{len(missing)} rows before the checkpoint are lost (iterations {shown})"
            faults.append(f"{lost}; rows that mark the gap are in their place")
        if found != sorted(set(found)):
            faults.append("rows stood twice or out of order; they are sorted, and of each iteration the last is kept")
        if not faults:
            return ""
        made = {number: {"iteration": number, "missing": True} for number in missing} | {
            row["iteration"]: row for row in rows
        }
        self._close_metrics()
        write_atomically(self.path / METRICS, b"".join(_line(made[number]) for number in sorted(made)))
        return f"{self.path / METRICS}: {'; '.join(faults)}"

    def sync(self) -> None:
        """Force the rows so far to disk, before a checkpoint that relies on them."""
        if self._metrics is not None:
            self._metrics.sync()

    def row_sums(self) -> list[str]:
        """A checksum of each row of `metrics.jsonl`, in file order. Raises UserError when it cannot be read."""
        return [_row_sum(line) for line in lines_of(self.path / METRICS)]

    def changed_rows(self, stated: Sequence[str]) -> list[int]:
        """The iterations whose row differs from `stated`, the `row_sums` of iterations 1, 2, ...; missing rows are
        reported by `mend_metrics`."""
        rows = ((row["iteration"], line) for row, line in _read_lines(self.path / METRICS, "iteration", torn_tail=True))
        return sorted(
            {number for number, line in rows if 0 < number <= len(stated) and _row_sum(line) != stated[number - 1]}
        )

    def write_transcripts(self, name: str, records: Iterable[Mapping[str, Any]]) -> Path:
        """Write `transcripts/NAME.jsonl`, one record per line, in one step, replacing any old file.

        name: the iteration with six digits, after a word if there are several kinds: "000050", "greedy-000050". Raises
        UserError when it cannot be written, ValueError for another form of name.
        """
        self._require_lock()
        return write_lines(self._transcript(name), records)

    def read_transcripts(self, name: str) -> list[dict[str, Any]]:
        """The records of `transcripts/NAME.jsonl`. Raises UserError when it is missing or a line of it is damaged."""
        path = self._transcript(name)
        if not path.is_file():
            raise UserError(f"{path} is missing; this run has {', '.join(self.transcript_names()) or 'no transcripts'}")
        return read_lines(path)

    def transcript_names(self) -> list[str]:
        """The names of all transcripts, by iteration."""
        found = [
            (int(match[1]), match[0])
            for file in self.transcripts.glob("*.jsonl")
            if (match := _TRANSCRIPT.fullmatch(file.stem))
        ]
        return [name for _, name in sorted(found)]

    def rewind_transcripts(self, iteration: int) -> None:
        """Remove the transcripts of iterations after `iteration`. Raises UserError if the folder cannot be written."""
        self._require_lock()
        for name in self.transcript_names():
            if int(name.rpartition("-")[2]) > iteration:
                path = self._transcript(name)
                try:
                    path.unlink(missing_ok=True)
                except OSError as error:
                    cannot_write(path, error)

    def write_json(self, name: str, content: Mapping[str, Any]) -> Path:
        """Write the document `name` ("evaluation.json") in one step, with its format and version. Needs no lock: the
        last writer wins.

        Non-finite numbers become null. Raises UserError when it cannot be written, ValueError for a name with a folder
        in it.
        """
        return write_document(self._document(name), content)

    def read_json(self, name: str) -> dict[str, Any]:
        """The content passed to `write_json`. Raises UserError if it is missing, damaged, or of a newer version."""
        path, how = self._document(name), _MENDED_BY.get(name, "write it again")
        try:
            document = json.loads(_read_text(path))
        except (ValueError, RecursionError) as error:
            raise UserError(f"{path} is damaged ({error}); {how}") from None
        if not isinstance(document, dict) or document.get("format") != _format(name):
            raise UserError(f"{path} is damaged: it is not a document of the format {_format(name)}; {how}")
        check_version(document.get("version"), VERSION, str(path))
        return {key: value for key, value in document.items() if key not in ("format", "version")}

    def close(self) -> None:
        """Close all files and release the lock."""
        self._close_metrics()
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def __enter__(self) -> "RunFolder":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _sync_name(self) -> None:
        """Return when the folder itself is on disk."""
        try:
            sync(self.path.absolute().parent)
        except OSError as error:
            cannot_write(self.path, error)

    def _require_lock(self) -> None:
        """A removed lock file excludes nothing: take the present one. Raises UserError if another process has it."""
        if self._lock is None:
            raise RuntimeError(f"{self.path} was not opened for writing")
        if not os.fstat(self._lock.fileno()).st_nlink:
            ours, self._lock = self._lock, lock(self.path)
            ours.close()

    def _close_metrics(self) -> None:
        self._figures = None
        if self._metrics is not None:
            self._metrics.close()
            self._metrics = None

    def _transcript(self, name: str) -> Path:
        if not _TRANSCRIPT.fullmatch(name):
            raise ValueError(f"transcripts are named by their iteration, as in 000050 or greedy-000050 (got {name!r})")
        return self.transcripts / f"{name}.jsonl"

    def _document(self, name: str) -> Path:
        if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]*\.json", name):
            raise ValueError(f"a document of the run folder is called NAME.json (got {name!r})")
        return self.path / name


def read_export(folder: RunFolder) -> dict[str, Any]:
    """The description of an export of language models: iteration, models (group -> name), elsewhere (groups whose
    weights a provider has) and files (path -> SHA-256 sum). Raises UserError if it is damaged, or of networks."""
    found = folder.read_json(EXPORTED)
    kinds = {"iteration": int, "models": dict, "elsewhere": list, "files": dict}
    if wrong := [key for key, kind in kinds.items() if not isinstance(found.get(key), kind)]:
        raise UserError(
            f"{folder.path / EXPORTED} is damaged: it has no {', '.join(wrong)} of language models; fetch the export"
            " again"
        )
    return found


def only_begun(path: Path) -> bool:
    """True if `path` is the folder of a run that ended during its setup, without results to continue from."""
    found = {entry.name for entry in path.iterdir() if not entry.name.startswith(".")}
    return CONFIG in found and found <= _BEFORE_THE_FIRST_ITERATION


def environment(extra: Mapping[str, Any] = {}) -> dict[str, Any]:
    """The environment of a run: Python, platform, processors, versions of the main packages, the commit of nip_ray's
    own checkout ("-dirty" with changes), the time. `extra` is added and wins. Contains nothing of the process
    environment."""
    made = {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "processors": os.cpu_count(),
        "usable_processors": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "nip_ray": __version__,
        **{package: _version_of(package) for package in ("torch", "ray", "numpy")},
        "commit": _commit(Path(__file__).resolve().parents[2]),
    }
    return {**made, **extra}


def json_ready(value: Any) -> Any:
    """`value` as plain JSON values: mappings, lists and scalars, tensors and arrays unpacked, non-finite numbers as
    None.

    Raises ValueError for anything else, and for keys that are not strings.
    """
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Mapping):
        if not all(isinstance(key, str) for key in value):
            raise ValueError(f"keys must be strings (got {list(value)!r:.200})")
        return {key: json_ready(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [json_ready(part) for part in value]
    if hasattr(value, "tolist"):  # numpy and torch, scalars too
        return json_ready(value.tolist())
    raise ValueError(f"{type(value).__name__} cannot be written as JSON ({value!r:.200})")


def write_document(path: Path, content: Mapping[str, Any], kind: str | None = None) -> Path:
    """Write the JSON at `path` in one step, with format and version; see `RunFolder.write_json`. kind: of its format,
    if the file may have any name."""
    plain = json_ready(content)
    if {"format", "version"} & set(plain):
        raise ValueError(f"{path.name}: `format` and `version` are ours to write")
    document = {"format": _format(kind or path.name), "version": VERSION, **plain}
    write_atomically(path, (json.dumps(document, indent=2, allow_nan=False) + "\n").encode())
    return path


def write_lines(path: Path, records: Iterable[Mapping[str, Any]]) -> Path:
    """Write one JSON object per line to `path`, in one step, making its folder. Raises UserError if unwritable."""
    make_parents(path)
    write_atomically(path, b"".join(_line(json_ready(record)) for record in records))
    return path


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The records of `write_lines`; [] if the file is missing. Raises UserError that names a damaged line."""
    return [record for record, _ in _read_lines(path, None, torn_tail=False)]


def _refuse_run(path: Path) -> None:
    if (path / CONFIG).exists():
        where = shlex.quote(str(path))
        raise UserError(f"{path} holds a run already; resume it by `nip-ray resume {where}`, or choose another folder")


def lock(path: Path) -> TextIO:
    """The locked lock file of a run or a sweep; the lock is released with the file object, or with the process. It
    names its holder.

    Raises UserError when another process holds it.
    """
    try:
        file = (path / LOCK).open("a+", encoding="utf-8")
    except OSError as error:
        cannot_write(path / LOCK, error)
    try:
        lock_file(file, path)
    except UserError:
        file.close()
        raise
    try:
        file.truncate(0)
        file.write(f"process {os.getpid()} on {platform.node()}\n")
        file.flush()
    except OSError as error:
        with suppress(OSError):  # its buffer cannot be written either
            file.close()
        cannot_write(path / LOCK, error)
    return file


def _row_sum(line: bytes) -> str:
    return sha256(line.rstrip(b"\n")).hexdigest()[:8]


def _remove_leftovers(folder: Path) -> None:
    """Remove the leftovers of dead writers."""
    import psutil

    for entry in folder.rglob(".*.tmp-*"):
        match = _LEFTOVER.fullmatch(entry.name)
        if match and not psutil.pid_exists(int(match[1])):
            with suppress(OSError):
                entry.unlink()


def _after(figures: Mapping[str, Any], row: Mapping[str, Any]) -> dict[str, Any]:
    """`figures` of a run after one more row."""
    return {**{key: value for key, value in figures.items() if key.startswith("eval")}, **row}


def _line(plain: dict[str, Any]) -> bytes:
    return (json.dumps({**plain, "version": VERSION}, allow_nan=False) + "\n").encode()


def _read_lines(path: Path, required: str | None, torn_tail: bool) -> list[tuple[dict[str, Any], bytes]]:
    """(object, its line) for each line of `path`, [] if missing; with `torn_tail` a truncated last line is left out."""
    rows, lines = [], lines_of(path)
    for number, line in enumerate(lines, 1):
        row = _parse_line(line, required)
        if row is None:
            if torn_tail and number == len(lines):
                break
            raise UserError(f"{path}: line {number} of {len(lines)} is damaged; fix or remove it, or go back to a copy")
        check_version(row.pop("version"), VERSION, f"{path}: line {number}")
        rows.append((row, line))
    return rows


def _parse_line(line: bytes, required: str | None) -> dict[str, Any] | None:
    if not line.endswith(b"\n"):
        return None
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(row, dict) or "version" not in row or (required and type(row.get(required)) is not int):
        return None
    return row


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UserError(f"{path} is missing") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is damaged: it is not text in UTF-8 ({error.reason} at byte {error.start})") from None
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror})") from None


def _refuse_newer(path: Path) -> None:
    """Raise UserError if the document at `path` is of a newer version; readers report any other fault."""
    try:
        document = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return
    version = document.get("version") if isinstance(document, dict) else None
    if type(version) is int:
        check_version(version, VERSION, str(path))


def _format(name: str) -> str:
    return f"nip_ray.{name.removesuffix('.json')}"


def _version_of(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _commit(checkout: Path) -> str | None:
    """The commit of `checkout`, None if it is not a checkout or there is no git."""
    if not (checkout / ".git").exists():
        return None
    describe = ("describe", "--always", "--dirty", "--abbrev=40", "--exclude=*")
    try:
        done = subprocess.run(
            ["git", "--no-optional-locks", "-C", str(checkout), *describe],
            capture_output=True,
            text=True,
            timeout=10,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None if done.returncode == 0 else None
