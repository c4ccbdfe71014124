"""The runs below a folder with their status, from the first and last lines of their files: hundreds in about a second.

Decisions that matter here:
- a folder with a `metrics.jsonl`, or a `config.yaml` beside another file that runs begin with, is a run, and its
  subfolders are not searched. Links to folders are not followed, so that no run is listed twice and none from outside;
  a sweep's trials are listed once;
- of `metrics.jsonl` the last `_MAX_TAIL` bytes are read, for the last row and the last evaluation. Earlier damage is
  only found by readers of the whole file;
- locks are held only to test whether another process holds them, and nothing is written.
"""

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import yaml

from nip_ray.errors import UserError
from nip_ray.storage.files import is_locked
from nip_ray.storage.folder import CONFIG, LOCK, METRICS, RunFolder
from nip_ray.storage.identity import IDENTITY, is_finished
from nip_ray.storage.yaml_size import MOST, load_bounded

State = Literal["running", "ended", "interrupted", "damaged"]
STATES: tuple[State, ...] = ("running", "ended", "interrupted", "damaged")

HEADLINES = (
    "eval/verifier/accuracy",
    "eval_sampled/verifier/accuracy",
    "eval/exploitability",
    "eval/rho/own-own",
    "train/verifier/accuracy",
)
"""The headline metrics: the first that a run has; else the return of its first agent."""
_RETURNS = ("/return", "/value", "/return_mean")

_BEGUN = {LOCK, IDENTITY, "environment.json"}
_SWEEP, _TRIALS = "sweep.yaml", "trials"
_MAX_DEPTH = 6
_MAX_TAIL = 1 << 19
_MAX_DEEP = 100
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

Stamp = tuple[int, int]
"""Modification time and size of a file: unchanged while the file is."""


@dataclass(frozen=True)
class Listed:
    """The status of a run.

    place: its folder relative to the searched one, with "/" (for that one itself its name). task: scenario, or
    environment of a runner file. note: damage, else "". done, total: iterations (of a runner file: timesteps); None if
    unknown. metric, value: its headline. changed: time of its last write, in seconds since 1970. config: {} if it
    cannot be read.
    """

    path: Path
    place: str
    name: str
    task: str
    protocol: str
    algorithm: str
    seed: str
    state: State
    note: str
    done: int
    total: int | None
    metric: str
    value: float | None
    changed: float
    config: Mapping[str, Any]

    @property
    def about(self) -> str:
        """Task, protocol and algorithm in one line."""
        return ", ".join(dict.fromkeys(filter(None, (self.task, self.protocol, self.algorithm))))

    @property
    def progress(self) -> str:
        """Its progress, as in 12/40."""
        return str(self.done) if self.total is None else f"{self.done}/{self.total}"

    def record(self) -> dict[str, Any]:
        """All except the config, as plain JSON values."""
        left_out = ("config", "path")
        return {"path": str(self.path)} | {
            part.name: getattr(self, part.name) for part in fields(self) if part.name not in left_out
        }


def find_runs(folder: Path, depth: int = _MAX_DEPTH, told: Callable[[str], None] | None = None) -> list[Path]:
    """The run folders at or below `folder`, by name. depth: levels down. told: called with unreadable folders."""
    found: list[Path] = []

    def unread(error: OSError) -> None:
        if told is not None:
            told(f"{error.filename} cannot be read ({error.strerror}); left out")

    for here, below, names in os.walk(folder, onerror=unread):
        path, files = Path(here), set(names)
        if METRICS in files or (CONFIG in files and files & _BEGUN):
            found.append(path)
            below.clear()
        elif len(path.relative_to(folder).parts) >= depth:
            below.clear()
        else:
            below[:] = [name for name in below if not name.startswith(".") and (_SWEEP not in files or name == _TRIALS)]
    return sorted(found)


def list_runs(folder: Path, told: Callable[[str], None] | None = None) -> list[Listed]:
    """All runs at or below `folder`: running ones first, then by last write. told: see `find_runs`.

    Raises UserError when there is no such folder.
    """
    if not folder.is_dir():
        raise UserError(
            f"{folder}: {'is a file' if folder.exists() else 'no such folder'}, name one with run folders in it, as"
            " runs/"
        )
    listed = [look_at(path, folder) for path in find_runs(folder, told=told)]
    return sorted(listed, key=lambda run: (run.state != "running", -run.changed, run.place))


