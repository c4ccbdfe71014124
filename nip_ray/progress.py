"""The progress of a run on stderr: a bar in a terminal, lines elsewhere (logs, jobs, notebooks); nothing in quiet mode.

Decisions that matter here:
- without a terminal a line is printed at each stage, at each evaluation and every `LINE_S` seconds: so a log
  distinguishes a working run from a hanging one, and stays short;
- in a terminal the metrics have a line of their own, and iteration, total and time left are visible at any width;
- all of it is best effort: a closed terminal, a pipe without a reader or a full disk ends nothing.
"""

import errno
import io
import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from nip_ray.errors import UserError
from nip_ray.redaction import Redactor

LINE_S = 30.0
"""Maximum seconds between two lines."""
Report = Callable[[int, dict[str, Any]], None]
_NAME_COLUMNS = 30

_HEADLINES = (
    ("stage", ""),
    ("pretraining/accuracy", "accuracy on labels"),
    ("train/verifier/accuracy", "accuracy"),
    ("eval/verifier/accuracy", "evaluation"),
    ("eval_sampled/verifier/accuracy", "sampled evaluation"),
    ("eval/verifier/solo_baseline", "alone"),
    ("eval/exploitability", "exploitability"),
    ("train/episode_length", "rounds"),
    ("env_steps_per_s", "steps/s"),
    ("cost/usd", "US dollars"),
)


@contextmanager
def progress_line(name: str, start: int, total: int, quiet: bool, unit: str = "iteration") -> Iterator[Report]:
    """Yields ``report(done, figures)``. name: of the run. unit: of the count, from `start` to `total`."""
    if quiet:
        yield lambda done, figures: None
    elif BestEffort(sys.stderr).isatty():
        with _bar(f"{name[:_NAME_COLUMNS]} {unit}", start, total) as report:
            yield report
    else:
        yield _lines(start, total, unit)


@contextmanager
def _bar(title: str, start: int, total: int) -> Iterator[Report]:
    from rich.console import Console, RenderableType
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, Task, TextColumn, TimeRemainingColumn
    from rich.table import Column
    from rich.text import Text

    class Bar(Progress):
        """With the metrics below it."""

        figures = ""

        def get_renderables(self) -> Iterator[RenderableType]:
            yield from super().get_renderables()
            yield Text(self.figures, no_wrap=True, overflow="ellipsis")

    class Left(TimeRemainingColumn):
        """The time until the last iteration is done, blank after that."""

        def render(self, task: Task) -> Text:
            return Text() if task.finished else super().render(task).append(" left")

    whole = Column(no_wrap=True)  # in a narrow terminal the bar shrinks, and the end of the title
    columns = (
        TextColumn("{task.description}"),
        BarColumn(16),
        MofNCompleteColumn(table_column=whole),
        Left(table_column=whole),
    )
    file: Any = BestEffort(sys.stderr)
    console = Console(file=file)
    with Bar(*columns, console=console) as bar:
        task = bar.add_task(title[: max(10, console.width - 40)], total=total, completed=start)

        def report(done: int, figures: dict[str, Any]) -> None:
            bar.figures = headline(figures)
            bar.update(task, completed=done)

        yield report


def _lines(start: int, total: int, unit: str) -> Report:
    began = told = time.monotonic()
    stage_before, tested_before = "", ()

    def report(done: int, figures: dict[str, Any]) -> None:
        nonlocal began, told, stage_before, tested_before
        now = time.monotonic()
        stage = re.sub(r"\s*\d+/\d+$", "", figures.get("stage", ""))
        tested = tuple(value for key, value in sorted(figures.items()) if key.startswith("eval")) or tested_before
        if done == start and ("warm-up" in stage or "iteration" in figures):
            began = now  # the remaining work is iterations
        if now - told >= LINE_S or (stage, tested) != (stage_before, tested_before) or done == total:
            told = now
            left = (
                [] if done in (start, total) else [f"{duration((now - began) / (done - start) * (total - done))} left"]
            )
            # an evaluation belongs to its iteration, and is not repeated beside later ones
            new = {key: x for key, x in figures.items() if tested != tested_before or not key.startswith("eval")}
            say(" · ".join([f"{unit} {done}/{total}", *filter(None, [headline(new)]), *left]))
        stage_before, tested_before = stage, tested

    return report


def duration(seconds: float) -> str:
    """A duration for readers."""
    minutes = round(seconds / 60)
    if seconds < 90:
        return f"{seconds:.2g} s" if seconds < 10 else f"{seconds:.0f} s"
    if minutes < 120:
        return f"{minutes} min"
    return f"{minutes // 60} h {minutes % 60} min" if minutes < 48 * 60 else f"{minutes // 1440} days"


def headline(figures: dict[str, Any]) -> str:
    """The available headline metrics, in a few words."""
    return " · ".join(f"{label} {_shown(figures[key])}".strip() for key, label in _HEADLINES if key in figures)


def _shown(value: float | str | None) -> str:
    if isinstance(value, str):
        return value
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3f}"


def say(text: str) -> None:
    """Print one line on stderr, without secrets."""
    file = BestEffort(sys.stderr)
    file.write(Redactor()(text) + "\n")  # one write: print makes two, and lines of several threads would mix
    file.flush()


def say_stage(text: str, quiet: bool) -> None:
    """The same for the start of a stage."""
    if not quiet:
        say(text)


class BestEffort(io.TextIOBase):
    """A text stream that drops unwritable text. stream: None for one that was closed before the process began.

    needed: for a command's main output; a loss raises UserError, or BrokenPipeError if the reader is gone.
    """

    def __init__(self, stream: Any, needed: bool = False) -> None:
        super().__init__()
        self._stream = stream._stream if isinstance(stream, BestEffort) else stream
        self._needed = needed

    def write(self, text: str) -> int:
        """Always reports `text` as written."""
        try:
            if self._stream is not None and text != "":  # do not write just to test the stream
                self._stream.write(text)
        except (OSError, ValueError) as error:
            self._lost(error)
        return len(text)

    def flush(self) -> None:
        """Flush as far as possible."""
        try:
            if self._stream is not None:
                self._stream.flush()
        except (OSError, ValueError) as error:
            self._lost(error)

    def isatty(self) -> bool:
        """True if it writes to a terminal."""
        try:
            return self._stream is not None and self._stream.isatty()
        except ValueError:  # closed
            return False

    def fileno(self) -> int:
        """The stream's. Raises OSError if it has none."""
        if self._stream is None:
            raise io.UnsupportedOperation("fileno")
        return self._stream.fileno()

    def writable(self) -> bool:
        """Always."""
        return True

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """The stream's."""
        return getattr(self._stream, "encoding", None) or "utf-8"

    @property
    def errors(self) -> str:  # type: ignore[override]
        """The stream's handling of unencodable text."""
        return getattr(self._stream, "errors", None) or "backslashreplace"

    def __getattr__(self, name: str) -> Any:
        """Other attributes of the stream, such as its `buffer`."""
        if name.startswith("_") or self._stream is None:
            raise AttributeError(name)
        return getattr(self._stream, name)

    def _lost(self, error: OSError | ValueError) -> None:
        if self._needed and isinstance(error, BrokenPipeError):
            raise error
        if self._needed:
            raise UserError(
                f"standard output cannot be written ({getattr(error, 'strerror', None) or 'it is closed'})"
            ) from None


def open_standard_files() -> None:
    """Open the null device in place of a missing stdin, stdout or stderr: otherwise the next opened file would take its
    descriptor."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError as error:
            if error.errno == errno.EBADF:
                os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
