"""Plain words: a page begins with its use, and the worst patterns stay out of it.

Decisions that matter here:

- `OPEN` lists the beginnings of names of pages that are not rewritten yet. It only shrinks.
- Only patterns without a good use are listed; the rest is left to readers.
"""

import re
from collections.abc import Iterator

import pytest

from tests.docs.blocks import ROOT, pages, prose_of

OPEN = (
    "docs/configuration",
    "docs/design-notes.md",
    "docs/learning.md",
    "docs/metrics.md",
    "docs/protocols.md",
    "docs/results.md",
    "docs/rllib-options.md",
    "docs/start.md",
)
PAGES = {name: page for page in pages() if not (name := str(page.relative_to(ROOT))).startswith(OPEN)}
PATTERNS = {
    r"\b[Ww]hoever\b|\b[Ww]homever\b": "name the agent, process or caller",
    r"\b[Nn]obody\b|\b[Ss]omebody\b": "name the agent, process or caller",
    r"\banew\b": "again",
    r"\bof (its|one's|their) own\b": "own, separate or your",
    r"(?<![Tt]here )\b(is|are) no (?!longer\b|more\b|less\b|(wider|nearer|better|worse) than\b)[a-z]+": "is not a ...",
    r"\bcomes? to (?!an end|rest|mind)[\d.a-z]+": "equals, reaches or returns",
    r"\bbesides\b": "also, in addition",
    r"\blikewise\b": "also, the same",
    r"\bto be (learned|asked|told|had|looked)\b": "use the active verb",
    r"\bhears?\b": "receives, reads",
    r"\b(stands|(it|which|that) lies) (in|on|for|there|below|above|beside|with)\b": "is in, is stored in",
    r"\bas ever\b|\bthe like\b": "leave it out",
}
QUOTED = re.compile(r"`[^`]*`|\"[^\"]*\"|\]\([^)]*\)")


def found(text: str) -> Iterator[str]:
    """Every forbidden phrase of a text, with what to write in its place."""
    plain = QUOTED.sub("", text)
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
