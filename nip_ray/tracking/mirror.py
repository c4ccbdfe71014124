"""An object store: a copy of the run folder under `tracking.mirror.url`, to resume it on another machine.

Decisions that matter here:
- the state of the folder is copied, not its changes: a pass compares both sides and copies all differences. So passes
  may fail or be left out; the next one catches up. One thread does them, one after another;
- a checkpoint's files are held open before the rows are copied and its manifest is uploaded last. So pruning cannot
  remove them, and a finished checkpoint in the mirror has all its rows. The `state.json` of a run of language models is
  treated in the same way. Pruned checkpoints are removed only after that;
- a copy may outlive what it was made of: a checkpoint in the mirror that is newer than all here, where they were lost
  or are damaged, is never removed, and ends the copying;
- unlike other trackers this one is not given up when it fails: it warns once, and retries every `interval_s`;
- a foreign copy is not touched either: neither another run's of the same name, nor one that another machine has
  continued. The local `.mirror` records the progress of this folder's own copies;
- hidden files, links and `wandb/` are not copied: locks, incomplete files, and the library files of Weights & Biases.
"""

import json
import os
import re
import threading
import time
from collections.abc import Mapping
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path
from stat import S_ISREG
from typing import Any, BinaryIO, NamedTuple

from nip_ray.progress import say
from nip_ray.settings.tracking import MirrorSettings
from nip_ray.storage.files import write_atomically
from nip_ray.storage.folder import CONFIG, WARM_UP
from nip_ray.storage.identity import IDENTITY
from nip_ray.storage.mirror import Place, Store, check_library, checkpoint_of, manifest_of, one_line, place_of
from nip_ray.tracking import wandb_runs
from nip_ray.tracking.base import RunInfo, Tracker

KEY = "tracking.mirror.url"
OWN, CHECKPOINTS, STATE = ".mirror", "checkpoints", "state.json"

_OURS = re.compile(r"(checkpoints|past|transcripts)/.+")
_FINISH_S, _TELL_S = 300.0, 5.0
_LOOKS = 10


def check(settings: MirrorSettings) -> None:
    """Raise UserError for an invalid address, one with credentials, or a store unsupported by the installed pyarrow."""
    check_library(place_of(settings.url or "", KEY), KEY)


def start(settings: MirrorSettings, run: RunInfo) -> Tracker:
    """Start copying the run folder, in a thread of its own, without waiting for the network."""
    run_dir = Path(os.path.abspath(run.run_dir))
    place = place_of(settings.url or "", KEY).below(run_dir.name)
    return _Mirror(Copier(run_dir, place, run.run_id, run.resumed_from, run.taken_over), settings.interval_s)


class Mark(NamedTuple):
    """Identifies the state of a file."""

    size: int
    changed_ns: int
    number: int

    @classmethod
    def of(cls, stat: os.stat_result) -> "Mark":
        return cls(stat.st_size, stat.st_mtime_ns, stat.st_ino)


class NotOurs(Exception):
    """The mirror belongs to another run or machine; the message says which."""


class _Mirror:
    """Schedules the copies. `_due`: the time of the next pass (None: there is nothing new), by `time.monotonic`."""

    def __init__(self, copier: "Copier", interval_s: float) -> None:
        self._copier, self._interval_s = copier, interval_s
        self._news = threading.Condition()
        self._due: float | None = time.monotonic()  # at once: report faults of a bucket early
        self._began, self._closing, self._fault = time.monotonic(), False, ""
        # a hanging store must not delay the exit
        self._thread = threading.Thread(target=self._work, name="nip-ray-mirror", daemon=True)
        self._thread.start()

    def log(self, row: Mapping[str, Any]) -> None:
        self._ask(self._began + self._interval_s)

    def checkpoint(self, folder: Path, iteration: int) -> None:
        self._ask(0.0)

    def transcripts(self, file: Path, iteration: int) -> None:
        self._ask(self._began + self._interval_s)

    def finish(self, failed: bool) -> None:
        url = self._copier.place.url
        with self._news:
            self._closing, self._due = True, 0.0
            self._news.notify()
        self._thread.join(min(_TELL_S, _FINISH_S))
        if self._thread.is_alive():
            say(f"copying what is left to {url}, for at most {_FINISH_S:g} s")
            self._thread.join(max(0.0, _FINISH_S - _TELL_S))
        if self._thread.is_alive():
            self._fault = f"it took longer than {_FINISH_S:g} s"
        if self._fault:
            again = "`nip-ray resume` of the run folder tries again"
            say(
                f"warning: tracker mirror: {url} lacks the end of the run ({self._fault}); the run folder has"
                f" everything, {again}"
            )

    def _ask(self, due: float) -> None:
        with self._news:
            self._due = due if self._due is None else min(due, self._due)
            self._news.notify()

    def _work(self) -> None:
        while True:
            with self._news:
                while self._due is None or self._due > time.monotonic():
                    self._news.wait(None if self._due is None else self._due - time.monotonic())
                self._due, self._began, last = None, time.monotonic(), self._closing
            try:
                more = self._copier.copy()
            except NotOurs as error:
                say(f"warning: tracker mirror failed and is left alone from here on ({error}); the run continues")
                return
            except Exception as error:  # of the network, the store, the disk: never the run's
                more, reason = False, one_line(error)
                if not self._fault and not last:
                    again = f"the run continues, and it is tried again every {self._interval_s:g} s"
                    say(f"warning: tracker mirror: {self._copier.place.url} cannot be written ({reason}); {again}")
                self._fault = reason
                self._ask(time.monotonic() + self._interval_s)
            else:
                if self._fault:
                    say(f"tracker mirror: {self._copier.place.url} is up to date again")
                self._fault = ""
            if last and not more:
                return
            if more:
                self._ask(0.0)


