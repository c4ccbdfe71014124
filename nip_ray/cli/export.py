"""`nip-ray export ...`: runs in the formats of other tools."""

import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Annotated

import typer

from nip_ray.cli.common import RunDir, app, check_run_dir, errors

export_app = typer.Typer(help="Write a run for another tool.", no_args_is_help=True)
app.add_typer(export_app, name="export")


@export_app.command("inspect")
def inspect(
    run_dir: RunDir,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Ends in .eval or .json (default: RUN_DIR/inspect/NAME_ITERATION.eval)",
            show_default=False,
        ),
    ] = None,
    iteration: Annotated[
        int | None,
        typer.Option(metavar="N", help="Iteration to export (default: the last tested)", show_default=False),
    ] = None,
) -> None:
    """Write the test of a language model run as an Inspect log: every dialogue with its scores, for `inspect view`."""
    with errors():
        check_run_dir(run_dir)
        with redirect_stdout(sys.stderr):
            from nip_ray.exports.inspect_log import export_inspect

            file = export_inspect(run_dir, out, iteration)
        typer.echo(str(file))


@export_app.command("hf")
def hf(
    run_dir: RunDir,
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="A new or empty folder.", show_default=False)],
    checkpoint: Annotated[
        int | None,
        typer.Option(metavar="N", help="Iteration, of networks (default: the newest checkpoint)", show_default=False),
    ] = None,
    push: Annotated[
        str | None,
        typer.Option(
            metavar="OWNER/NAME",
            help="Put it on the Hugging Face Hub as well, private, with the token in $HF_TOKEN.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Write a run for the Hugging Face Hub: models as safetensors and transcripts as a data set, with cards."""
    with errors():
        check_run_dir(run_dir)
        with redirect_stdout(sys.stderr):
            from nip_ray.exports.hub import export_hf
            from nip_ray.exports.hub_push import check_push, push_export

            if push is not None:
                check_push(push)
            export_hf(run_dir, out, checkpoint)
            addresses = [] if push is None else push_export(out, push)
        for line in [*(str(out / name) for name in ("model", "dataset") if (out / name).is_dir()), *addresses]:
            typer.echo(line)


@export_app.command("verifiers")
def verifiers(
    source: Annotated[Path, typer.Argument(metavar="SOURCE", help="A run folder, or a YAML file.", show_default=False)],
    out: Annotated[
        Path,
        typer.Option(metavar="FOLDER", help="A new or empty folder; its name is the package's.", show_default=False),
    ],
) -> None:
    """Write a protocol between language models as a package for `verifiers` and the Environments Hub."""
    with errors():
        with redirect_stdout(sys.stderr):
            from nip_ray.exports.verifiers_package import export_verifiers

            export_verifiers(source, out)
        typer.echo(str(out))
