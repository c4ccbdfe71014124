"""Plain words: a page begins with its use, and the worst patterns stay out of it, and out of docstrings.

Only patterns without a good use are listed; the rest is left to readers.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.blocks import ROOT, blocks_of, pages, prose_of

PAGES = {str(page.relative_to(ROOT)): page for page in pages()}
PATTERNS = {
    r"\b[Ww]hoever\b|\b[Ww]homever\b": "name the agent, process or caller",
    r"\b[Nn]obody\b|\b[Ss]omebody\b": "name the agent, process or caller",
    r"\banew\b": "again",
    r"\bof one's own\b": "your own",
    r"(?<![Tt]here )\b(is|are) no (?!longer\b|more\b|less\b|(wider|nearer|better|worse) than\b)[a-z]+": "is not a ...",
    r"\bcomes? to (?!an end|rest|mind)[\d.a-z]+": "equals, reaches or returns",
    r"\bbesides\b": "also, in addition",
    r"\blikewise\b": "also, the same",
    r"\bto be (learned|asked|told|had|looked)\b": "use the active verb",
    r"\bhears?\b": "receives, reads",
    r"\b(stands|(it|which|that) lies) (in|on|for|there|below|above|beside|with)\b": "is in, is stored in",
    r"\bas ever\b|\bthe like\b": "leave it out",
}
HEADLESS = re.compile(r"(What|Whether|Who|Whom|Whose|Which|How|That) ")
QUOTED = re.compile(r"`[^`]*`|\"[^\"]*\"|\]\([^)]*\)")


def found(text: str) -> Iterator[str]:
    """Every forbidden phrase of a text, with what to write in its place."""
    plain = QUOTED.sub("", " ".join(text.split()))
    for pattern, better in PATTERNS.items():
        for match in re.finditer(pattern, plain):
            yield f"{match[0]!r}: {better}"


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_in_plain_words(name: str) -> None:
    text = " ".join(line for _, line in prose_of(PAGES[name]))
    assert not list(found(text))


@pytest.mark.parametrize("name", PAGES)
def test_a_page_begins_with_its_use(name: str) -> None:
    text = "\n".join(line for _, line in prose_of(PAGES[name]))
    first = text.strip().split("\n\n")[1]
    assert first.startswith("Use "), first


@pytest.mark.parametrize("name", [name for name in PAGES if name != "docs/index.md"])
def test_an_example_comes_first(name: str) -> None:
    """At most ten lines of it, before the first section."""
    sections = [number for number, line in prose_of(PAGES[name]) if line.startswith("## ")]
    example = blocks_of(PAGES[name])[0]
    assert len(example.text.splitlines()) <= 10
    assert not sections or example.line < sections[0]


def texts(file: Path) -> Iterator[tuple[int, str]]:
    """(line, text) of a module's docstrings (of fields too), descriptions of settings and texts for `--help`."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.lineno, node.value.value
        if isinstance(node, ast.Call):
            described = node.args[1:2] if ast.unparse(node.func) == "option" else []
            for value in [*described, *(word.value for word in node.keywords if word.arg == "help")]:
                if isinstance(value, ast.Constant) and isinstance(value.value, str):
                    yield value.lineno, value.value


@pytest.mark.parametrize("folder", ["nip_ray", "scripts", "examples", "benchmarks"])
def test_docstrings_and_descriptions_are_in_plain_words(folder: str) -> None:
    faults = [
        f"{file.relative_to(ROOT)}:{line}: {fault}"
        for file in sorted((ROOT / folder).rglob("*.py"))
        for line, text in texts(file)
        for fault in [*found(text), *(["name the thing or the act"] if HEADLESS.match(text) else [])]
    ]
    assert not faults, "\n".join(faults)


def test_forbidden_words_are_found() -> None:
    assert list(found("whoever plays")) == ["'whoever': name the agent, process or caller"]
    assert list(found("It is no integer; there is no `nobody`.")) == ["'is no integer': is not a ..."]
    assert HEADLESS.match("Whether it runs.")
    assert not HEADLESS.match("Whatever it runs.")
