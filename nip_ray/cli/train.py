"""`nip-ray train` and `nip-ray resume`."""

from collections.abc import Mapping
from itertools import chain, count
from pathlib import Path
from shlex import quote
from typing import Annotated, Any

import typer

from nip_ray.cli.common import (
    ConfigCommand,
    Quiet,
    RunDir,
    Settings,
    app,
    check_run_dir,
    errors,
    for_people,
    is_run,
    number,
    print_table,
)
from nip_ray.cli.complete import config_keys
from nip_ray.cluster.interrupts import interruptible
from nip_ray.errors import UserError
from nip_ray.progress import say


@app.command(cls=ConfigCommand)
def train(
    config: Annotated[
        str, typer.Argument(metavar="CONFIG", help="YAML config, run folder or wandb:...", show_default=False)
    ],
    iterations: Annotated[
        int | None, typer.Option(help="Override the config's iterations.", show_default=False)
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Override the config's seed.", show_default=False)] = None,
    run_dir: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Run folder (default: runs/NAME-seedSEED)", show_default=False)
    ] = None,
    or_resume: Annotated[
        bool, typer.Option("--or-resume", help="Resume the run in --run-dir, or its mirror, where there is one.")
    ] = False,
    settings: Settings = None,
    profile: Annotated[
        bool, typer.Option("--profile", help="Torch's profiler around a few iterations, into RUN_DIR/profile.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check the config, print it with all defaults, and stop.")
    ] = False,
    diff: Annotated[
        bool, typer.Option("--diff", help="With --dry-run: print only what differs from the defaults.")
    ] = False,
    dump_full: Annotated[bool, typer.Option("--dump-full", hidden=True)] = False,
    quiet: Quiet = False,
) -> None:
    """Train from CONFIG: a YAML file, or a run folder whose config is used again."""
    folder: Path | None = None
    with errors(lambda: folder), interruptible():
        from nip_ray.config.load import config_to_yaml, differences, load_config, to_yaml
        from nip_ray.config.rules import warnings_of

        if diff and not dry_run:
            raise UserError("--diff: goes with --dry-run")
        if or_resume and run_dir is None:
            raise UserError("--or-resume: needs --run-dir, the folder that the run has each time")
        flags = {"iterations": iterations, "seed": seed, "profiling.enabled": "true" if profile else None}
        overrides = [*(settings or []), *(f"{key}={value}" for key, value in flags.items() if value is not None)]
        checked = load_config(config, overrides)
        if dump_full:
            say("warning: --dump-full is an old name of --dry-run; write --dry-run")
        if dry_run or dump_full:
            for text in warnings_of(checked):
                say(f"warning: {text}")
            typer.echo(to_yaml(differences(checked)) if diff else config_to_yaml(checked), nl=False)
            return
        from nip_ray.storage.folder import only_begun
        from nip_ray.storage.mirror import fetch_copy

        url = checked.tracking.mirror.url
        if or_resume and run_dir is not None and not is_run(run_dir) and url is not None and fetch_copy(url, run_dir):
            say(f"{run_dir}: fetched from its copy below {url}")
        if or_resume and run_dir is not None and is_run(run_dir) and not only_begun(run_dir):
            from nip_ray.runs.experiment import resume_as

            folder = run_dir
            result = resume_as(checked, folder, quiet=quiet)
        else:
            if run_dir is None:  # runs/NAME-seedSEED, or with -2, -3 ... appended: the first that does not exist
                first = Path("runs") / f"{checked.name}-seed{checked.seed}"
                names = chain([first], (first.with_name(f"{first.name}-{number}") for number in count(2)))
                folder = next(name for name in names if not name.exists())
            else:
                folder = _new_run_dir(run_dir)
            from nip_ray.runs.experiment import run_experiment

            result = run_experiment(checked, folder, quiet=quiet)
        _print_result(result.run_dir, result.iterations, result.metrics, quiet)


@app.command()
def resume(
    run_dir: RunDir,
    iterations: Annotated[
        int | None, typer.Option(min=1, help="Train until this iteration (default: the config's)", show_default=False)
    ] = None,
    new_run_dir: Annotated[
        Path | None,
        typer.Option("--run-dir", metavar="DIR", help="Folder for a run downloaded from a bucket.", show_default=False),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="A.B=C",
            help="Change a key that may change (runtime, learners, budget ...)",
            show_default=False,
            autocompletion=config_keys,
        ),
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Resume a run; results are identical to an uninterrupted one (CPU, same seed)."""
    folder: Path | None = None
    with errors(lambda: folder), interruptible():
        from nip_ray.storage.mirror import local_run

        folder = local_run(run_dir, new_run_dir)
        check_run_dir(folder)
        from nip_ray.drivers.spec import is_runner_folder

        if is_runner_folder(folder):
            from nip_ray.cli.run import resume_run

            resume_run(folder, iterations, settings or [], quiet)
            return
        from nip_ray.runs.experiment import resume_experiment

        result = resume_experiment(folder, iterations=iterations, settings=settings or [], quiet=quiet)
        _print_result(result.run_dir, result.iterations, result.metrics, quiet)


def _new_run_dir(folder: Path) -> Path:
    """`folder`, which must be new or empty, apart from leftovers of a killed process (hidden files) or of a run that
    failed at once."""
    from nip_ray.storage.folder import only_begun

    if folder.exists() and not folder.is_dir():
        raise UserError(f"--run-dir {folder}: is a file, name a new or empty folder")
    if folder.exists() and any(not entry.name.startswith(".") for entry in folder.iterdir()) and not only_begun(folder):
        hint = f"`nip-ray resume {quote(str(folder))}` continues it, or " if is_run(folder) else ""
        raise UserError(f"--run-dir {folder}: is not empty, {hint}name a new or empty folder")
    return folder


def _print_result(run_dir: Path, iterations: int, metrics: Mapping[str, Any], quiet: bool) -> None:
    """Print a run's last evaluation, the sentence of its report, and its paths."""
    if not quiet:
        with for_people():
            _print_figures(run_dir, iterations, metrics)


def _print_figures(run_dir: Path, iterations: int, metrics: Mapping[str, Any]) -> None:
    found = [key for key in metrics if key.startswith("eval")]
    of_verifier = [key for key in found if key.split("/")[1:2] == ["verifier"] and key.count("/") == 2]
    greedy = [key for key in of_verifier if key.startswith("eval/")]
    exact = [key for key in found if key.startswith("eval/") and key.count("/") == 1]
    # without a verifier
    of_game = [key for key in found if key.count("/") == 1 or key.endswith(("/return", "/value", "/rho/own-own"))]
    shown = greedy or (of_verifier and [*exact, *of_verifier]) or of_game
    if shown:
        from nip_ray.evaluation.report.source import read_run
        from nip_ray.evaluation.report.trust import examined_words

        print_table(
            [f"{examined_words(read_run(run_dir))}, after iteration {iterations}", ""],
            [[key, number(metrics[key])] for key in shown],
        )
    if (run_dir / "report.html").is_file():
        from nip_ray.evaluation.report import headline

        typer.echo(f"{headline(run_dir)}\n")
    typer.echo(f"run     {run_dir}")
    if (run_dir / "report.html").is_file():
        typer.echo(f"report  {run_dir / 'report.html'}")
