"""Dockerfile and .dockerignore, read as Docker would: there is no Docker here to build with."""

import re
import shlex
from fnmatch import fnmatch
from pathlib import PurePosixPath

from tests.jobs.pinned import ROOT, agrees, dependency, looks_secret

TEXT = (ROOT / "Dockerfile").read_text()


def instructions() -> list[tuple[str, str]]:
    """Name and arguments of each, continued lines joined."""
    lines = [line for line in TEXT.replace("\\\n", " ").splitlines() if line.strip() and not line.startswith("#")]
    return [(name, rest.strip()) for name, _, rest in (line.partition(" ") for line in lines)]


def arguments(name: str) -> list[str]:
    return [rest for instruction, rest in instructions() if instruction == name]


def copied() -> list[str]:
    """The sources of every COPY."""
    words = [[word for word in shlex.split(rest) if not word.startswith("--")] for rest in arguments("COPY")]
    return [source for line in words for source in line[:-1]]


def names(pattern: str, path: str) -> bool:
    """Whether a line of .dockerignore names a file or a folder above it: from the root, or anywhere where it begins
    with **/."""
    parts = PurePosixPath(path).parts
    if pattern.startswith("**/"):
        return any(fnmatch(part, pattern.removeprefix("**/")) for part in parts)
    assert "/" not in pattern  # all that this reader knows
    return fnmatch(parts[0], pattern)


def in_context(path: str) -> bool:
    """Whether .dockerignore lets a file into the build context: the last line that names it decides."""
    kept = True
    for line in (ROOT / ".dockerignore").read_text().splitlines():
        if line and not line.startswith("#") and names(line.removeprefix("!"), path):
            kept = line.startswith("!")
    return kept


def test_the_base_is_a_choice_and_agrees_with_the_project() -> None:
    bases = [rest.removeprefix("BASE=") for rest in arguments("ARG") if rest.startswith("BASE=")]
    assert arguments("FROM") == ["${BASE}"]
    [other] = re.findall(r"--build-arg BASE=(\S+)", TEXT)
    assert all(agrees(image) for image in [*bases, other])
    assert other == f"{bases[0]}-gpu"
    assert f"'torch{dependency('torch')}'" in TEXT


def test_what_is_copied_exists_and_is_in_the_context() -> None:
    assert set(copied()) == {"pyproject.toml", "README.md", "LICENSE", "nip_ray", "examples", "tune_configs", "scripts"}
    for source in copied():
        path = ROOT / source
        files = (
            [path]
            if path.is_file()
            else [file for file in path.rglob("*") if file.is_file() and "__pycache__" not in file.parts]
        )
        assert files
        assert all(in_context(str(file.relative_to(ROOT))) for file in files)


def test_the_context_has_nothing_else() -> None:
    kept_out = ".git/HEAD .venv/bin/python runs/a/metrics.jsonl data/x.npz tests/conftest.py .env nip_ray/.env key.pem"
    for path in kept_out.split():
        assert not in_context(path), path
    assert not in_context("nip_ray/runs/__pycache__/folder.cpython-311.pyc")
    present = [entry.name for entry in ROOT.iterdir() if entry.is_file() and in_context(entry.name)]
    assert set(present) == {"pyproject.toml", "README.md", "LICENSE"}


def test_the_container_is_not_root_and_asks_for_a_token() -> None:
    assert arguments("USER") == ["1000:100"]
    names = [name for name, _ in instructions()]
    assert names.index("USER") > max(number for number, name in enumerate(names) if name == "RUN")
    [environment] = arguments("ENV")
    assert "RAY_AUTH_MODE=token" in environment.split()


def test_there_are_no_secrets() -> None:
    assert not looks_secret(TEXT)
    assert not re.search(
        r"(?i)(password|secret|api_key|_token)\s*=\s*\S", "\n".join(rest for _, rest in instructions())
    )
