"""`view`: one page over the runs of a folder, with table, curves and transcripts side by side; `watch`: a live report
of one run.

Decisions that matter here:
- the page loads without data and polls: `/runs` every two seconds (204 if nothing has changed), `/settings`, `/curves`
  and `/episodes` for the selected runs; `/run/PLACE/` is the report of a run, as in `watch`;
- a live report polls its mark every two seconds and reloads when that has changed. The mark changes with the files of
  the page, but at most once in `every_s` seconds: drawing takes a second or two of CPU time;
- a run is identified by its place in the listing, never by a path: other folders are not accessible, and a run whose
  files are links out of the folder is refused. Nothing is written;
- rows of metrics are cached while their file is unchanged, for the newest `_ROWS_KEPT` files.
"""

import hashlib
import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from nip_ray.errors import UserError
from nip_ray.evaluation.report.beside import Column, beside, transcript_files
from nip_ray.evaluation.report.compare import flat
from nip_ray.evaluation.report.episodes import short
from nip_ray.evaluation.report.page import rendered
from nip_ray.evaluation.report.source import Row, metric_rows, read_run
from nip_ray.play.transcripts import visible
from nip_ray.runs.pages import ADDRESS, Answer, PageServer
from nip_ray.storage.files import is_locked
from nip_ray.storage.folder import CONFIG, LOCK, METRICS, json_ready
from nip_ray.storage.listing import STATES, Listed, list_runs

MAX_CURVES, MAX_BESIDE = 24, 4
"""Maximum numbers of runs whose curves share a plot, and whose transcripts are side by side."""
_POINTS = 600  # of a curve: about one a pixel
_EVERY_S = 1.0  # between two scans of the folder
_ROWS_KEPT, _MAX_FIELDS = 64, 200
_SHOWN = (METRICS, CONFIG, "evaluation.json", "cross_play.json", "instances.json")  # of a report
_READ = (*_SHOWN, LOCK, "environment.json", "run.json", "pretraining.json")
_READ_FOLDERS = ("transcripts", "items")
_PHASES = ("time/iteration_s", "time/evaluate_s", "time/checkpoint_s")

Query = Mapping[str, Sequence[str]]


class LivePage:
    """Newest report of a run. every_s: between drawings. render: (folder, mark) -> page, by default the report's."""

    def __init__(self, run_dir: Path, every_s: float = 5.0, render: Callable[[Path, str], str] | None = None) -> None:
        self.run_dir, self.every_s, self._render = run_dir, every_s, render or _live_report
        self._lock, self._mark, self._page, self._drawn = threading.Lock(), "", b"", -float("inf")

    def answer(self, path: str) -> Answer | None:
        """The page for "/", redrawn if due, and for "/mark" the mark that it has, or would have."""
        if path not in ("/", "/mark"):
            return None
        with self._lock:
            fresh = self._mark and time.monotonic() - self._drawn < self.every_s
            mark = self._mark if fresh else _state(self.run_dir)
            if path == "/mark":
                return Answer(mark.encode(), "text/plain")
            if mark != self._mark:
                self._page = self._render(self.run_dir, mark).encode("utf-8", errors="replace")
                self._mark, self._drawn = mark, time.monotonic()
            return Answer(self._page)


