"""`watch`: the live report of a running experiment, served on this machine alone and rebuilt as the run proceeds.

Decisions that matter here:
- nothing is served but the page and its mark (see `nip_ray.runs.pages`); no file of the run folder can be named from outside, and nothing
  is written into it: the run is another process's;
- the page asks for its mark every two seconds and loads itself again when that has changed. The mark changes with the files that the page
  is made of, but at most once in `every_s` seconds: drawing takes a second or two, which the run could use.
"""

import hashlib
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from nip_ray.errors import UserError
from nip_ray.runs.pages import Answer, PageServer
from nip_ray.storage.files import is_locked
from nip_ray.storage.folder import CONFIG, LOCK, METRICS

_READ = (METRICS, CONFIG, "evaluation.json", "cross_play.json", "instances.json")


@dataclass(frozen=True)
class Shown:
    """A page and the mark by which it is told from older ones."""

    mark: str
    page: bytes


class LivePage:
    """The newest page of a run. `render`: (folder, mark) -> page, the report's own unless it is given. every_s: between two drawings."""

    def __init__(self, run_dir: Path, every_s: float = 5.0, render: Callable[[Path, str], str] | None = None) -> None:
        self.run_dir, self.every_s, self._render = run_dir, every_s, render or _report
        self._lock, self._shown, self._drawn = threading.Lock(), Shown("", b""), -float("inf")

    def mark(self) -> str:
        """The mark of what `get` would give."""
        with self._lock:
            return self._due()

    def get(self) -> Shown:
        """The newest page, drawn again where that is due."""
        with self._lock:
            mark = self._due()
            if mark != self._shown.mark:
                self._shown = Shown(mark, self._render(self.run_dir, mark).encode("utf-8", errors="replace"))
                self._drawn = time.monotonic()
            return self._shown

    def answer(self, path: str) -> Answer | None:
        """The page for "/", its mark for "/mark"."""
        if path == "/":
            return Answer(self.get().page)
        return Answer(self.mark().encode(), "text/plain") if path == "/mark" else None

    def _due(self) -> str:
        """The mark of the page there is, or a new one once the files have changed and time enough has passed."""
        if self._shown.mark and time.monotonic() - self._drawn < self.every_s:
            return self._shown.mark
        return _state(self.run_dir)


def watch(run_dir: Path, port: int = 0, *, told: Callable[[str], None] = print) -> None:
    """Serve the page of a run until Ctrl-C. told: hears the address, once the page can be asked for.

    Raises UserError when `run_dir` holds no run, or the port cannot be had.
    """
    run_dir = Path(run_dir)
    if not (run_dir / CONFIG).is_file() and not (run_dir / METRICS).is_file():
        raise UserError(f"{run_dir}: not a run folder (it has no {CONFIG}); give the folder that `nip-ray train` printed")
    with PageServer(LivePage(run_dir), port) as server:
        server.serve(told)


def _report(run_dir: Path, mark: str) -> str:
    """The report, or a page that waits for it while there is nothing to report."""
    from nip_ray.evaluation.report import report_page
    from nip_ray.evaluation.report.page import rendered

    try:
        return report_page(run_dir, live=mark, running=is_running(run_dir))[0]
    except UserError as error:
        scripts = ("watch.js",)
        return rendered(
            "waiting.html.j2",
            scripts=scripts,
            connect=True,
            kind="report",
            title=run_dir.resolve().name[:100],
            live=mark,
            reason=str(error),
        )


def is_running(run_dir: Path) -> bool:
    """Whether a process is writing the run: it holds the run's lock."""
    return is_locked(run_dir / LOCK)


def _state(run_dir: Path) -> str:
    """A mark of what a page is made of: names, sizes and times of files, and whether the run is still running."""
    files = [run_dir / name for name in _READ] + sorted((run_dir / "transcripts").glob("*.jsonl"))[-2:]
    told = [str(is_running(run_dir))]
    for path in files:
        try:
            stat = path.stat()
        except OSError:  # not there yet, or not any more
            continue
        told.append(f"{path.name} {stat.st_size} {stat.st_mtime_ns}")
    return hashlib.blake2b("\n".join(told).encode(), digest_size=8).hexdigest()
