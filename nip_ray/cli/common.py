"""The application, common options, exit codes and printing of all verbs."""

import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, redirect_stdout
from pathlib import Path
from shlex import quote
from signal import SIGINT, Signals
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from nip_ray.cli.complete import config_keys, run_folders
from nip_ray.errors import TrainingError, UserError
from nip_ray.progress import BestEffort

app = typer.Typer(
    name="nip-ray",
    help="Neural interactive proofs on Ray: train verifiers that stronger, untrusted provers cannot fool.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

RunDir = Annotated[
    Path, typer.Argument(metavar="RUN_DIR", help="Run folder.", show_default=False, autocompletion=run_folders)
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="A.B=C", help="Set a key; repeatable.", show_default=False, autocompletion=config_keys
    ),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print errors only.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]


class ConfigCommand(TyperCommand):
    """A verb that reads a config: for an unknown option it suggests the config's keys of that name, for `--set`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Like click's."""
        try:
            return super().parse_args(ctx, args)
        # NoSuchOption or another UsageError, of click or of the click that typer brings along
        except Exception as error:
            known: Any = error
            if getattr(error, "message", "").endswith(("])", "})")):  # further arguments, which end in a YAML list
                known.message += "; a value with spaces needs quotes, as in --set 'a.b=[1, 2]'"
            if name := getattr(error, "option_name", "").lstrip("-").replace("-", "_"):
                from nip_ray.config.experiment import ExperimentConfig
                from nip_ray.config.keys import walk

                keys = sorted(
                    {path for path, _ in walk(ExperimentConfig) if f".{path}".endswith(f".{name}")},
                    key=lambda path: path.count("."),
                )
                known.possibilities = [f"--set {key}=..." for key in keys[:3]] or known.possibilities
            raise


@contextmanager
def errors(run_dir: Callable[[], Path | None] = lambda: None) -> Iterator[None]:
    """Turn known exceptions into one line on stderr and an exit code. run_dir: of a run that could be resumed."""
    try:
        yield
    except UserError as error:
        raise exit_with(f"error: {error}", 2) from None
    except TrainingError as error:
        raise exit_with(f"error: {error}", 1) from None
    except KeyboardInterrupt as interrupt:
        signum = getattr(interrupt, "signum", SIGINT)
        if end_at_once is not None:
            end_at_once(128 + signum)
        folder = run_dir()
        hint = f", `nip-ray resume {quote(str(folder))}` continues it" if folder is not None and is_run(folder) else ""
        raise exit_with(f"{how_ended(signum)}{hint}", 128 + signum) from None


end_at_once: Callable[[int], None] | None = None
"""Makes any further signal end the process silently, with this exit code; set if the process is ours."""


def how_ended(signum: int) -> str:
    """The message for a run that this signal ended."""
    return "interrupted" if signum == SIGINT else f"stopped by {Signals(signum).name}"


def exit_with(message: str, code: int) -> typer.Exit:
    """Print `message` on stderr as one line and return the exception that ends with this exit code."""
    typer.echo("; ".join(line.strip() for line in message.splitlines() if line.strip()), err=True)
    return typer.Exit(code)


def is_run(folder: Path) -> bool:
    """Return True if the folder has a run's config."""
    return (folder / "config.yaml").is_file()


def check_run_dir(folder: Path) -> None:
    """Raise UserError unless `folder` is a run's."""
    if folder.is_file():
        raise UserError(
            f"{folder}: is a file, name the folder of a run; a config is for `nip-ray train {quote(str(folder))}`"
        )
    if not folder.is_dir():
        from nip_ray.config.load import nearest_path
        from nip_ray.storage.listing import find_runs

        near = nearest_path(
            folder, (found for place in {folder.parent, Path("runs")} for found in find_runs(place, depth=1))
        )
        hint = f"did you mean {near}?" if near else "name the folder of a run, for example one in runs/"
        raise UserError(f"{folder}: no such folder, {hint}")
    if not is_run(folder):
        sweep = (
            f"; it holds a sweep: `nip-ray sweep --resume {quote(str(folder))}`"
            if (folder / "sweep.yaml").is_file()
            else ""
        )
        raise UserError(
            f"{folder}: not a run folder (it has no config.yaml), name one that `nip-ray train` made{sweep}"
        )


def print_table(
    header: Sequence[str], rows: Sequence[Sequence[str]], *, words: Sequence[int] = (0,), width: int = 120
) -> None:
    """Print a plain table on stdout. words: columns of text; the others are numbers. width: without a terminal."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE, show_header=any(header), pad_edge=False)
    for column, name in enumerate(header):
        table.add_column(name, justify="left" if column in words else "right", overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))
    file: Any = sys.stdout or BestEffort(None)
    Console(file=file, width=None if file.isatty() else width).print(table)


def for_people() -> AbstractContextManager[Any]:
    """Ignore errors of stdout, for the last lines of a run, which its folder has too."""
    return redirect_stdout(BestEffort(sys.stdout))


def print_json(value: Any) -> None:
    """Print one JSON object, with null for non-finite numbers."""
    from nip_ray.storage.folder import json_ready

    typer.echo(json.dumps(json_ready(value), allow_nan=False))


def number(value: Any) -> str:
    """A number in a table: four decimals, a dash for None."""
    return f"{value:.4f}" if isinstance(value, float) else "-" if value is None else str(value)


def numbers(option: str, text: str, kind: type[int] | type[float]) -> tuple[float, ...]:
    """The numbers of a list with commas; raises UserError, with `option`, for anything else."""
    try:
        return tuple(kind(part) for part in text.replace(",", " ").split())
    except ValueError:
        raise UserError(
            f"{option} {text}: expected {'whole ' if kind is int else ''}numbers with commas between them"
        ) from None


@contextmanager
def progress_bar(title: str, shown: bool) -> Iterator[Callable[[int, int], None] | None]:
    """A progress bar on stderr, as a function of (done, total); None without a terminal."""
    if not shown:
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress

    file: Any = BestEffort(sys.stderr)
    with Progress(console=Console(file=file), transient=True) as bar:
        task = bar.add_task(title, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _version(wanted: bool) -> None:
    if wanted:
        from nip_ray import __version__

        typer.echo(f"nip-ray {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    ctx: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
    trust: Annotated[
        bool,
        typer.Option(
            "--trust", help="Import the code (plugins) that run folders name, even of folders made elsewhere."
        ),
    ] = False,
) -> None:
    """Options of `nip-ray` itself."""
    if trust:
        from nip_ray.config.plugins import TRUST

        before = os.environ.get(TRUST)
        os.environ[TRUST] = "1"  # workers read it too
        ctx.call_on_close(lambda: os.environ.pop(TRUST) if before is None else os.environ.update({TRUST: before}))
