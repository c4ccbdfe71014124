"""Code blocks of Markdown pages: found, and run as a reader would, page by page.

What a block is comes from its language: `bash` and `sh` are commands, `console` commands with what they print, `python`
code, `yaml` a config or a part of one. A comment in the line before it says more: `<!-- not run: reason -->` or `<!--
slow -->`.

Decisions that matter here:

- The blocks of a page share a folder, and its Python blocks a process: a page reads from top to bottom.
- In console blocks every line that is shown must be printed, in that order. Numbers may differ, `...` stands for
  anything: figures depend on the machine, names and shapes do not.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import typer

from nip_ray.cli import app

ROOT = Path(__file__).resolve().parents[2]
COMMANDS = ("bash", "sh")
RUNNABLE = (*COMMANDS, "console", "python", "yaml")
# what a reader in the repository's root has beside the page
FOLDERS = ("tune_configs", "examples", "scripts", "kubernetes")
_FENCE = re.compile(r"^(\s*)```(\w*)\s*$")
_MARK = re.compile(r"^\s*<!--\s*(not run|slow)\s*:?\s*(.*?)\s*-->\s*$")
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e[-+]?\d+)?")


@dataclass(frozen=True)
class Block:
    """A fenced block. line: of its fence. mark: "", "slow" or "not run"; reason: why it is not run."""

    page: Path
    line: int
    language: str
    text: str
    mark: str = ""
    reason: str = ""

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT) if self.page.is_relative_to(ROOT) else self.page}:{self.line}"


def pages() -> list[Path]:
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks_of(page: Path) -> list[Block]:
    """Every fenced block of a page, in order."""
    found: list[Block] = []
    lines = page.read_text(encoding="utf-8").splitlines()
    start, indent, language = None, "", ""
    for number, line in enumerate(lines):
        fence = _FENCE.match(line)
        if fence is None:
            continue
        if start is None:
            start, indent, language = number, fence[1], fence[2]
            continue
        mark = _MARK.match(lines[start - 1]) if start else None
        text = "\n".join(inner.removeprefix(indent) for inner in lines[start + 1 : number])
        found.append(Block(page, start + 1, language, text, *(mark.groups() if mark else ())))
        start = None
    assert start is None, f"{page}:{start}: a block without an end"
    return found


def prose_of(page: Path) -> Iterator[tuple[int, str]]:
    """(number, line) of every line outside of fenced blocks and comments; a block leaves an empty line."""
    fenced, comment = False, False
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        fence = _FENCE.match(line) is not None
        comment = comment or line.lstrip().startswith("<!--")
        yield number, "" if fence or fenced or comment else line
        fenced ^= fence
        comment = comment and "-->" not in line


def run_page(blocks: Sequence[Block], folder: Path) -> None:
    """Run blocks in order in `folder`. Raises AssertionError with what the first one that fails has said."""
    for name in FOLDERS:
        if not (folder / name).exists():
            (folder / name).symlink_to(ROOT / name)
    (folder / "home").mkdir(exist_ok=True)
    interpreter: Interpreter | None = None
    try:
        for block in blocks:
            if block.language in COMMANDS:
                _check(block, _shell(block.text, folder))
            elif block.language == "console":
                for command, shown in transcript(block.text):
                    done = _shell(command, folder)
                    _check(block, done)
                    missing = not_printed(shown, done.stdout)
                    assert missing is None, f"{block}: `{command}` does not print\n  {missing}\nbut\n{done.stdout}"
            elif block.language == "yaml":
                _read_config(block)
            else:
                interpreter = interpreter or Interpreter(folder)
                said = interpreter.run(block.text)
                assert said is None, f"{block}: {said}"
    finally:
        if interpreter is not None:
            interpreter.end()


def environment(folder: Path) -> dict[str, str]:
    """A home of its own, one thread, and this checkout's nip_ray."""
    paths = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    return {
        **os.environ,
        "HOME": str(folder / "home"),
        "PATH": paths,
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "COLUMNS": "140",
    }


def transcript(text: str) -> Iterator[tuple[str, list[str]]]:
    """(command, the lines that it prints) of a console block; a command begins with `$ ` and continues after a
    backslash."""
    command, shown = "", []
    for line in text.splitlines():
        if line.startswith("$ "):
            if command:
                yield command, shown
            command, shown = line[2:], []
        elif command.endswith("\\"):
            command += "\n" + line
        elif line.strip():
            shown.append(line)
    if command:
        yield command, shown