class RunsPage:
    """The pages over the runs at or below `folder`."""

    def __init__(self, folder: Path) -> None:
        """Raises UserError when there is no such folder."""
        self.folder = folder
        self._lock, self._looked = threading.Lock(), -float("inf")
        self._runs: dict[str, Listed] = {}
        self._outside = frozenset[str]()  # places of runs whose files are links out of the folder
        self._reports: dict[str, LivePage] = {}
        self._look()

    def answer(self, path: str) -> Answer | None:
        """The page, its data, and the reports of its runs."""
        try:
            url = urlsplit(path)
            query = parse_qs(url.query, max_num_fields=_MAX_FIELDS)
        except ValueError:  # not a valid address
            return None
        match url.path.split("/")[1:]:
            case [""]:
                return Answer(self._page().encode("utf-8", errors="replace"))
            case ["runs"]:
                return self._listing(query)
            case ["settings"]:
                return _json(self._settings())
            case ["curves"]:
                return _json(self._curves(query))
            case ["episodes"]:
                return Answer(self._episodes(query).encode("utf-8", errors="replace"))
            case ["run", place, rest]:
                run_dir = self._chosen(unquote(place)).path
                with self._lock:
                    report = self._reports.setdefault(unquote(place), LivePage(run_dir))
                return report.answer(f"/{rest}")
        return None

    def _page(self) -> str:
        title = visible(self.folder.resolve().name or str(self.folder))[:100]
        return rendered(
            "view.html.j2",
            scripts=("view_curves.js", "view.js"),
            styles=("view.css",),
            connect=True,
            kind="runs",
            title=title,
            states=STATES,
            limits=(MAX_CURVES, MAX_BESIDE),
        )

    def _look(self) -> dict[str, Listed]:
        """The runs by place, rescanned if due."""
        with self._lock:
            if time.monotonic() - self._looked >= _EVERY_S:
                found = {run.place: run for run in list_runs(self.folder)}
                self._outside = frozenset(place for place, run in found.items() if self._leads_out(run.path))
                self._runs = {place: run for place, run in found.items() if place not in self._outside}
                self._looked = time.monotonic()
            return self._runs

    def _chosen(self, place: str) -> Listed:
        run = self._look().get(place)
        if place in self._outside or (run is not None and self._leads_out(run.path)):
            raise UserError(f"{visible(place)}: has a link that leads out of the folder, and is not shown")
        if run is None:
            raise UserError(f"{visible(short(place))}: no such run here")
        return run

    def _leads_out(self, run_dir: Path) -> bool:
        """True if a file of the run that pages read is a link out of the folder."""
        below = [one for name in _READ_FOLDERS if (run_dir / name).is_dir() for one in (run_dir / name).iterdir()]
        links = [one for one in [run_dir / name for name in (*_READ, *_READ_FOLDERS)] + below if one.is_symlink()]
        root = self.folder.resolve()
        return not all(one.resolve().is_relative_to(root) for one in (run_dir, *links))

    def _listing(self, query: Query) -> Answer:
        runs = self._look()
        shown = []
        for run in runs.values():  # place: the identifier in requests; all other texts are for display
            record = run.record()
            texts = {
                key: visible(short(value, 300)) if isinstance(value, str) else value for key, value in record.items()
            }
            texts |= {"label": visible(run.place), "about": visible(short(run.about, 300)), "place": run.place}
            del texts["path"]
            shown.append({**texts, "talks": any((run.path / "transcripts").glob("*.jsonl"))})
        content = {"settings": _mark([[place, run.config] for place, run in sorted(runs.items())]), "runs": shown}
        mark = _mark(content)
        if query.get("since") == [mark]:
            return Answer(b"", code=204)
        return _json({"mark": mark, **content})

    def _settings(self) -> dict[str, dict[str, str]]:
        """Place -> key -> value, of the config keys that differ between runs."""
        settings = {place: flat(dict(run.config)) for place, run in self._look().items() if run.config}
        keys = dict.fromkeys(key for own in settings.values() for key in own)
        differ = [key for key in keys if len({_value(own, key) for own in settings.values()}) > 1]
        return {
            place: {visible(key): _value(own, key) for key in differ if key in own} for place, own in settings.items()
        }

    def _curves(self, query: Query) -> dict[str, Any]:
        """keys: all metrics of these runs. curves: metric -> place -> [iterations or minutes, values]."""
        by_time = query.get("x") == ["minutes"]
        rows = {place: _rows_of(self._chosen(place).path) for place in query.get("run", [])[:MAX_CURVES]}
        keys = sorted({key for own in rows.values() for row in own for key in row} - {"iteration", "version"})
        curves = {
            metric: {place: drawn for place, own in rows.items() if (drawn := _curve(own, metric, by_time))[0]}
            for metric in dict.fromkeys(query.get("metric", []))
        }
        return {"keys": keys, "curves": curves}

    def _episodes(self, query: Query) -> str:
        """The transcripts of these runs, side by side."""
        file = query.get("file", [""])[0]
        columns = [self._column(place, file) for place in query.get("run", [])[:MAX_BESIDE]]
        every = [self._column(place, "") for place in query.get("run", [])[:MAX_BESIDE]] if file else columns
        return rendered(
            "beside.html.j2",
            file=file,
            files=transcript_files(every),
            **beside(columns, query.get("instance", [""])[0]),
        )

    def _column(self, place: str, file: str) -> Column:
        try:
            return Column(place, read_run(self._chosen(place).path, file or None))
        except UserError as error:
            return Column(place, None, str(error))