class Copier:
    """Synchronises one run folder's copy. run_id: its owner. resumed_from, taken_over: see `RunInfo`."""

    def __init__(self, run_dir: Path, place: Place, run_id: str, resumed_from: int, taken_over: bool = False) -> None:
        self.place, self._taken_over = place, taken_over
        self._run_dir, self._run_id, self._resumed_from = run_dir, run_id, resumed_from

    def copy(self) -> bool:
        """One pass. Returns True if the folder changed meanwhile so that another one is due at once.

        Raises NotOurs when the copy belongs to another run, or is newer than this one; any other error when the store,
        the network or the disk fails.
        """
        if not (self._run_dir / CONFIG).is_file():
            raise OSError(f"{self._run_dir} has no {CONFIG} any more; its copy is left as it is")
        checkpoints, there = _settled(self._run_dir, checkpoints=True), self._there
        finished = {
            number: names for number, names in by_checkpoint(checkpoints).items() if manifest_of(number) in names
        }
        behind = sorted(
            (n for n in finished if any(there.get(name) != checkpoints[name] for name in finished[n])), reverse=True
        )
        ahead = [number for number in by_checkpoint(there) if number > max(finished, default=-1)]
        if (lost := [number for number in ahead if manifest_of(number) in there]) and not self._taken_over:
            url = self.place.url
            raise NotOurs(
                f"{url} has the checkpoint of iteration {max(lost)}, newer than all of {self._run_dir}, where they were"
                f" lost or are damaged; `nip-ray resume {url}` continues from there, or remove it"
            )
        self._forget(ahead)
        with ExitStack() as held:
            files = self._held(finished[behind[0]], held) if behind else None
            plain = self._put_plain()  # now that it is held: rows may be newer than it, never older
            whole = not behind or self._put_checkpoint(behind[0], files)
        for number in behind[1:]:
            with ExitStack() as held:
                whole &= self._put_checkpoint(number, self._held(finished[number], held))
        if whole:  # else the newest there may be one of those to remove
            self._forget([number for number in by_checkpoint(there) if number not in finished])
            for name in [name for name in there if name not in plain and checkpoint_of(name) is None]:
                self._remove(name)
        return not whole

    @cached_property
    def _store(self) -> Store:
        return Store(self.place)

    @cached_property
    def _there(self) -> dict[str, Mark | None]:
        """The content of the store, as far as known: name -> the state of our file that it has (None: any)."""
        sizes = self._store.files()
        self._refuse_strangers(sizes)
        found: dict[str, Mark | None] = {
            name: None for name in sizes if _OURS.fullmatch(name) or (self._run_dir / name).exists()
        }
        checkpoints = _settled(self._run_dir, checkpoints=True)
        for number, names in by_checkpoint(checkpoints).items():
            manifest = manifest_of(number)
            same = manifest in sizes and all(sizes.get(name) == checkpoints[name].size for name in names)
            # which has the sums of the others
            if same and self._store.read(manifest) == (self._run_dir / manifest).read_bytes():
                found |= {name: checkpoints[name] for name in names}
        return found

    def _refuse_strangers(self, sizes: Mapping[str, int]) -> None:
        url = self.place.url
        if not sizes:
            return
        if IDENTITY not in sizes:
            raise NotOurs(f"{url} holds something else already; name another {KEY}, or empty it")
        if _read_json(self._store.read(IDENTITY)).get("run_id") != self._run_id:
            raise NotOurs(f"{url} is the copy of another run of this name; name another {KEY}, or remove it")
        own = _read_json((self._run_dir / OWN).read_bytes()) if (self._run_dir / OWN).is_file() else {}
        known = max(
            self._resumed_from, own["iteration"] if own.get("url") == url and type(own.get("iteration")) is int else 0
        )
        newest = max((number for number in by_checkpoint(sizes) if manifest_of(number) in sizes), default=0)
        if newest > known:
            raise NotOurs(
                f"{url} has iteration {newest}, which another machine made; continue from there, or remove it"
            )

    def _held(self, names: list[str], stack: ExitStack) -> dict[str, BinaryIO] | None:
        """All these files, open; None if one is gone."""
        try:
            return {name: stack.enter_context((self._run_dir / name).open("rb")) for name in names}
        except FileNotFoundError:
            return None

    def _put_checkpoint(self, number: int, files: Mapping[str, BinaryIO] | None) -> bool:
        """Upload a checkpoint's files, the manifest last; a replaced one's is removed first. False without `files`."""
        if files is None:
            return False
        manifest = manifest_of(number)
        self._remove(manifest)
        for name in sorted(files, key=lambda name: (name == manifest, name)):
            self._put(name, files[name])
        newest = max(number for number in by_checkpoint(self._there) if manifest_of(number) in self._there)
        write_atomically(self._run_dir / OWN, json.dumps({"url": self.place.url, "iteration": newest}).encode())
        return True

    def _put_plain(self) -> dict[str, Mark]:
        """Upload everything except checkpoints: the owner first, the state of a run without checkpoints last. Returns
        what is there."""
        with ExitStack() as held:
            state = self._held([STATE], held) or {}  # before the others: they may be newer than it, never older
            plain = _settled(self._run_dir, checkpoints=False)
            for name in sorted(plain, key=lambda name: (name != IDENTITY, name != CONFIG, name)):
                if name not in state and self._there.get(name) != plain[name]:
                    with ExitStack() as opened:
                        # none if it was removed: the next pass handles that
                        for file in (self._held([name], opened) or {}).values():
                            self._put(name, file)
            for name, file in state.items():
                self._put(name, file)
        return plain

    def _put(self, name: str, file: BinaryIO) -> None:
        """Upload a file, unless this state of it is there."""
        stat = os.fstat(file.fileno())  # before it is read: data appended meanwhile is copied next time
        if self._there.get(name) != Mark.of(stat):
            self._store.put(name, file)
            self._there[name] = Mark.of(stat)

    def _remove(self, name: str) -> None:
        """Remove a file there, if there is one."""
        if name in self._there:
            self._store.remove(name)
            self._there.pop(name)

    def _forget(self, numbers: list[int]) -> None:
        """Remove checkpoints from the store, each by its manifest first: an incomplete one counts as none."""
        names = by_checkpoint(self._there)
        for number in numbers:
            self._remove(manifest_of(number))
            self._store.remove_folder(manifest_of(number).rpartition("/")[0])
            for name in names[number]:
                self._there.pop(name, None)


