"""`nip-ray model`: a pretrained language model as a folder, for `model:` of configs."""

from pathlib import Path
from typing import Annotated

import typer

from nip_ray.cli.common import app, errors
from nip_ray.errors import UserError


@app.command()
def model(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME", help="smollm2-135m, gemma3-270m, or the path of a GGUF file.", show_default=False
        ),
    ],
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="A new folder.", show_default=False)],
    chat_template: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="A Jinja file for a GGUF file without chat template.", show_default=False),
    ] = None,
) -> None:
    """Write a pretrained language model as a folder in the Hugging Face form, from a package or a GGUF file."""
    with errors():
        if out.exists() and (not out.is_dir() or any(out.iterdir())) and not (out / "config.json").is_file():
            raise UserError(f"--out {out}: is there already and holds no model, name a new folder")
        if chat_template is not None and not chat_template.is_file():
            raise UserError(f"--chat-template {chat_template}: is not a file, name one with a Jinja template")
        if Path(name).suffix.lower() == ".gguf":
            from nip_ray.serving.gguf import convert_gguf

            convert_gguf(Path(name), out, None if chat_template is None else chat_template.read_text(encoding="utf-8"))
        elif chat_template is not None:
            raise UserError(f"--chat-template {chat_template}: {name} has a template, leave it out")
        else:
            from nip_ray.serving.packaged import write_packaged

            typer.echo(write_packaged(name, out))
        typer.echo(f"{out} can be the `model` of an agent whose provider is local")
