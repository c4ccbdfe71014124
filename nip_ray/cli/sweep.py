"""`nip-ray sweep`."""

import json
import sys
from contextlib import redirect_stdout
from pathlib import Path
from shlex import quote
from typing import Annotated, Any

import typer

from nip_ray.cli.common import (
    AsJson,
    ConfigCommand,
    Quiet,
    Settings,
    app,
    errors,
    exit_with,
    for_people,
    how_ended,
    print_json,
    print_table,
)
from nip_ray.errors import UserError, refuse_missing


@app.command(cls=ConfigCommand)
def sweep(
    config: Annotated[
        Path | None, typer.Argument(metavar="[FILE]", help="YAML config with search spaces.", show_default=False)
    ] = None,
    resume_dir: Annotated[
        Path | None, typer.Option("--resume", metavar="DIR", help="Resume the sweep in DIR.", show_default=False)
    ] = None,
    settings: Settings = None,
    storage: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Override the file's sweep.storage_path.", show_default=False)
    ] = None,
    or_resume: Annotated[
        bool, typer.Option("--or-resume", help="Resume the sweep of this name where there is one.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check the file, print what would run, and stop.")] = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Run every setting of FILE with every seed and report the best."""
    folder = resume_dir
    with errors():
        if (config is None) == (resume_dir is None):
            raise UserError("name a sweep file, or --resume DIR to continue with a sweep, and not both")
        if config is None:
            if settings or storage or dry_run or or_resume:
                raise UserError(
                    "--resume continues with a sweep as it was begun: leave out --set, --storage, --or-resume and"
                    " --dry-run"
                )
            refuse_missing("ray", "ray")
            from nip_ray.sweeps.run import resume_sweep

            assert resume_dir is not None
            with redirect_stdout(sys.stderr):
                result = resume_sweep(resume_dir, quiet=quiet)
        else:
            from nip_ray.sweeps.spec import load_sweep, sweep_to_yaml

            overrides = [
                *(settings or []),
                *([f"sweep.storage_path={json.dumps(str(storage))}"] if storage is not None else []),
            ]
            spec = load_sweep(config, overrides)
            if dry_run and as_json:
                from nip_ray.config.yaml_text import parse_yaml

                print_json(
                    {
                        "settings": spec.num_settings,
                        "trials": spec.num_trials,
                        "sweep": parse_yaml(sweep_to_yaml(spec), str(config)),
                    }
                )
                return
            if dry_run:
                typer.echo(f"# {spec.num_settings} settings, {spec.num_trials} trials\n{sweep_to_yaml(spec)}", nl=False)
                return
            refuse_missing("ray", "ray")
            from nip_ray.sweeps.run import folder_of, free_folder, resume_as, run_sweep

            folder = folder_of(spec) if or_resume else free_folder(spec)
            with redirect_stdout(sys.stderr):
                result = (resume_as if or_resume and folder.exists() else run_sweep)(spec, folder, quiet=quiet)
        _print_sweep(result, as_json, quiet)
        if result.interrupted:
            raise exit_with(
                f"{how_ended(result.interrupted)}, `nip-ray sweep --resume {quote(str(result.folder))}` continues it",
                128 + result.interrupted,
            )


def _print_sweep(result: Any, as_json: bool, quiet: bool) -> None:
    """Print the result of a sweep and its paths."""
    from nip_ray.sweeps import summary

    if as_json:
        print_json({"folder": str(result.folder), **summary.as_json(result.summary)})
    elif not quiet:
        with for_people():
            header, rows = summary.table_rows(result.summary)
            print_table(header, rows)
            typer.echo(summary.headline(result.summary))
            for name, file in (("sweep", ""), ("best", "best"), ("page", "sweep.html")):
                if (result.folder / file).exists():
                    typer.echo(f"{name:6}{result.folder / file}")
