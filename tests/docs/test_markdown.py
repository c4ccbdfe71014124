"""The Markdown of README.md and docs/: code, tables and links to headings are whole, whether or not they are run."""

import ast
import json
import re
import subprocess
import textwrap
from pathlib import Path

import pytest

from nip_ray.config.yaml_text import parse_yaml
from tests.docs.blocks import COMMANDS, ROOT, Block, blocks_of, pages, prose_of, transcript

PAGES = {str(page.relative_to(ROOT)): page for page in pages()}
TEXT = ("", "text", "bibtex")  # output, layouts and formulas
_ITEM = re.compile(r"\s*([-*]|\d+\.)\s")
_SEPARATOR = re.compile(r"\|[\s:|-]+\|")
_LINK = re.compile(r"\]\(([^)#\s]*)#([^)\s]+)\)")


def indented_of(lines: list[tuple[int, str]]) -> list[int]:
    """First lines of code blocks that are marked by indentation alone, given numbered lines of prose."""
    found: list[int] = []
    blank, in_list, in_block = True, False, False
    for number, line in lines:
        if line.startswith("    ") and line.strip() and not in_list and (blank or in_block):
            found += [] if in_block else [number]
            in_block = True
        elif line.strip():
            in_block = False
            in_list = bool(_ITEM.match(line)) or (in_list and line.startswith(" "))
        blank = not line.strip()
    return found


def broken_tables(lines: list[tuple[int, str]]) -> list[int]:
    """Lines of tables without a header and a separator, or with another number of cells than the header."""
    found: list[int] = []
    header, place = 0, 0
    for (number, line), (_, after) in zip(lines, [*lines[1:], (0, "")], strict=True):
        place = place + 1 if line.startswith("|") else 0
        if place == 1:
            header = cells(line)
            found += [] if _SEPARATOR.fullmatch(after) else [number]
        elif place and cells(line) != header:
            found.append(number)
    return found


def cells(row: str) -> int:
    """Cells of a table's row; a bar in code, or after a backslash, separates none."""
    return len(re.sub(r"`[^`]*`|\\\|", "", row).strip().strip("|").split("|"))


def headings(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub and the site make them."""
    found: set[str] = set()
    for _, line in prose_of(page):
        if line.startswith("#"):
            title = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", line.lstrip("#").strip().lower())
            anchor = re.sub(r"[^\w\- ]", "", title).replace(" ", "-")
            repeats = (f"{anchor}-{count}" for count in range(1, len(found) + 2))
            found.add(next(repeat for repeat in (anchor, *repeats) if repeat not in found))
    return found


def check_syntax(block: Block) -> None:
    """Raises where a block is not valid in its language."""
    if block.language == "python":
        ast.parse(textwrap.dedent(block.text))
    elif block.language == "yaml":
        parse_yaml(block.text, str(block))
    elif block.language == "json":
        text = block.text.replace("[...]", "[]")
        try:
            json.loads(text)
        except ValueError:
            for line in text.splitlines():
                json.loads(line)
    elif block.language == "console":
        for command, _ in transcript(block.text):
            check_shell(block, command)
    elif block.language in COMMANDS:
        check_shell(block, block.text)
    else:
        assert block.language in TEXT, f"{block}: {block.language} is checked by no test"


def check_shell(block: Block, text: str) -> None:
    done = subprocess.run(["bash", "-n"], input=text, capture_output=True, text=True)
    assert done.returncode == 0, f"{block}: {done.stderr}"


@pytest.mark.parametrize("name", PAGES)
def test_code_is_fenced_and_valid(name: str) -> None:
    """A block that is only indented has no language, so that no test would check it."""
    assert not indented_of(list(prose_of(PAGES[name]))), "fence these blocks with their language"
    for block in blocks_of(PAGES[name]):
        check_syntax(block)


@pytest.mark.parametrize("name", PAGES)
def test_tables_are_whole(name: str) -> None:
    assert not broken_tables(list(prose_of(PAGES[name])))


def test_links_lead_to_headings() -> None:
    known: dict[Path, set[str]] = {}
    missing = []
    for name, page in PAGES.items():
        for _, line in prose_of(page):
            for path, anchor in _LINK.findall(line):
                if "://" in path:
                    continue
                target = (page.parent / path).resolve() if path else page
                if target.suffix == ".md" and anchor not in known.setdefault(target, headings(target)):
                    missing.append(f"{name}: {path}#{anchor}")
    assert not missing


# ---------------------------------------------------------------------------------------------------------------
# the checks themselves


def numbered(text: str) -> list[tuple[int, str]]:
    return list(enumerate(text.splitlines(), 1))


def test_indented_blocks_are_found() -> None:
    text = "a\n\n    x = (\n\n    1)\n\nb\n- c\n\n    more of c\n\nd\n    e\n\n    y = 2\n"
    assert indented_of(numbered(text)) == [3, 15]


def test_broken_tables_are_found() -> None:
    whole = "| a | b |\n|---|---|\n| `x|y` | \\| |\n"
    assert broken_tables(numbered(whole)) == []
    assert broken_tables(numbered(f"{whole}\n| 1 | 2 |\n")) == [5]
    assert broken_tables(numbered(f"{whole}| 1 | 2 | 3 |\n")) == [4]


FAULTY = [
    Block(ROOT / "page.md", 1, language, text)
    for language, text in [
        ("python", "print(1) resume()"),
        ("yaml", "a: {b: 1\n  c: 2"),
        ("json", '{"a": }'),
        ("sh", "for x in 1; do"),
        ("console", "$ echo (\n"),
        ("toml", "a = 1"),
    ]
]


@pytest.mark.parametrize("block", FAULTY, ids=lambda block: block.language)
def test_invalid_blocks_are_found(block: Block) -> None:
    with pytest.raises(Exception, match=r".+"):
        check_syntax(block)


def test_anchors_are_those_of_github(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# The layout of `evaluation.json`\n```sh\n# no heading\n```\n## A, b?\n## A, b?\n", "utf-8")
    assert headings(page) == {"the-layout-of-evaluationjson", "a-b", "a-b-1"}
