"""The site: its navigation has every page, its API pages every public name, and it is built without a warning."""

import ast
import importlib
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import yaml

from scripts.site import ROOT, api_pages, copied_to, public_names, source_of

DOCS = ROOT / "docs"
NAMES = {name: doc for modules in api_pages().values() for module in modules for name, doc in public_names(module)}


class _Lenient(yaml.SafeLoader):
    """Reads tags that name functions as nothing."""


_Lenient.add_multi_constructor("tag:yaml.org,2002:python/", lambda *_: None)


def navigation() -> list[Any]:
    return yaml.load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"), _Lenient)["nav"]


def entries(node: Any) -> list[str]:
    if isinstance(node, str):
        return [node]
    return [page for child in (node.values() if isinstance(node, dict) else node) for page in entries(child)]


def test_the_navigation_has_four_parts_and_every_page_once() -> None:
    assert [title for part in navigation() for title in part] == ["Learn", "How-to", "Concepts", "Reference"]
    assert sorted(entries(navigation())) == sorted(path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md"))


def test_every_public_name_has_a_docstring() -> None:
    assert len(NAMES) > 2000
    assert not [name for name, doc in NAMES.items() if not doc]


def exported(package: str) -> list[str]:
    """The names in `__all__`, which may be constants."""
    for node in ast.parse(source_of(package).read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return [name for name in ast.literal_eval(node.value) if not name.startswith("_")]
    return []


EXPORTED = [f"{module}.{name}" for modules in api_pages().values() for module in modules for name in exported(module)]


@pytest.mark.parametrize("name", EXPORTED)
def test_an_exported_name_is_there(name: str) -> None:
    module, _, last = name.rpartition(".")
    assert hasattr(importlib.import_module(module), last)


def test_a_copied_file_has_a_page_of_its_own() -> None:
    assert copied_to("benchmarks/results.md") == "repository/benchmarks/results.md"
    assert copied_to("examples/own_protocol.py") == "repository/examples/own_protocol.py.md"


# ---------------------------------------------------------------------------------------------------------------
# the site as it is built


class Page(HTMLParser):
    """The ids of a page and what it loads or links to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.loaded: list[str] = []
        self.links: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.ids |= {found["id"] or ""} if "id" in found else set()
        if tag in ("script", "img", "iframe") and found.get("src"):
            self.loaded.append(found["src"] or "")
        if tag == "link" and found.get("rel") in ("stylesheet", "preload", "icon"):
            self.loaded.append(found.get("href") or "")
        if tag == "a" and found.get("href"):
            self.links.append(found["href"] or "")


def build_site(folder: Path) -> Path:
    """The site, built in `folder` as `make docs` does."""
    pytest.importorskip("mkdocstrings_handlers.python", reason="needs pip install -r docs/requirements.txt")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Page]:
    """Path of each page below the site's folder -> what it has."""
    folder = build_site(tmp_path_factory.mktemp("site"))
    return {path.relative_to(folder).as_posix(): Page(path.read_text("utf-8")) for path in folder.rglob("*.html")}


@pytest.mark.docs
def test_every_public_name_is_on_its_page(site: dict[str, Page]) -> None:
    for page, modules in api_pages().items():
        ids = site[f"{page.removesuffix('.md')}/index.html"].ids
        wanted = {name for module in modules for name, _ in public_names(module)}
        wanted |= {f"{module}.{name}" for module in modules for name in exported(module)}
        assert wanted <= ids, sorted(wanted - ids)


@pytest.mark.docs
def test_the_site_loads_nothing_from_elsewhere(site: dict[str, Page]) -> None:
    assert not {source for page in site.values() for source in page.loaded if re.match(r"\w+:|//", source)}


@pytest.mark.docs
def test_links_of_the_site_lead_to_pages_and_headings(site: dict[str, Page]) -> None:
    for name, page in site.items():
        if name == "404.html":
            continue
        for link in page.links:
            path, _, anchor = link.partition("#")
            if re.match(r"\w+:|//", link):
                continue
            target = os.path.normpath(Path(name).parent / path) if path else name
            target = f"{target}/index.html".removeprefix("./") if Path(target).suffix != ".html" else target
            target = target if target in site else target.removesuffix("/index.html")
            if target.endswith(".html"):
                assert target in site, f"{name}: {link}"
                assert not anchor or anchor in site[target].ids or anchor.startswith("__"), f"{name}: {link}"