def files_of(run_dir: Path, *, checkpoints: bool) -> dict[str, Mark]:
    """name -> state, of the files of a run folder to copy: those below `checkpoints/`, or all others but an unfinished
    warm-up.

    Raises OSError when a folder cannot be read, FileNotFoundError when something is removed meanwhile.
    """

    def broken(error: OSError) -> None:
        raise error

    found: dict[str, Mark] = {}
    top = run_dir / CHECKPOINTS if checkpoints else run_dir
    for folder, inside, names in os.walk(top, onerror=broken) if top.is_dir() else ():
        at_home = (wandb_runs.FOLDER, CHECKPOINTS, WARM_UP) if folder == str(run_dir) else ()
        inside[:] = [name for name in inside if not name.startswith(".") and name not in at_home]
        for name in names:
            stat = os.lstat(os.path.join(folder, name)) if not name.startswith(".") else None
            if stat is not None and S_ISREG(stat.st_mode):  # a link may lead anywhere
                found[os.path.relpath(os.path.join(folder, name), run_dir)] = Mark.of(stat)
    return found


def _settled(run_dir: Path, *, checkpoints: bool) -> dict[str, Mark]:
    """`files_of`, repeated if something was removed meanwhile: missed files must not count as removed."""
    for _ in range(_LOOKS):
        try:
            return files_of(run_dir, checkpoints=checkpoints)
        except FileNotFoundError:
            continue
    raise OSError(f"{run_dir} changes faster than it can be read")


def by_checkpoint(names: Mapping[str, Any]) -> dict[int, list[str]]:
    """iteration -> the names of files of its checkpoint, finished or not."""
    found: dict[int, list[str]] = {}
    for name in names:
        number = checkpoint_of(name)
        if number is not None:
            found.setdefault(number, []).append(name)
    return found


def _read_json(content: bytes) -> dict[str, Any]:
    """A small document; {} if it is invalid."""
    try:
        found = json.loads(content)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
