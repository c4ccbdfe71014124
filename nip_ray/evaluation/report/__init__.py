"""The report of a run: one self-contained HTML page with its findings, curves and transcripts, and the curves as PDF
files.

It reads files of the run folder alone, so it can be written again at any time, also for a run that was killed or is
still running.
"""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from nip_ray.errors import UserError
from nip_ray.play.transcripts import visible

if TYPE_CHECKING:
    from nip_ray.evaluation.report.source import RunSource


def write_report(run_dir: Path, transcripts: str | None = None, *, told: Callable[[str], None] | None = None) -> Path:
    """Write ``report.html`` and ``curves/*.pdf`` into `run_dir` and return the page's path. transcripts: see
    `report_page`.

    Only metrics.jsonl must be there; what else is missing or damaged is said on the page. Raises UserError when there
    is no run, the transcripts that were asked for cannot be read, or the folder cannot be written. told: hears what the
    page says is missing or damaged, one sentence at a time; with it, newest transcripts of which nothing can be read
    are a UserError too, once the page is written. The end of a training run, which must not fail for that, has none.
    """
    from nip_ray.evaluation.report.source import read_run
    from nip_ray.storage.files import write_atomically

    run_dir = Path(run_dir)
    source = read_run(run_dir, transcripts)
    page, curves = _page(source)
    pictures = run_dir / "curves"
    try:
        pictures.mkdir(exist_ok=True)
    except OSError as error:
        raise UserError(
            f"{pictures}: the report cannot be written ({error.strerror}); make room for it, or copy the run folder"
        ) from None
    for name, pdf in curves.items():
        write_atomically(pictures / f"{name}.pdf", pdf)
    path = run_dir / "report.html"
    write_atomically(path, page.encode("utf-8", errors="replace"))
    if told is not None:
        for note in source.notes:
            told(note)
        if source.unreadable:
            missing = run_dir / "transcripts" / source.unreadable
            raise UserError(
                visible(
                    f"{missing}: no record of it can be read; {path} was written without it; put back a copy, or"
                    " remove it"
                )
            )
    return path


def headline(run_dir: Path) -> str:
    """What the report of a run begins with, three lines: the task, who is paid, and what it came to, first where it did
    not learn."""
    from nip_ray.evaluation.report.describe import describe
    from nip_ray.evaluation.report.findings import find
    from nip_ray.evaluation.report.source import read_run

    source = read_run(Path(run_dir))
    about, found = describe(source.config), find(source)
    return "\n".join([*about, found.sentence] if found.learned else [found.sentence, *about])


def report_page(
    run_dir: Path, *, transcripts: str | None = None, live: str = "", running: bool = False
) -> tuple[str, dict[str, bytes]]:
    """The page of a run and its curves by name, as PDF files; nothing is written.

    transcripts: the file of them to show, as in 000050 (None: the newest). live: the mark of a page that is served and
    looks for newer ones ("": it does not). running: whether a process is writing the run, so that the page says how far
    it is. Raises UserError when there is no run, or the transcripts that were asked for cannot be read.
    """
    from nip_ray.evaluation.report.source import read_run

    return _page(read_run(Path(run_dir), transcripts), live, running)


def _page(source: "RunSource", live: str = "", running: bool = False) -> tuple[str, dict[str, bytes]]:
    # here, not above: training imports this module, and must not wait for matplotlib
    from nip_ray.evaluation.report import curves
    from nip_ray.evaluation.report.contents import page_contents
    from nip_ray.evaluation.report.findings import find
    from nip_ray.evaluation.report.page import rendered
    from nip_ray.evaluation.report.panels import panels
    from nip_ray.evaluation.report.trust import examined_words

    findings = find(source)
    drawn = curves.drawn(
        panels(source.rows, findings.chance, findings.baseline, held_out=examined_words(source) == "held out")
    )
    scripts = ("browser.js", "copy.js", *(["watch.js"] if live else []))
    contents = page_contents(source, findings, running)
    page = rendered(
        "report.html.j2", scripts=scripts, connect=bool(live), kind="report", live=live, curves=drawn, **contents
    )
    return page, {one["name"]: one["pdf"] for one in drawn}
