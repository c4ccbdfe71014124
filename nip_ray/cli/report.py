"""`nip-ray report`, `compare` and `watch`: pages of finished runs, of several runs, of a running one."""

from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Annotated, Any

import typer

from nip_ray.cli.common import AsJson, RunDir, app, check_run_dir, errors, number, print_json, print_table
from nip_ray.cli.complete import run_folders
from nip_ray.errors import UserError


@app.command()
def report(
    run_dir: RunDir,
    transcripts: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Transcripts to show, such as 000050 (default: the newest)", show_default=False
        ),
    ] = None,
) -> None:
    """Rebuild report.html of a run."""
    with errors():
        check_run_dir(run_dir)
        from nip_ray.evaluation.report import write_report
        from nip_ray.play.transcripts import visible
        from nip_ray.progress import say

        typer.echo(str(write_report(run_dir, transcripts, told=lambda note: say(f"warning: {visible(note)}"))))


@app.command()
def compare(
    run_dirs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN_DIR...", help="Run folders, at least two.", show_default=False, autocompletion=run_folders
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="File of the page (default: comparison.html)", show_default=False),
    ] = None,
    cross_play: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Also show this file of `nip-ray cross-play --out`", show_default=False),
    ] = None,
    paired: Annotated[
        bool,
        typer.Option("--paired", help="Compare each pair of runs on the same instances and print the differences."),
    ] = False,
    dataset: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="With --paired: instances (default: held out)", show_default=False),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compare several runs on one page (curves with bands over seeds, metrics with intervals), or by instance."""
    with errors():
        for run_dir in run_dirs:
            check_run_dir(run_dir)
        given = (
            {"--out": out, "--cross-play": cross_play} if paired else {"--dataset": dataset, "--json": as_json or None}
        )
        for name, value in given.items():
            if value is not None:
                raise UserError(f"{name}: does not go with --paired" if paired else f"{name}: goes with --paired")
        if paired:
            _paired(run_dirs, dataset, as_json)
            return
        from nip_ray.evaluation.report.compare import write_comparison

        typer.echo(str(write_comparison(run_dirs, out or Path("comparison.html"), cross_play)))


def _paired(run_dirs: Sequence[Path], dataset: Path | None, as_json: bool) -> None:
    if len(run_dirs) < 2:
        raise UserError("--paired: compares two runs or more, and there is 1; name another")
    from nip_ray.evaluation.verbs.paired import compare_paired

    found = [compare_paired(one, other, dataset=dataset) for one, other in combinations(run_dirs, 2)]
    if as_json:
        print_json(found[0] if len(found) == 1 else {"pairs": found})
        return
    for pair in found:
        if len(found) > 1:
            first, second = (run["run_dir"] for run in pair["runs"])
            typer.echo(f"first: {first}, second: {second}")
        _print_pair(pair)


def _print_pair(found: Mapping[str, Any]) -> None:
    header = [
        f"{found['num_instances']} instances",
        "first",
        "second",
        "difference",
        "",
        "only first",
        "only second",
        "p (McNemar)",
    ]
    rows = []
    for name, record in found.items():
        if not (isinstance(record, dict) and "only_first" in record):
            continue
        shares = [number(record[part]["estimate"]) for part in ("first", "second", "difference")]
        counts = [str(record["only_first"]), str(record["only_second"]), number(record["p"])]
        low, high = (number(record["difference"][end]) for end in ("lower", "upper"))
        rows.append([name, *shares, "exact" if record["difference"].get("exact") else f"({low} to {high})", *counts])
    print_table(header, rows)
    if found["left_out"]:
        typer.echo(f"{found['left_out']} instances that a run has trained on are left out")
    if found["only_in_one"]:
        typer.echo(f"{found['only_in_one']} instances that only one of the runs has are left out")


@app.command()
def watch(
    run_dir: RunDir,
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any free one.")] = 0,
) -> None:
    """Serve a live report of a running experiment on 127.0.0.1, until Ctrl-C."""
    with errors():
        check_run_dir(run_dir)
        from nip_ray.runs.view import watch as serve

        serve(run_dir, port, told=lambda url: typer.echo(url))