def look_at(path: Path, above: Path) -> Listed:
    """The status of the run at `path`. above: the searched folder."""
    place = path.relative_to(above).as_posix() if path != above else path.resolve().name
    place = place.encode(errors="replace").decode()  # a name that is not UTF-8
    marks = {
        name: mark
        for name in (CONFIG, METRICS, IDENTITY, "evaluation.json")
        if (mark := _stamp(path / name)) is not None
    }
    changed = max((mark[0] for mark in marks.values()), default=0) / 1e9
    config, faults = {}, ["config.yaml is missing"]
    if CONFIG in marks:
        config, fault = _config(path / CONFIG, marks[CONFIG])
        faults = [fault] if fault else []
    last: Mapping[str, Any] = {}
    headline: tuple[str, float | None] = ("", None)
    if METRICS in marks:
        last, headline, fault = _tail(path / METRICS, marks[METRICS])
        faults += [fault] if fault else []
    done, planned = last.get("iteration", 0), config.get("iterations", _inner(config, "driver", "timesteps"))
    total = planned if type(planned) is int else None
    ended = False
    try:
        ended = CONFIG in marks and (is_finished(RunFolder(path, None)) or _runner_ended(path, config, done, total))
    except UserError as error:
        faults.append(str(error).removeprefix(f"{path}{os.sep}"))
    if ended and total and not last and not faults:
        faults.append(f"{METRICS} has no complete row")
    running = is_locked(path / LOCK)
    state: State = "running" if running else "damaged" if faults else "ended" if ended else "interrupted"
    task, protocol, algorithm = _about(config)
    name, seed = str(config.get("name") or path.resolve().name), str(config.get("seed", ""))
    note = "; ".join(faults)
    return Listed(
        path, place, name, task, protocol, algorithm, seed, state, note, done, total, *headline, changed, config
    )


def headline_of(row: Mapping[str, Any]) -> tuple[str, float | None]:
    """(key, value) of a row's headline metric; ("", None) for a row without one."""
    returns = (
        key for end in _RETURNS for kind in ("eval", "") for key in row if key.startswith(kind) and key.endswith(end)
    )
    for key in (*HEADLINES, *returns):
        value = row.get(key)
        if isinstance(value, int | float) and not isinstance(value, bool):
            return key, float(value)
    return "", None


def _stamp(path: Path) -> Stamp | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size


def config_of(text: str) -> tuple[dict[str, Any], str]:
    """The config in a YAML text, and its fault ("": none). Limits the time and memory that any text can take."""
    try:
        if _depth(text) > _MAX_DEEP:
            raise OverflowError
        found = load_bounded(text, _LOADER)
    except OverflowError:
        return {}, f"{CONFIG} is not a config: more than {_MAX_DEEP} levels or {MOST:,} values"
    except (yaml.YAMLError, ValueError, RecursionError):
        return {}, f"{CONFIG} is not YAML"
    return (found, "") if isinstance(found, dict) else ({}, f"{CONFIG} holds no keys")


@lru_cache(maxsize=4096)
def _config(path: Path, mark: Stamp) -> tuple[Mapping[str, Any], str]:
    """The config at `path`, and its fault. mark: the file's, so that changed files are read again."""
    del mark
    try:
        return config_of(path.read_text(encoding="utf-8", errors="replace"))
    except OSError as error:
        return {}, f"{CONFIG} cannot be read ({error.strerror})"


def _depth(text: str) -> int:
    """The nesting depth of YAML: beyond some depth libyaml's composer crashes the process."""
    depth = deepest = 0
    for event in yaml.parse(text, _LOADER):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        deepest = max(deepest, depth)
        if deepest > _MAX_DEEP:
            break
    return deepest


@lru_cache(maxsize=4096)
def _tail(path: Path, mark: Stamp) -> tuple[Mapping[str, Any], tuple[str, float | None], str]:
    """(last row, headline, fault) of the rows at `path`; a torn last line is ignored."""
    start = max(0, mark[1] - _MAX_TAIL)
    try:
        with path.open("rb") as file:
            file.seek(start)
            data = file.read(mark[1] - start)
    except OSError as error:
        return {}, ("", None), f"{METRICS} cannot be read ({error.strerror})"
    lines = data[data.find(b"\n") + 1 if start else 0 : data.rfind(b"\n") + 1].splitlines()
    last = _row(lines[-1]) if lines else {}
    if last is None:
        return {}, ("", None), f"the last line of {METRICS} is damaged"
    tested = next((row for line in reversed(lines) if b'"eval' in line and (row := _row(line))), {})
    found = headline_of(tested)
    return last, found if found[0].startswith("eval") else headline_of(last), ""


def _row(line: bytes) -> dict[str, Any] | None:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) and type(row.get("iteration")) is int else None


def _inner(config: Mapping[str, Any], *keys: str) -> Any:
    for key in keys:
        config = config.get(key, {}) if isinstance(config, Mapping) else {}
    return config or ""


def _about(config: Mapping[str, Any]) -> tuple[str, str, str]:
    """(task, protocol, algorithm); for a runner file environment, "", and the learners' algorithms."""
    if "environment" in config:
        learners = config.get("learners")
        names = [str(_inner(one, "algorithm", "name")) for one in learners] if isinstance(learners, list) else []
        task = (
            _inner(config, "environment", "id")
            or _inner(config, "environment", "config")
            or _inner(config, "environment", "name")
        )
        return str(task), "", " and ".join(dict.fromkeys(names))
    scenario = str(_inner(config, "scenario", "game") or _inner(config, "scenario", "name"))
    return scenario, str(_inner(config, "protocol", "name")), str(_inner(config, "algorithm", "name"))


def _runner_ended(path: Path, config: Mapping[str, Any], done: int, total: int | None) -> bool:
    """True if a run of a runner file has done all its timesteps, and its evaluation if it has one."""
    if "environment" not in config or total is None or done < total:
        return False
    return not _inner(config, "evaluation", "timesteps") or (path / "runner_evaluation.json").is_file()
