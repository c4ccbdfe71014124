"""What pyproject.toml pins, for files that repeat it."""

import re
import tomllib
from pathlib import Path
from typing import Any

import ray

import nip_ray

ROOT = Path(__file__).resolve().parents[2]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
VERSION = nip_ray.__version__
RAY = ray.__version__


def dependency(name: str) -> str:
    """The specifier of a dependency: `>=2.9,<2.16` for torch."""
    lines = [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["ray"]]
    [found] = [line for line in lines if re.match(rf"{name}(\[|[<>=~!])", line)]
    return re.sub(r"^[\w-]+(\[[^]]*\])?", "", found)


def agrees(image: str) -> bool:
    """Whether an image of Ray's own has the Ray that is pinned and a Python that is allowed."""
    from packaging.specifiers import SpecifierSet

    found = re.fullmatch(r"rayproject/ray:(\d+\.\d+\.\d+)-py3(\d+)(-gpu)?", image)
    if found is None:
        return False
    python = SpecifierSet(PROJECT["requires-python"])
    return found[1] in SpecifierSet(dependency("ray")) and found[1] == RAY and f"3.{found[2]}" in python


def placeholders(text: str) -> tuple[set[str], set[str]]:
    """What a file lists at its top as to be filled in, and what it has below."""
    lines = text.splitlines()
    end = next(number for number, line in enumerate(lines) if line and not line.startswith("#"))
    pattern = r"FILL_IN_(?:GPU_IMAGE|STORAGE_CLASS|[A-Z]+)"
    return set(re.findall(rf"^#   ({pattern})  ", "\n".join(lines[:end]), re.MULTILINE)), set(
        re.findall(pattern, "\n".join(lines[end:]))
    )


def looks_secret(text: str) -> list[str]:
    """What looks like a credential: long hexadecimal or base64 strings, and keys of known shapes."""
    shapes = (
        r"AKIA[0-9A-Z]{16}|sk-[\w-]{16,}|-----BEGIN|AIza[\w-]{30,}|\b[0-9a-f]{32,}\b"
        r"|(?<![\w/.-])[A-Za-z0-9+]{40,}={0,2}(?![\w/.-])"
    )
    return re.findall(shapes, text)
