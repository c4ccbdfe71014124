"""`watch`: the live report of a running experiment, served on this machine alone and rebuilt as the run proceeds.

Decisions that matter here:
- nothing is served but the page and its mark, to GET and HEAD; no file of the run folder can be named from outside, and nothing is
  written into it: the run is another process's;
- it listens on the loopback. A page of the outside world could still ask it through a name that it lets point there (DNS rebinding), so
  the Host header must be this address, with this port; another is refused before anything is read;
- the page asks for its mark every two seconds and loads itself again when that has changed. The mark changes with the files that the page
  is made of, but at most once in `every_s` seconds: drawing takes a second or two, which the run could use.
"""

import hashlib
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from nip_ray.errors import UserError
from nip_ray.storage.files import is_locked
from nip_ray.storage.folder import CONFIG, LOCK, METRICS

ADDRESS = "127.0.0.1"
_READ = (METRICS, CONFIG, "evaluation.json", "cross_play.json", "instances.json")
_HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}


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

    def _due(self) -> str:
        """The mark of the page there is, or a new one once the files have changed and time enough has passed."""
        if self._shown.mark and time.monotonic() - self._drawn < self.every_s:
            return self._shown.mark
        return _state(self.run_dir)


class PageServer(ThreadingHTTPServer):
    """Serves a `LivePage` on the loopback. port: 0 for any free one; `url` says which it became."""

    daemon_threads = True

    def __init__(self, live: LivePage, port: int = 0) -> None:
        """Raises UserError when the port cannot be had."""
        self.live = live
        try:
            super().__init__((ADDRESS, port), _Handler)
        except (OSError, OverflowError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it must be below 65536"
            raise UserError(f"--port {port}: cannot be listened on ({reason}); choose another, or leave it out for a free one") from None

    def handle_error(self, request: object, client_address: object) -> None:
        """A reader who went away in the middle of an answer is none; anything else is shown."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]

    @property
    def url(self) -> str:
        """Where the page is."""
        return f"http://{ADDRESS}:{self.server_port}/"


def watch(run_dir: Path, port: int = 0, *, told: Callable[[str], None] = print) -> None:
    """Serve the page of a run until Ctrl-C. told: hears the address, once the page can be asked for.

    Raises UserError when `run_dir` holds no run, or the port cannot be had.
    """
    run_dir = Path(run_dir)
    if not (run_dir / CONFIG).is_file() and not (run_dir / METRICS).is_file():
        raise UserError(f"{run_dir}: not a run folder (it has no {CONFIG}); give the folder that `nip-ray train` printed")
    with PageServer(LivePage(run_dir), port) as server:
        told(server.url)
        with suppress(KeyboardInterrupt):  # how it is meant to end
            server.serve_forever(poll_interval=0.2)


class _Handler(BaseHTTPRequestHandler):
    """GET and HEAD of / and /mark. Everything else is refused by what it is made of."""

    server: PageServer
    server_version, sys_version = "nip-ray", ""
    protocol_version = "HTTP/1.1"
    timeout = 30  # seconds for a request to come in: a silent client must not hold a thread

    def do_GET(self) -> None:
        """The page, its mark, or nothing."""
        if self.headers.get_all("Host") not in ([f"{ADDRESS}:{self.server.server_port}"], [f"localhost:{self.server.server_port}"]):
            self._answer(421, "text/plain", b"this address answers to its own name only\n")
        elif self.path == "/":
            self._answer(200, "text/html", self.server.live.get().page)
        elif self.path == "/mark":
            self._answer(200, "text/plain", self.server.live.mark().encode())
        else:
            self._answer(404, "text/plain", b"there is one page here: /\n")

    do_HEAD = do_GET

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: requests are the reader's own."""

    def _answer(self, code: int, kind: str, body: bytes) -> None:
        self.send_response(code)
        headers = {"Content-Type": f"{kind}; charset=utf-8", "Content-Length": str(len(body)), **_HEADERS}
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


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
