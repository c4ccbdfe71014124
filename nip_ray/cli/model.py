"""`nip-ray model`: a pretrained language model as a folder, for `model:` of configs."""

from pathlib import Path
from typing import Annotated

import typer

from nip_ray.cli.common import app, errors
from nip_ray.errors import UserError


@app.command()
def model(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="smollm2-135m, or the path of a GGUF file.", show_default=False)
    ],
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="A new folder.", show_default=False)],
) -> None:
    """Write a pretrained language model as a folder in the Hugging Face form, from a package or a GGUF file."""
    with errors():
        if out.exists() and (not out.is_dir() or any(out.iterdir())) and not (out / "config.json").is_file():
            raise UserError(f"--out {out}: is there already and holds no model, name a new folder")
        if Path(name).suffix.lower() == ".gguf":
            from nip_ray.serving.gguf import convert_gguf

            convert_gguf(Path(name), out)
        else:
            from nip_ray.serving.packaged import write_packaged

            typer.echo(write_packaged(name, out))
        typer.echo(f"{out} can be the `model` of an agent whose provider is local")
