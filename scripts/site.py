"""Hooks of MkDocs: an API page for each package, and copies of the files outside docs/ that pages link to.

Decisions that matter here:
- API pages are made from docstrings, by mkdocstrings, without importing anything; `api_pages` assigns modules to pages,
  and the tests check that every public name is there;
- pages link as in the repository. A link out of docs/ leads to a copy of the file below `repository/`, so the site
  needs neither a host nor a connection.
"""

import ast
import json
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = (
    "protocols",
    "scenarios",
    "play",
    "networks",
    "learning",
    "environments",
    "rllib",
    "text",
    "evaluation",
    "runs",
)
"""Packages with API pages: one for each of their folders."""
TOP = ("", "errors", "gymnasium", "pettingzoo", "vector", "inspect_ai", "verifiers", "plugins")
"""Modules of nip_ray itself on the first API page."""
COPIES = "repository"

_CODE = re.compile(r"(^ *```.*?^ *```|`[^`\n]*`)", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(\]\()([^)#\s:]+)(#[^)\s]*)?(\))")
_LANGUAGES = {".py": "python", ".yaml": "yaml", ".yml": "yaml", ".json": "json", ".toml": "toml", ".sbatch": "bash"}


def api_pages() -> dict[str, list[str]]:
    """Page (as in `api/nip_ray.play.md`) -> the modules that it documents."""
    package = ROOT / "nip_ray"
    pages = {"api/nip_ray.md": [f"nip_ray.{name}".removesuffix(".") for name in TOP]}
    for name in PACKAGES:
        for folder in [package / name, *sorted(path for path in (package / name).rglob("*") if path.is_dir())]:
            if modules := [module_name(file) for file in sorted(folder.glob("*.py"))]:
                pages[f"api/{module_name(folder / '__init__.py')}.md"] = modules
    return pages


def module_name(file: Path) -> str:
    """The dotted name of a module of the repository."""
    parts = file.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def source_of(module: str) -> Path:
    """The file of a module."""
    path = ROOT.joinpath(*module.split("."))
    return file if (file := path.with_suffix(".py")).is_file() else path / "__init__.py"


def public_names(module: str) -> Iterator[tuple[str, str | None]]:
    """(dotted name, docstring) of a module and of every public class, method and function that it defines. Setters,
    overloads and methods marked as overrides are left out: their docstrings are elsewhere."""
    tree = ast.parse(source_of(module).read_text(encoding="utf-8"))
    yield module, ast.get_docstring(tree)
    yield from _defined(tree.body, module)


def _defined(body: list[ast.stmt], prefix: str) -> Iterator[tuple[str, str | None]]:
    for node in body:
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) or node.name.startswith("_"):
            continue
        marks = {ast.unparse(mark).rpartition(".")[2] for mark in node.decorator_list}
        if marks & {"setter", "overload", "override"} or any(mark.startswith("override(") for mark in marks):
            continue
        yield f"{prefix}.{node.name}", ast.get_docstring(node)
        if isinstance(node, ast.ClassDef):
            yield from _defined(node.body, f"{prefix}.{node.name}")


# ------------------------------------------------------------------------------------------------------ hooks of MkDocs


def on_config(config: Any) -> None:
    """Add the API pages to the navigation, below the last part."""
    titles = [{page.removeprefix("api/").removesuffix(".md"): page} for page in api_pages()]
    (reference,) = (part["Reference"] for part in config.nav if "Reference" in part)
    reference.append({"API": titles})


def on_files(files: Any, config: Any) -> Any:
    """Add the API pages, and a copy of every file outside docs/ that a page links to."""
    from mkdocs.structure.files import File, InclusionLevel

    for page, modules in api_pages().items():
        files.append(File.generated(config, page, content=api_page(page, modules)))
    waiting = [(f"docs/{file.src_uri}", file.content_string) for file in files.documentation_pages()]
    seen: set[str] = set()
    while waiting:
        here, text = waiting.pop()
        for path in _outside(here, text):
            if path not in seen:
                seen.add(path)
                text_of_copy = copy_of(path)
                waiting.append((path, text_of_copy))
                shown = InclusionLevel.NOT_IN_NAV
                files.append(File.generated(config, copied_to(path), content=text_of_copy, inclusion=shown))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Point links out of docs/, and those of the copies, to pages of the site."""
    own = page.file.src_uri
    here = _original(own) if own.startswith(f"{COPIES}/") else f"docs/{own}"

    def led(match: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(here), match[2]))
        within = target.removeprefix("docs/") if target.startswith("docs/") else copied_to(target)
        return f"{match[1]}{posixpath.relpath(within, posixpath.dirname(own) or '.')}{match[3] or ''}{match[4]}"

    return "".join(part if n % 2 else _LINK.sub(led, part) for n, part in enumerate(_CODE.split(markdown)))


# ------------------------------------------------------------------------------------------------------ generated pages


def api_page(page: str, modules: list[str]) -> str:
    """The Markdown of an API page: its modules, each as a heading with its contents."""
    title = page.removeprefix("api/").removesuffix(".md")
    return "\n\n".join([f"# {title}", *(f"::: {module}" for module in modules)]) + "\n"


def copied_to(path: str) -> str:
    """Where the copy of a file or folder of the repository is: `repository/examples/own_protocol.py.md`."""
    return f"{COPIES}/{path}" if path.endswith(".md") else f"{COPIES}/{path}.md"


def _original(copy: str) -> str:
    path = copy.removeprefix(f"{COPIES}/")
    return path if (ROOT / path).is_file() else path.removesuffix(".md")


def copy_of(path: str) -> str:
    """A file of the repository as a page: Markdown unchanged, a notebook cell by cell, a folder as a list of its files,
    anything else as a block of code that the search leaves out."""
    file = ROOT / path
    if file.is_dir():
        names = [entry.name for entry in sorted(file.iterdir()) if entry.is_file() and not entry.name.startswith(".")]
        return "\n".join([f"# {path}", "", *(f"- [{name}]({posixpath.basename(path)}/{name})" for name in names), ""])
    text = file.read_text(encoding="utf-8")
    if file.suffix == ".md":
        return text
    if file.suffix == ".ipynb":
        return "\n\n".join(_cell(cell) for cell in json.loads(text)["cells"]) + "\n"
    fence = f"````{_LANGUAGES.get(file.suffix, 'text')}\n{text.rstrip()}\n````"
    return f"---\nsearch:\n  exclude: true\n---\n\n# {path}\n\n{fence}\n"


def _cell(cell: dict[str, Any]) -> str:
    text = "".join(cell["source"])
    return text if cell["cell_type"] == "markdown" else f"```python\n{text}\n```"


def _outside(here: str, text: str) -> Iterator[str]:
    """The paths outside docs/ that a page at `here` links to, relative to the repository."""
    for n, part in enumerate(_CODE.split(text)):
        for match in _LINK.finditer(part) if n % 2 == 0 else ():
            path = posixpath.normpath(posixpath.join(posixpath.dirname(here), match[2]))
            if not path.startswith(("docs/", "..")) and (ROOT / path).exists():
                yield path
