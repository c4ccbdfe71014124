"""A live line with the headline figures; nothing when the output is no terminal or quiet is asked for."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

_HEADLINES = (
    ("pretraining/accuracy", "labels"),
    ("stage", "stage"),
    ("train/verifier/accuracy", "train"),
    ("eval/verifier/accuracy", "held-out"),
    ("eval/verifier/solo_baseline", "alone"),
    ("eval/exploitability", "exploitability"),
    ("train/episode_length", "rounds"),
    ("env_steps_per_s", "steps/s"),
    ("eval_sampled/verifier/accuracy", "held-out, sampled"),
    ("cost/usd", "US dollars"),
)


@contextmanager
def progress_line(name: str, start: int, total: int, quiet: bool) -> Iterator[Callable[[int, dict[str, Any]], None]]:
    """Yields ``report(iteration, figures)``."""
    if quiet or not sys.stderr.isatty():
        yield lambda iteration, figures: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[headline]}"),
    )
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(name, total=total, completed=start, headline="")

        def report(iteration: int, figures: dict[str, Any]) -> None:
            bar.update(task, completed=iteration, headline=headline(figures))

        yield report


def headline(figures: dict[str, Any]) -> str:
    """The headline figures that are there, in a few words."""
    return "  ".join(f"{label} {_shown(figures[key])}" for key, label in _HEADLINES if key in figures)


def _shown(value: float | str) -> str:
    if isinstance(value, str):
        return value
    return f"{value:,.0f}" if value >= 100 else f"{value:.3f}"


def say(text: str) -> None:
    """One line on stderr, for what a user should know of a run."""
    print(text, file=sys.stderr)