def commands(text: str) -> Iterator[list[str]]:
    """What the shell commands of a block give to `nip-ray`, by whatever they call it, as words."""
    lines = iter(text.replace("\\\n", " ").splitlines())
    for line in lines:
        while True:
            lexer = shlex.shlex(line.removeprefix("$ "), posix=True, punctuation_chars=True)
            lexer.whitespace_split = True
            try:
                words = list(lexer)
                break
            except ValueError:  # a quotation that ends in another line
                line += "\n" + next(lines)
        for _, found in groupby(words, lambda word: set(word) <= set(";|&()<>")):
            command = list(found)
            for before, word in zip(["--", *command], command, strict=False):
                if (word == "nip-ray" and before in ("--", "srun")) or (word == "nip_ray.cli" and before == "-m"):
                    yield command[command.index(word) + 1 :]


def parsed(arguments: Sequence[str]) -> tuple[str, dict[str, Any]]:
    """(verb, values of its parameters) as the command line reads them. Raises click's errors."""
    command: Any = typer.main.get_command(app)
    words = list(arguments)
    while hasattr(command, "commands"):
        command = command.commands[words.pop(0)]
    return command.name, command.make_context(command.name, words).params


def not_printed(shown: Sequence[str], printed: str) -> str | None:
    """The first line of `shown` that does not stand in `printed` after those before it; None when all do."""
    lines = iter(" ".join(line.split()) for line in printed.splitlines())
    for line in shown:
        if line.strip() == "...":
            continue
        pattern = re.compile(_pattern(" ".join(line.split())))
        if not any(pattern.fullmatch(printed_line) for printed_line in lines):
            return line
    return None


def _pattern(line: str) -> str:
    pieces = re.split(rf"({_NUMBER.pattern}|\.\.\.)", line)  # numbers and ellipses stand at the odd places
    wild = [".*" if piece == "..." else _NUMBER.pattern for piece in pieces[1::2]]
    return "".join(re.escape(text) + gap for text, gap in zip(pieces[::2], [*wild, ""], strict=True))


def _shell(text: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-euo", "pipefail", "-c", text],
        cwd=folder,
        env=environment(folder),
        capture_output=True,
        text=True,
        timeout=1500,
    )


def _check(block: Block, done: subprocess.CompletedProcess[str]) -> None:
    assert done.returncode == 0, f"{block}: exit status {done.returncode}\n{done.stdout}\n{done.stderr}"


def _read_config(block: Block) -> None:
    """A config, a sweep or a runner, or a part of one: every key must exist and take what is shown."""
    from nip_ray.config.load import config_from_dict
    from nip_ray.config.yaml_text import parse_yaml

    data = parse_yaml(block.text, str(block))
    if "sweep" in data:
        from nip_ray.sweeps.spec import load_sweep

        _with_file(block.text, load_sweep)
    elif "learners" in data and "environment" in data:
        from nip_ray.drivers.spec import load_runner

        _with_file(block.text, load_runner)
    else:
        config_from_dict(data)


def _with_file(text: str, read: Callable[[Path], object]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "block.yaml"
        file.write_text(text, encoding="utf-8")
        read(file)


_INTERPRETER = """
import json, sys, traceback
space = {"__name__": "__main__"}
answers = sys.stdout
sys.stdout = sys.stderr
for line in sys.stdin:
    try:
        exec(compile(json.loads(line), "<block>", "exec"), space)
        said = None
    except BaseException:
        said = traceback.format_exc()
    print(json.dumps(said), file=answers, flush=True)
"""


class Interpreter:
    """A Python process that runs blocks one after the other, in one namespace."""

    def __init__(self, folder: Path) -> None:
        self.errors = (folder / "home" / "python.log").open("w+")
        self.process = subprocess.Popen(
            [sys.executable, "-c", _INTERPRETER],
            cwd=folder,
            env=environment(folder),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            text=True,
        )

    def run(self, text: str) -> str | None:
        """What went wrong, None if nothing."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(text) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        return json.loads(answer) if answer else f"the process ended with {self.process.wait()}"

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        self.errors.close()


def give_run(source: Path, folder: Path, name: str) -> None:
    """Put a copy of a run folder where a page expects it."""
    shutil.copytree(source, folder / name)
