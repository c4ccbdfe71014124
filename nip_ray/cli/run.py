"""`nip-ray run`: learners on copies of an environment, by one of the drivers."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from nip_ray.cli.common import Quiet, Settings, app, errors, for_people, is_run, number, print_table


@app.command()
def run(
    runner: Annotated[
        Path, typer.Argument(metavar="RUNNER", help="YAML: environment, learners, driver.", show_default=False)
    ],
    run_dir: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Run folder (default: from the file)", show_default=False)
    ] = None,
    or_resume: Annotated[
        bool, typer.Option("--or-resume", help="Resume the run in its folder where there is one.")
    ] = False,
    settings: Settings = None,
    quiet: Quiet = False,
) -> None:
    """Train on copies of an environment, Gymnasium's or an experiment's, with the driver that RUNNER names."""
    folder: Path | None = run_dir
    with errors(lambda: folder):
        from nip_ray.drivers.runner import folder_of, resume_as, run_runner
        from nip_ray.drivers.spec import load_runner
        from nip_ray.storage.folder import only_begun

        checked = load_runner(runner, settings or [])
        folder = folder_of(checked, run_dir)
        resumed = or_resume and is_run(folder) and not only_begun(folder)
        result = (resume_as if resumed else run_runner)(checked, folder, quiet=quiet)
        _print_result(result.run_dir, result.metrics, quiet)


def resume_run(run_dir: Path, iterations: int | None, settings: Sequence[str], quiet: bool) -> None:
    """`nip-ray resume` for the folder of such a run."""
    from nip_ray.drivers.runner import resume_runner

    more = [] if iterations is None else [f"driver.timesteps={iterations}"]
    result = resume_runner(run_dir, [*settings, *more], quiet=quiet)
    _print_result(result.run_dir, result.metrics, quiet)


def _print_result(run_dir: Path, metrics: Mapping[str, Any], quiet: bool) -> None:
    if not quiet:
        with for_people():
            print_table(["", ""], [[key, number(value)] for key, value in metrics.items() if key.startswith("eval")])
            typer.echo(f"run     {run_dir}")
