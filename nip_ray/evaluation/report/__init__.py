"""The report of a run: one self-contained HTML page with its learning curves, and the same curves as PNG files.

It reads files of the run folder alone, so it can be written again at any time, also for a run that was killed.
"""

from pathlib import Path

from nip_ray.errors import UserError


def write_report(run_dir: Path) -> Path:
    """Write ``report.html`` and ``curves/*.png`` into `run_dir` and return the page's path.

    Only metrics.jsonl must be there; what else is missing or damaged is said on the page. Raises UserError when there is no run
    or the folder cannot be written.
    """
    # here, not above: training imports this module, and must not wait for matplotlib
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    from nip_ray.evaluation.report.contents import page_contents
    from nip_ray.evaluation.report.curves import draw
    from nip_ray.evaluation.report.findings import find
    from nip_ray.evaluation.report.panels import panels
    from nip_ray.evaluation.report.pictures import DARK, LIGHT, data_uri
    from nip_ray.evaluation.report.source import read_run
    from nip_ray.runs.folder import write_atomically

    run_dir = Path(run_dir)
    source = read_run(run_dir)
    findings = find(source)
    pictures = run_dir / "curves"
    try:
        pictures.mkdir(exist_ok=True)
    except OSError as error:
        raise UserError(f"{pictures}: the report cannot be written ({error.strerror}); make room for it, or copy the run folder") from None
    curves = []
    for panel in panels(source.rows, findings.chance, findings.ceiling):
        light = draw(panel, LIGHT)
        write_atomically(pictures / f"{panel.name}.png", light)
        curves.append({"title": panel.title, "light": data_uri(light), "dark": data_uri(draw(panel, DARK))})
    pages = Environment(
        loader=FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    page = pages.get_template("page.html.j2").render(**page_contents(source, findings), curves=curves)
    path = run_dir / "report.html"
    write_atomically(path, page.encode("utf-8", errors="replace"))
    return path
