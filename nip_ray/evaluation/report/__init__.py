"""The report of a run: one self-contained HTML page with findings, curves and transcripts, and the curves as PDF files.

It reads only files of the run folder, so it can be rewritten at any time, also for a killed or running run.
"""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from nip_ray.errors import UserError
from nip_ray.play.transcripts import visible

if TYPE_CHECKING:
    from nip_ray.evaluation.report.source import RunSource


def write_report(run_dir: Path, transcripts: str | None = None, *, told: Callable[[str], None] | None = None) -> Path:
    """Write ``report.html`` and ``curves/*.pdf`` into `run_dir` ; returns its path. transcripts: see `report_page`.

    Only metrics.jsonl must exist; the page notes what else is missing or damaged. Raises UserError if there is no run,
    the requested transcripts cannot be read, or the folder cannot be written. told: called with each of the page's
    notes; then unreadable newest transcripts raise UserError too, once the page is written. Training passes none, since
    it must not fail for that.
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
    """The headline of a run's report, three lines: the task, who is paid, and the result, first if it did not learn."""
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

    transcripts: the file of transcripts to show, such as 000050 (None: the newest). live: the mark of a served page
    that polls for newer ones ("": not served). running: True if a process is writing the run, so the page shows its
    progress. Raises UserError if there is no run, or the requested transcripts cannot be read.
    """
    from nip_ray.evaluation.report.source import read_run

    return _page(read_run(Path(run_dir), transcripts), live, running)


def _page(source: "RunSource", live: str = "", running: bool = False) -> tuple[str, dict[str, bytes]]:
    # not at the top: training imports this module, and matplotlib is slow to load
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
