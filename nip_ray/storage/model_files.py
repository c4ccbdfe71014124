"""The files of a language model: a folder in the Hugging Face form, or a GGUF file."""

import json
from importlib.util import find_spec
from pathlib import Path

from nip_ray.errors import UserError
from nip_ray.storage.gguf_header import gguf_header

NEEDS_GGUF = "the package gguf, which reads it, is missing, install it (pip install 'gguf>=0.19,<1') or name a folder"
NO_TEMPLATE = (
    "its tokenizer has no chat template, name a model that was made to chat, or convert a GGUF file by"
    " `nip-ray model FILE --chat-template TEMPLATE`"
)


def gguf_in(place: Path) -> Path | None:
    """The GGUF file at `place`: that file, or the only one in a folder without a config.json. None for any other."""
    if place.suffix.lower() == ".gguf" and place.is_file():
        return place
    found = [] if (place / "config.json").is_file() or not place.is_dir() else _ggufs(place)
    return found[0] if len(found) == 1 else None


def is_model(place: Path) -> bool:
    """True for a folder with a config.json, a GGUF file, and a folder with one."""
    return (place / "config.json").is_file() or gguf_in(place) is not None


def model_fault(place: Path, template: str | None = None) -> str | None:
    """The fault of the model at `place`, as far as its files show without a library; None if there is none. template:
    what a GGUF file gets in place of its own."""
    if (file := gguf_in(place)) is not None:
        return _gguf_fault(file, template)
    if not (place / "config.json").is_file():
        if place.is_dir() and (several := _ggufs(place)):
            return f"{len(several)} GGUF files are in this folder, name one of them"
        if place.suffix.lower() == ".gguf" and not place.exists():
            return "no such file, name a GGUF file"
        return "no model here (a folder with a config.json, or a GGUF file), name one or make one by `nip-ray model`"
    return None if _has_template(place) else NO_TEMPLATE


def _gguf_fault(file: Path, template: str | None) -> str | None:
    try:
        header = gguf_header(file)
    except UserError as error:
        return f"{str(error).removeprefix(f'{file}: ')}, name another"
    if not (template or header.get("tokenizer.chat_template")):
        return NO_TEMPLATE
    return None if find_spec("gguf") is not None else NEEDS_GGUF


def _ggufs(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.suffix.lower() == ".gguf")


def _has_template(folder: Path) -> bool:
    """False if there is a tokenizer without a template; without a tokenizer, that is reported instead."""
    file = folder / "tokenizer_config.json"
    if any((folder / name).is_file() for name in ("chat_template.jinja", "chat_template.json")) or not file.is_file():
        return True
    try:
        return bool(json.loads(file.read_text(encoding="utf-8")).get("chat_template"))
    except (ValueError, AttributeError):
        return True
