"""`nip-ray list` and `nip-ray view`: all the runs of a folder, as a table and as a page."""

import shutil
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from nip_ray.cli.common import AsJson, app, errors, number, print_json, print_table
from nip_ray.cli.complete import folders
from nip_ray.progress import duration, say

Folder = Annotated[
    Path,
    typer.Argument(
        metavar="FOLDER", help="Folder with runs in it, or in folders below (a sweep's, too).", autocompletion=folders
    ),
]


@app.command("list")
def list_(folder: Folder = Path("runs"), as_json: AsJson = False) -> None:
    """List the runs in a folder: task, state, iteration, headline metric."""
    with errors():
        from nip_ray.storage.listing import list_runs

        runs = list_runs(folder, told=lambda note: say(f"warning: {note}"))
        now = time.time()
        if as_json:
            print_json(
                {
                    "folder": str(folder),
                    "runs": [{**run.record(), "age_s": round(max(0.0, now - run.changed), 1)} for run in runs],
                }
            )
            return
        if not runs:
            say(f"{folder}: no runs in it; `nip-ray train` makes one")
            return
        header = ["run", "task", "state", "iteration", "metric", "", "age"]
        rows = [
            [
                *map(_plain, (run.place, run.about, run.state, run.progress, run.metric)),
                number(run.value),
                duration(max(0.0, now - run.changed)),
            ]
            for run in runs
        ]
        if (
            sys.stdout.isatty()
            and sum(max(map(len, cells)) + 2 for cells in zip(header, *rows)) > shutil.get_terminal_size().columns
        ):
            header = ["run", "state", "metric", "age"]  # with a second line each, so that words stay whole
            rows = [
                [f"{run}\n{task}", f"{state}\n{done}", "/\n".join(f"{key} {value}".rsplit("/", 1)), age]
                for run, task, state, done, key, value, age in rows
            ]
        print_table(header, rows, words=(0, 1, 2, 4), width=400)
        for run in runs:
            if run.note:
                say(_plain(f"{run.path}: {run.note}"))


def _plain(text: str) -> str:
    """Texts of runs, which are untrusted, without terminal control characters."""
    from nip_ray.play.transcripts import visible

    return visible(text.encode(errors="replace").decode())


@app.command()
def view(
    folder: Folder = Path("runs"),
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any free one.")] = 0,
    host: Annotated[
        str, typer.Option(help="Address to listen on. Anyone who can reach it can read the runs.")
    ] = "127.0.0.1",
) -> None:
    """Serve a page over a folder's runs, until Ctrl-C: table, curves, transcripts side by side, also of live runs."""
    with errors():
        from nip_ray.runs.view import view as serve

        serve(folder, port, host, told=lambda url: typer.echo(url))
