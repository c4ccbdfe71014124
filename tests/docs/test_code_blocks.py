"""Every code block of README.md and docs/ does what the page says."""

import re
from pathlib import Path

import pytest
import typer

from nip_ray.cli import app
from nip_ray.config.load import load_config
from nip_ray.text.judging.judges import JUDGES
from tests.docs.blocks import (
    ROOT,
    RUNNABLE,
    Block,
    blocks_of,
    commands,
    give_run,
    not_printed,
    pages,
    parsed,
    run_page,
    transcript,
)

pytestmark = pytest.mark.usefixtures("no_plugins")

FIRST_RUN = "runs/first"  # what pages call the run that docs/start.md begins with
PAGES = {str(page.relative_to(ROOT)): page for page in pages()}
_LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")
_CODE = re.compile(r"^```.*?^```|`[^`\n]*`", re.MULTILINE | re.DOTALL)


def runnable(page: Path, slow: bool) -> list[Block]:
    """The blocks that are to be run; without the long ones unless they are asked for."""
    return [
        block
        for block in blocks_of(page)
        if block.language in RUNNABLE and block.mark != "not run" and (slow or block.mark != "slow")
    ]


FAST = [name for name, page in PAGES.items() if runnable(page, slow=False)]
LONG = [name for name, page in PAGES.items() if any(block.mark == "slow" for block in blocks_of(page))]