def view(folder: Path, port: int = 0, host: str = ADDRESS, *, told: Callable[[str], None] = print) -> None:
    """Serve the page over the runs at or below `folder` until Ctrl-C. told: called with the address when ready.

    Raises UserError when there is no such folder, or the address or port is not available.
    """
    with PageServer(RunsPage(folder), port, host) as server:
        server.serve(told)


def watch(run_dir: Path, port: int = 0, *, told: Callable[[str], None] = print) -> None:
    """Serve the live report of a run until Ctrl-C, to this machine alone. told: as in `view`.

    Raises UserError when `run_dir` is not a run, or the port is not available.
    """
    run_dir = Path(run_dir)
    if not (run_dir / CONFIG).is_file() and not (run_dir / METRICS).is_file():
        raise UserError(
            f"{run_dir}: not a run folder (it has no {CONFIG}); give the folder that `nip-ray train` printed"
        )
    with PageServer(LivePage(run_dir), port) as server:
        server.serve(told)


def _live_report(run_dir: Path, mark: str) -> str:
    """The report, or a page that waits while there is nothing to report."""
    from nip_ray.evaluation.report import report_page
    from nip_ray.evaluation.report.page import sections

    try:
        return report_page(run_dir, live=mark, running=is_locked(run_dir / LOCK))[0]
    except UserError as error:
        return sections(
            "report", run_dir.resolve().name[:100], "Waiting for the first iteration.", [str(error)], live=mark
        )


def _state(run_dir: Path) -> str:
    """A mark of a report's sources: names, sizes and times of files, and whether a process is writing the run."""
    told = [str(is_locked(run_dir / LOCK))]
    for path in [run_dir / name for name in _SHOWN] + sorted((run_dir / "transcripts").glob("*.jsonl"))[-2:]:
        with suppress(OSError):  # not there yet, or no longer
            stat = path.stat()
            told.append(f"{path.name} {stat.st_size} {stat.st_mtime_ns}")
    return _mark(told)


def _value(settings: Mapping[str, Any], key: str) -> str:
    value = settings.get(key, "")
    return visible(short("null" if value is None else str(value).lower() if isinstance(value, bool) else value, 60))


def _rows_of(path: Path) -> Sequence[Row]:
    try:
        stat = (path / METRICS).stat()
        return _kept_rows(path / METRICS, (stat.st_mtime_ns, stat.st_size))
    except (OSError, UserError):  # the listing reports the fault
        return ()


@lru_cache(maxsize=_ROWS_KEPT)
def _kept_rows(path: Path, mark: tuple[int, int]) -> Sequence[Row]:
    del mark
    return metric_rows(path, [])


def _curve(rows: Sequence[Row], metric: str, by_time: bool) -> tuple[list[float], list[float]]:
    """(x, values) of the rows that have the metric, thinned, always with the newest."""
    if by_time:  # an iteration with its evaluation and checkpoint; for language models all parts together
        minutes = []
        for row in rows:
            timed = [key for key in row if key.startswith("time/") and key.endswith("_s")]
            minutes.append(sum(row.get(key, 0.0) for key in (_PHASES if _PHASES[0] in row else timed)) / 60)
        places = list(accumulate(minutes))
    else:
        places = [row["iteration"] for row in rows]
    points = [(x, row[metric]) for x, row in zip(places, rows, strict=True) if metric in row]
    step = 1 + len(points) // _POINTS
    kept = points[::-1][::step][::-1]
    return [round(x, 4) for x, _ in kept], [y for _, y in kept]


def _json(content: Any) -> Answer:
    return Answer(json.dumps(json_ready(content), allow_nan=False).encode(), "application/json")


def _mark(content: Any) -> str:
    return hashlib.blake2b(json.dumps(content, default=str).encode(errors="replace"), digest_size=8).hexdigest()
