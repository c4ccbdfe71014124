"""`nip-ray report`, `compare` and `watch`: pages of finished runs, of several runs, of a running one."""

from pathlib import Path
from typing import Annotated

import typer

from nip_ray.cli.common import RunDir, app, check_run_dir, errors
from nip_ray.cli.complete import run_folders


@app.command()
def report(
    run_dir: RunDir,
    transcripts: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Which transcripts to show, as in 000050 (default: the newest)", show_default=False),
    ] = None,
) -> None:
    """Rebuild report.html of a run."""
    with errors():
        check_run_dir(run_dir)
        from nip_ray.evaluation.report import write_report
        from nip_ray.play.dialogue_records import visible
        from nip_ray.progress import say

        typer.echo(str(write_report(run_dir, transcripts, told=lambda note: say(f"warning: {visible(note)}"))))


@app.command()
def compare(
    run_dirs: Annotated[
        list[Path],
        typer.Argument(metavar="RUN_DIR...", help="Run folders, at least two.", show_default=False, autocompletion=run_folders),
    ],
    out: Annotated[Path, typer.Option(metavar="FILE", help="Where to write the page.")] = Path("comparison.html"),
    cross_play: Annotated[
        Path | None, typer.Option(metavar="FILE", help="What `nip-ray cross-play --out` wrote, to be shown too", show_default=False)
    ] = None,
) -> None:
    """Compare several runs on one page: learning curves with bands over seeds, metrics with intervals."""
    with errors():
        for run_dir in run_dirs:
            check_run_dir(run_dir)
        from nip_ray.evaluation.report.compare import write_comparison

        typer.echo(str(write_comparison(run_dirs, out, cross_play)))


@app.command()
def watch(
    run_dir: RunDir,
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any free one.")] = 0,
) -> None:
    """Serve a live report of a running experiment on 127.0.0.1, until Ctrl-C."""
    with errors():
        check_run_dir(run_dir)
        from nip_ray.runs.watch import watch as serve

        serve(run_dir, port, told=lambda url: typer.echo(url))