@pytest.fixture(scope="module")
def first_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run folder that docs/start.md makes, made by the very block that stands there."""
    folder = tmp_path_factory.mktemp("start")
    (block,) = filter(makes_the_first_run, blocks_of(PAGES["docs/start.md"]))
    run_page([block], folder)
    return folder / FIRST_RUN


def makes_the_first_run(block: Block) -> bool:
    return f"--run-dir {FIRST_RUN}" in block.text


def run(name: str, folder: Path, first: Path, slow: bool) -> None:
    blocks = [block for block in runnable(PAGES[name], slow) if not makes_the_first_run(block)]  # that one has been run
    if any(FIRST_RUN in block.text for block in blocks):
        give_run(first, folder, FIRST_RUN)
    run_page(blocks, folder)


@pytest.mark.docs
@pytest.mark.parametrize("name", FAST)
def test_the_blocks_of_a_page_run(name: str, tmp_path: Path, first_run: Path) -> None:
    run(name, tmp_path, first_run, slow=False)


@pytest.mark.docs
@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", LONG)
def test_the_blocks_of_a_page_run_with_the_long_ones(name: str, tmp_path: Path, first_run: Path) -> None:
    run(name, tmp_path, first_run, slow=True)


@pytest.mark.parametrize("name", PAGES)
def test_a_block_that_is_not_run_says_why(name: str) -> None:
    """No reason, or a command that no reader could tell from output: both are mistakes."""
    for block in blocks_of(PAGES[name]):
        assert block.mark != "not run" or len(block.reason) > 10, (
            f"{block}: `<!-- not run: reason -->` without a reason"
        )
        assert block.mark == "" or block.language in RUNNABLE, f"{block}: is no code, and needs no mark"
        first = block.text.strip().partition(" ")[0]
        looks_like_a_command = block.language == "" and first in (
            "nip-ray",
            "python",
            "pip",
            "ray",
            "docker",
            "kubectl",
            "helm",
            "export",
            "$",
        )
        assert not looks_like_a_command, f"{block}: commands need a language: bash, or console with what they print"


NOT_RUN = [
    block
    for page in PAGES.values()
    for block in blocks_of(page)
    if block.mark == "not run" and list(commands(block.text))
]


@pytest.mark.parametrize("block", NOT_RUN, ids=str)
def test_commands_that_are_not_run_are_understood(block: Block) -> None:
    for words in commands(block.text):
        verb, given = parsed(words)
        if verb == "judge" and given["judges"]:
            assert set(given["judges"].split(",")) <= set(JUDGES), block
        if verb == "train" and str(given["config"]).startswith("tune_configs/"):
            load_config(ROOT / given["config"], given["settings"] or [])


def verbs() -> list[str]:
    """Every verb of the command line; those of a group with a dash between."""
    group = typer.main.get_command(app)
    names = []
    for name, command in group.commands.items():  # type: ignore[attr-defined]
        names += [f"{name}-{below}" for below in command.commands] if hasattr(command, "commands") else [name]
    return names


@pytest.mark.parametrize("verb", verbs())
def test_every_verb_has_a_page(verb: str) -> None:
    page = ROOT / "docs" / "verbs" / f"{verb}.md"
    assert page.is_file()
    assert f"verbs/{verb}.md" in (ROOT / "docs" / "index.md").read_text(encoding="utf-8")


def links(page: Path) -> list[str]:
    """What a page links to, without its code."""
    return _LINK.findall(_CODE.sub("", page.read_text(encoding="utf-8")))


@pytest.mark.parametrize("name", PAGES)
def test_links_lead_somewhere(name: str) -> None:
    page = PAGES[name]
    assert not [link for link in links(page) if "://" not in link and not (page.parent / link).exists()]


@pytest.mark.parametrize("name", [*PAGES, "CHANGELOG.md", "CONTRIBUTING.md", "benchmarks/results.md"])
def test_prose_wraps_at_120_columns(name: str) -> None:
    prose = re.sub(
        r"^```.*?^ *```|^<!--.*?-->", "", (ROOT / name).read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL
    )
    assert not [line for line in prose.splitlines() if len(line) > 120 and not line.startswith("|")]


INDEXES = (ROOT / "docs/configuration.md", ROOT / "docs/metrics.md")
"""Pages that list those of a folder."""


def test_the_index_leads_to_every_page() -> None:
    index = ROOT / "docs" / "index.md"
    linked = {(page.parent / link).resolve() for page in (index, *INDEXES) for link in links(page)}
    assert not sorted(str(page.relative_to(ROOT)) for page in PAGES.values() if page not in linked and page != index)


def page(folder: Path, text: str) -> list[Block]:
    (folder / "page.md").write_text(text, encoding="utf-8")
    return blocks_of(folder / "page.md")


def test_blocks_are_read_with_their_marks(tmp_path: Path) -> None:
    text = "a\n```python\nx = 1\n```\n<!-- not run: needs a key -->\n```bash\nfalse\n```\n"
    text += "<!-- slow -->\n```sh\ntrue\n```\n- b\n  ```text\n  c\n  ```\n"
    found = [(block.line, block.language, block.text, block.mark, block.reason) for block in page(tmp_path, text)]
    assert found == [
        (2, "python", "x = 1", "", ""),
        (6, "bash", "false", "not run", "needs a key"),
        (10, "sh", "true", "slow", ""),
        (14, "text", "c", "", ""),
    ]


@pytest.mark.docs
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("```bash\nfalse\ntrue\n```\n", "exit status 1"),
        ("```python\nx = 1\n```\n```python\nassert x == 2, 'no'\n```\n", "AssertionError: no"),
        ("```python\nimport os; os._exit(3)\n```\n", "ended with 3"),
        ("```console\n$ echo a 1\nb 1\n```\n", "does not print"),
        ("```yaml\nalgorithm: {epochs: 1}\n```\n", "unknown key"),
    ],
)
def test_a_block_that_fails_fails_the_page(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(Exception, match=said):
        run_page(page(tmp_path, text), tmp_path)


def test_shown_lines_stand_for_printed_ones() -> None:
    assert list(transcript("$ a \\\n  b\nc\n\n$ d\n")) == [("a \\\n  b", ["c"]), ("d", [])]
    assert not_printed(["accuracy  0.5", "...", "run  ..."], "x\naccuracy 0.9750\ny\nrun /tmp/3\n") is None
    assert not_printed(["b", "a"], "a\nb\n") == "a"
    assert not_printed(["took 3 s."], "took 3 sx\n") == "took 3 s."
