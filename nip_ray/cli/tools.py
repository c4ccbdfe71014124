"""`nip-ray doctor` and `nip-ray schema`."""

from pathlib import Path
from typing import Annotated

import typer

from nip_ray.cli.common import AsJson, app, errors, print_json
from nip_ray.errors import UserError


@app.command()
def doctor(
    storage: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder for runs (default: runs)", show_default=False)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check this machine and say how to fix it."""
    from nip_ray.cluster import doctor as examination

    findings = examination.examine(storage)
    if as_json:
        print_json(examination.as_json(findings))
    else:
        for one in findings:
            typer.echo(f"{one.status:8} {one.name}: {one.what}" + (f"\n{'':9}mend: {one.mend}" if one.mend else ""))
    if not examination.verdict(findings):
        raise typer.Exit(1)


@app.command()
def schema(
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Output file (default: print it)", show_default=False)
    ] = None,
    plugins: Annotated[
        list[str] | None,
        typer.Option("--plugin", metavar="FILE", help="Plugin to include; repeatable.", show_default=False),
    ] = None,
) -> None:
    """Print the JSON schema of configs, for editors."""
    with errors():
        from nip_ray.config.plugins import import_plugins
        from nip_ray.config.schema import schema_text

        import_plugins(plugins or [])
        if out is None:
            typer.echo(schema_text(), nl=False)
            return
        try:
            out.write_text(schema_text(), encoding="utf-8")
        except OSError as error:
            raise UserError(
                f"--out {out}: cannot be written ({error.strerror}), name a file in a folder that can be"
            ) from error
