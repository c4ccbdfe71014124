"""The command line: `nip-ray VERB`. Thin: every verb checks its arguments, calls one function of another room and prints what it returns.

Nothing heavy is imported before a verb needs it, so that `--help` and a refused config are instant.
Exit codes: 0 done, 1 training went wrong, 2 the user's mistake (one line that says what would be right), 130 interrupted.
"""

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from shlex import quote
from typing import Annotated, Any

import typer

from nip_ray.errors import TrainingError, UserError

app = typer.Typer(
    name="nip-ray",
    help="Neural interactive proofs on Ray: train verifiers that stronger, untrusted provers cannot fool.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
data_app = typer.Typer(help="Make data sets.", no_args_is_help=True)
app.add_typer(data_app, name="data")

RunDir = Annotated[Path, typer.Argument(metavar="RUN_DIR", help="Run folder.", show_default=False)]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print errors only.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]


@contextmanager
def _errors(run_dir: Callable[[], Path | None] = lambda: None) -> Iterator[None]:
    """Turn the exceptions that have a meaning into one line on stderr and an exit code. run_dir: what an interrupted run can go on from."""
    try:
        yield
    except UserError as error:
        raise _exit(f"error: {error}", 2) from None
    except TrainingError as error:
        raise _exit(f"error: {error}", 1) from None
    except KeyboardInterrupt:
        folder = run_dir()
        hint = f", `nip-ray resume {quote(str(folder))}` goes on" if folder is not None and _is_run(folder) else ""
        raise _exit(f"interrupted{hint}", 130) from None


def _exit(message: str, code: int) -> typer.Exit:
    typer.echo("; ".join(line.strip() for line in message.splitlines() if line.strip()), err=True)
    return typer.Exit(code)


def _version(wanted: bool) -> None:
    if wanted:
        from nip_ray import __version__

        typer.echo(f"nip-ray {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")] = False,
) -> None:
    """Options of `nip-ray` itself."""


# --------------------------------------------------------------------------------------------------------------- runs


@app.command()
def train(
    config: Annotated[str, typer.Argument(metavar="CONFIG", help="YAML config, run folder or wandb:...", show_default=False)],
    iterations: Annotated[int | None, typer.Option(help="Instead of the config's.", show_default=False)] = None,
    seed: Annotated[int | None, typer.Option(help="Instead of the config's.", show_default=False)] = None,
    run_dir: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Run folder (default: runs/NAME-seedSEED)", show_default=False)
    ] = None,
    settings: Annotated[list[str] | None, typer.Option("--set", metavar="A.B=C", help="Set a key; repeatable.", show_default=False)] = None,
    profile: Annotated[bool, typer.Option("--profile", help="Torch's profiler around a few iterations, into RUN_DIR/profile.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check the config, print it with all defaults, and stop.")] = False,
    quiet: Quiet = False,
) -> None:
    """Train as CONFIG says: a YAML file, or the folder of a run whose config is to be used again."""
    folder: Path | None = None
    with _errors(lambda: folder):
        from nip_ray.config.load import config_to_yaml, load_config

        flags = {"iterations": iterations, "seed": seed, "profiling.enabled": "true" if profile else None}
        overrides = [*(settings or []), *(f"{key}={value}" for key, value in flags.items() if value is not None)]
        checked = load_config(config, overrides)
        if dry_run:
            typer.echo(config_to_yaml(checked), nl=False)
            return
        folder = _free_run_dir(checked.name, checked.seed) if run_dir is None else _new_run_dir(run_dir)
        from nip_ray.runs.experiment import run_experiment

        result = run_experiment(checked, folder, quiet=quiet)
        _print_result(result.run_dir, result.iterations, result.metrics, quiet)


@app.command()
def resume(
    run_dir: RunDir,
    iterations: Annotated[
        int | None, typer.Option(min=1, help="Go on to this iteration (default: the config's)", show_default=False)
    ] = None,
    new_run_dir: Annotated[
        Path | None,
        typer.Option("--run-dir", metavar="DIR", help="Where a run that is fetched from a bucket is put.", show_default=False),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="A.B=C", help="Change a key that may change (runtime, learners, budget ...)", show_default=False),
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Go on with an interrupted run: the same numbers as if there had been no interruption (CPU, same seed)."""
    folder: Path | None = None
    with _errors(lambda: folder):
        from nip_ray.runs.mirror import local_run

        folder = local_run(run_dir, new_run_dir)
        _check_run_dir(folder)
        from nip_ray.runs.experiment import resume_experiment

        result = resume_experiment(folder, iterations=iterations, settings=settings or [], quiet=quiet)
        _print_result(result.run_dir, result.iterations, result.metrics, quiet)


@app.command()
def evaluate(
    run_dir: RunDir,
    dataset: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Instances (default: the run's held-out ones)", show_default=False)
    ] = None,
    checkpoint: Annotated[
        int | None, typer.Option(metavar="N", help="Iteration (default: the newest checkpoint)", show_default=False)
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of sampled actions (default: the run's)", show_default=False)] = None,
    all_checkpoints: Annotated[
        bool, typer.Option("--all-checkpoints", help="Examine every checkpoint, and keep the figures in RUN_DIR/reruns.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Examine the verifier of a checkpoint, or of all, on held-out instances."""
    with _errors():
        from nip_ray.runs.mirror import local_run
        from nip_ray.runs.sources import run_folder

        if all_checkpoints:
            if checkpoint is not None:
                raise UserError("--all-checkpoints and --checkpoint: give one of them")
            folder = local_run(run_dir)
            _check_run_dir(folder)
            _rerun(folder, dataset, seed, as_json)
            return
        # whatever a library prints: stdout is for the figures
        with run_folder(str(run_dir)) as folder, redirect_stdout(sys.stderr):
            _check_run_dir(folder)
            from nip_ray.runs.evaluate import evaluate_run

            figures = evaluate_run(folder, dataset=dataset, checkpoint=checkpoint, seed=seed)
        if as_json:
            _print_json(figures)
        else:
            _print_table(["", ""], [[key, _number(value)] for key, value in figures.items()])


@app.command()
def judge(
    run_dir: RunDir,
    judges: Annotated[str | None, typer.Option(metavar="NAME,...", help="Which (default: all that fit)", show_default=False)] = None,
    provider: Annotated[
        str | None, typer.Option(metavar="NAME", help="A provider of the run's config (default: the verifier's)", show_default=False)
    ] = None,
    model: Annotated[str | None, typer.Option(help="The judge's model (default: the verifier's)", show_default=False)] = None,
    iteration: Annotated[int | None, typer.Option(metavar="N", help="Iteration (default: the last)", show_default=False)] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say how many calls it takes and what they can cost, and stop.")] = False,
    as_json: AsJson = False,
) -> None:
    """Let a language model judge what the agents of a run said."""
    with _errors():
        _check_run_dir(run_dir)
        from nip_ray.text.judge_run import judge_run

        names = None if judges is None else [name.strip() for name in judges.split(",")]
        figures = judge_run(run_dir, names, provider=provider, model=model, iteration=iteration, dry_run=dry_run)
        if as_json:
            _print_json(figures)
        else:
            _print_table(["", ""], [[key, _number(value)] for key, value in figures.items()])


@app.command("serve-model")
def serve_model(
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port (0: a free one).", show_default=False)],
    model: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder of a model (default: a small one made here)", show_default=False)
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    folder: Annotated[Path, typer.Option(metavar="DIR", help="Where files, jobs and fine-tuned models are kept.")] = Path("served"),
    num_gpus: Annotated[float, typer.Option(min=0, help="GPUs for answering, and as many for fine-tuning.")] = 0,
    engine: Annotated[str, typer.Option(help="auto, torch or vllm.")] = "auto",
    max_batch_size: Annotated[int, typer.Option(min=1, help="Replies generated at once.")] = 32,
    api_key_variable: Annotated[
        str | None, typer.Option(metavar="NAME", help="Environment variable with the key that callers must show", show_default=False)
    ] = None,
) -> None:
    """Serve a local language model by the OpenAI protocol: chat, files, fine-tuning jobs."""
    with _errors():
        if model is not None and not (model / "config.json").is_file():
            raise UserError(f"--model {model}: no model here (a folder with a config.json), name one")
        if engine not in ("auto", "torch", "vllm"):
            raise UserError(f"--engine {engine}: expected auto, torch or vllm")
        from nip_ray.serving.app import serve_model as serve

        serve(
            model,
            port,
            host,
            num_gpus=num_gpus,
            engine=engine,
            max_batch_size=max_batch_size,
            folder=folder,
            api_key_variable=api_key_variable,
        )


@app.command()
def report(run_dir: RunDir) -> None:
    """Write report.html of a run anew."""
    with _errors():
        _check_run_dir(run_dir)
        from nip_ray.evaluation.report import write_report

        typer.echo(str(write_report(run_dir)))


@app.command()
def sweep(
    config: Annotated[Path | None, typer.Argument(metavar="[FILE]", help="YAML config with search spaces.", show_default=False)] = None,
    resume_dir: Annotated[
        Path | None, typer.Option("--resume", metavar="DIR", help="Go on with the sweep in DIR instead.", show_default=False)
    ] = None,
    settings: Annotated[list[str] | None, typer.Option("--set", metavar="A.B=C", help="Set a key; repeatable.", show_default=False)] = None,
    storage: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Instead of the file's sweep.storage_path.", show_default=False)
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check the file, say what would be run, and stop.")] = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Run every setting of FILE with every seed, and say which is best."""
    folder = resume_dir
    with _errors():
        if (config is None) == (resume_dir is None):
            raise UserError("name a sweep file, or --resume DIR to go on with a sweep, and not both")
        if config is None:
            if settings or storage or dry_run:
                raise UserError("--resume goes on with a sweep as it was begun: leave out --set, --storage and --dry-run")
            from nip_ray.sweeps.run import resume_sweep

            assert resume_dir is not None
            with redirect_stdout(sys.stderr):
                result = resume_sweep(resume_dir, quiet=quiet)
        else:
            from nip_ray.sweeps.spec import load_sweep, sweep_to_yaml

            overrides = [*(settings or []), *([f"sweep.storage_path={json.dumps(str(storage))}"] if storage is not None else [])]
            spec = load_sweep(config, overrides)
            if dry_run:
                typer.echo(f"# {spec.num_settings} settings, {spec.num_trials} trials\n{sweep_to_yaml(spec)}", nl=False)
                return
            from nip_ray.sweeps.run import free_folder, run_sweep

            folder = free_folder(spec)
            with redirect_stdout(sys.stderr):
                result = run_sweep(spec, folder, quiet=quiet)
        _print_sweep(result, as_json, quiet)
        if result.interrupted:
            raise _exit(f"interrupted, `nip-ray sweep --resume {quote(str(result.folder))}` goes on", 130)


@app.command()
def run(
    runner: Annotated[Path, typer.Argument(metavar="RUNNER", help="YAML: environment, learners, driver.", show_default=False)],
    run_dir: Annotated[Path | None, typer.Option(metavar="DIR", help="Run folder (default: as the file says)", show_default=False)] = None,
    settings: Annotated[list[str] | None, typer.Option("--set", metavar="A.B=C", help="Set a key; repeatable.", show_default=False)] = None,
    quiet: Quiet = False,
) -> None:
    """Train learners of single-agent environments, by the driver that RUNNER names."""
    with _errors():
        from nip_ray.drivers.runner import run_runner

        result = run_runner(runner, run_dir, settings or [], quiet=quiet)
        if not quiet:
            _print_table(["", ""], [[key, _number(value)] for key, value in result.metrics.items() if key.startswith("eval")])
            typer.echo(f"run     {result.run_dir}")


@app.command()
def match(
    host: Annotated[str, typer.Argument(help="random, random-all, all-coordinates, zeillinger or weak-spivakovsky.", show_default=False)],
    agent: Annotated[str, typer.Argument(help="random, choose-first or choose-last.", show_default=False)],
    rounds: Annotated[int, typer.Option(min=1, help="Rounds to play, game after game.")] = 10_000,
    seed: Annotated[int, typer.Option(min=0, help="The same seed gives the same games.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Let two players of Hironaka's game play: the more games in so many rounds, the stronger the host."""
    with _errors():
        from nip_ray.scenarios.hironaka.match import match as play
        from nip_ray.scenarios.hironaka.players import scripted

        hosts, agents = scripted("host", host.replace("-", "_"), 3), scripted("agent", agent.replace("-", "_"), 3)
        figures = {"host": host, "agent": agent, "seed": seed, **play(hosts, agents, rounds, seed).record()}
        if as_json:
            _print_json(figures)
        else:
            _print_table(["", ""], [[key, _number(value)] for key, value in figures.items() if not isinstance(value, list)])


@app.command()
def doctor(
    storage: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where runs are to be kept (default: runs)", show_default=False)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Say whether a local run would work here, and what to mend."""
    from nip_ray.runs import doctor as examination

    findings = examination.examine(storage)
    if as_json:
        _print_json(examination.as_json(findings))
    else:
        for one in findings:
            typer.echo(f"{one.status:8} {one.name}: {one.what}" + (f"\n{'':9}mend: {one.mend}" if one.mend else ""))
    if not examination.verdict(findings):
        raise typer.Exit(1)


# ------------------------------------------------------------------------------------------------------ data and schema


@data_app.command("graph-isomorphism")
def graph_isomorphism(
    pairs: Annotated[int, typer.Option(min=1, help="Pairs to make.", show_default=False)],
    out: Annotated[Path, typer.Option(metavar="PATH", help="A .npz file, or a folder.", show_default=False)],
    seed: Annotated[int, typer.Option(min=0, help="The same seed gives the same pairs.")] = 0,
    test_pairs: Annotated[int, typer.Option(min=0, help="Held-out pairs to make as well.")] = 0,
    exclude: Annotated[Path | None, typer.Option(metavar="FILE", help="A data set whose pairs must not occur.", show_default=False)] = None,
    sizes: Annotated[
        str | None, typer.Option(metavar="N,N,...", help="Numbers of nodes (default: 7,8,9,10,11)", show_default=False)
    ] = None,
    edge_probabilities: Annotated[
        str | None, typer.Option(metavar="P,P,...", help="Densities (default: 0.2,0.4,0.6,0.8)", show_default=False)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Make pairs of graphs with the published composition; splits never share a pair."""
    with _errors():
        chosen: dict[str, Any] = {}
        if sizes is not None:
            chosen["graph_sizes"] = _numbers("--sizes", sizes, int)
        if edge_probabilities is not None:
            chosen["edge_probabilities"] = _numbers("--edge-probabilities", edge_probabilities, float)
        if exclude is not None and not exclude.exists():
            raise UserError(f"--exclude {exclude}: no such file, name a data set")
        from nip_ray.scenarios.graph_isomorphism.create import write_dataset
        from nip_ray.scenarios.graph_isomorphism.generate import GeneratorSettings

        with _progress("making pairs", shown=sys.stderr.isatty()) as progress:
            summary = write_dataset(out, pairs, seed, GeneratorSettings(**chosen), test_pairs, exclude, progress)
        if as_json:
            typer.echo(json.dumps(summary))
            return
        splits = {name: summary[name] for name in ("train", "test") if name in summary}
        for title, key in (("score", "scores"), ("nodes", "sizes")):
            values = sorted({value for split in splits.values() for value in split[key]})
            named = [
                ["isomorphic" if key == "scores" and v < 0 else str(v), *(str(s[key].get(v, 0)) for s in splits.values())] for v in values
            ]
            _print_table([title, *splits], named)
        typer.echo(f"{summary['pairs_per_s']:g} pairs/s, {summary['seconds']:g} s")
        for file in summary["files"]:
            typer.echo(file)


@data_app.command("code-validation")
def code_validation(
    items: Annotated[int, typer.Option(min=2, help="Items to make.", show_default=False)],
    out: Annotated[Path, typer.Option(metavar="FILE", help="A .jsonl file.", show_default=False)],
    seed: Annotated[int, typer.Option(min=0, help="The same seed gives the same items.")] = 0,
    split: Annotated[str, typer.Option(help="train or test; the two never share a family of problems.")] = "train",
    difficulties: Annotated[
        str | None, typer.Option(metavar="NAME,...", help="introductory, interview, competition (default: all)", show_default=False)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Make small Python problems with correct solutions and wrong ones."""
    with _errors():
        from nip_ray.text.code_data import write_code_items

        chosen = None if difficulties is None else tuple(name.strip() for name in difficulties.split(","))
        with _progress("making items", shown=sys.stderr.isatty()) as progress:
            summary = write_code_items(out, items, seed, split, chosen, progress)
        if as_json:
            typer.echo(json.dumps(summary))
            return
        _print_table(["", ""], [[key, _number(value)] for key, value in summary.items() if not isinstance(value, dict)])


@app.command()
def schema(
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Write it there (default: print it)", show_default=False)] = None,
) -> None:
    """The JSON schema of configs, for editors."""
    with _errors():
        from nip_ray.config.schema import config_schema

        text = json.dumps(config_schema(), indent=2)
        if out is None:
            typer.echo(text)
            return
        try:
            out.write_text(text + "\n", encoding="utf-8")
        except OSError as error:
            raise UserError(f"--out {out}: cannot be written ({error.strerror}), name a file in a folder that can be") from error


# ------------------------------------------------------------------------------------------------------------- parts


def _is_run(folder: Path) -> bool:
    return (folder / "config.yaml").is_file()


def _check_run_dir(folder: Path) -> None:
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder, name the folder of a run, for example one in runs/")
    if not _is_run(folder):
        raise UserError(f"{folder}: not a run folder (it has no config.yaml), name one that `nip-ray train` made")


def _new_run_dir(folder: Path) -> Path:
    """`folder`, which must be new or empty, but for what a killed process may have left (hidden files)."""
    if folder.exists() and not folder.is_dir():
        raise UserError(f"--run-dir {folder}: is a file, name a new or empty folder")
    if folder.exists() and any(not entry.name.startswith(".") for entry in folder.iterdir()):
        hint = f"`nip-ray resume {quote(str(folder))}` goes on with it, or " if _is_run(folder) else ""
        raise UserError(f"--run-dir {folder}: is not empty, {hint}name a new or empty folder")
    return folder


def _free_run_dir(name: str, seed: int) -> Path:
    """runs/NAME-seedSEED, or with -2, -3 ... behind it: the first that does not exist."""
    first = Path("runs") / f"{name}-seed{seed}"
    folder, number = first, 1
    while folder.exists():
        number += 1
        folder = first.with_name(f"{first.name}-{number}")
    return folder


def _print_result(run_dir: Path, iterations: int, metrics: Mapping[str, Any], quiet: bool) -> None:
    """What a run ends with: its held-out figures and where everything is."""
    if quiet:
        return
    shown = [key for key in metrics if key.startswith("eval/verifier/") and key.count("/") == 2]
    shown = shown or [key for key in metrics if key.startswith("eval")]  # a game without a verifier
    held_out = [[key, _number(metrics[key])] for key in shown]
    if held_out:
        _print_table([f"held out, after iteration {iterations}", ""], held_out)
    typer.echo(f"run     {run_dir}")
    if (run_dir / "report.html").is_file():
        typer.echo(f"report  {run_dir / 'report.html'}")


def _rerun(run_dir: Path, dataset: Path | None, seed: int | None, as_json: bool) -> None:
    """Examine all checkpoints of a run and print what came of it."""
    with redirect_stdout(sys.stderr):
        from nip_ray.runs.rerun import rerun_tests

        rows = rerun_tests(run_dir, dataset=dataset, seed=seed, quiet=as_json)
    if as_json:
        _print_json({"checkpoints": rows})
        return
    shown = [key for key in rows[-1] if key.startswith("eval") and key.count("/") == 2 and "=" not in key]
    _print_table(["", *(str(row["iteration"]) for row in rows)], [[key, *(_number(row.get(key)) for row in rows)] for key in shown])
    typer.echo(f"kept in {rows[-1]['file']}")


def _print_sweep(result: Any, as_json: bool, quiet: bool) -> None:
    """What a sweep came to, and where everything is."""
    from nip_ray.sweeps import summary

    if as_json:
        _print_json({"folder": str(result.folder), **summary.as_json(result.summary)})
    elif not quiet:
        header, rows = summary.table_rows(result.summary)
        _print_table(header, rows)
        typer.echo(summary.headline(result.summary))
        for name, file in (("sweep", ""), ("best", "best"), ("page", "sweep.html")):
            if (result.folder / file).exists():
                typer.echo(f"{name:6}{result.folder / file}")


def _print_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A plain table on stdout; the first column is text, the others are figures."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE, show_header=any(header), pad_edge=False)
    for number, name in enumerate(header):
        table.add_column(name, justify="right" if number else "left", overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))
    Console(file=sys.stdout, width=None if sys.stdout.isatty() else 120).print(table)


def _print_json(value: Any) -> None:
    """One JSON object; what is not finite becomes null, which every reader knows."""
    from nip_ray.runs.folder import json_ready

    typer.echo(json.dumps(json_ready(value), allow_nan=False))


def _number(value: Any) -> str:
    return f"{value:.4f}" if isinstance(value, float) else "-" if value is None else str(value)


def _numbers(option: str, text: str, kind: type[int] | type[float]) -> tuple[float, ...]:
    try:
        return tuple(kind(part) for part in text.replace(",", " ").split())
    except ValueError:
        raise UserError(f"{option} {text}: expected {'whole ' if kind is int else ''}numbers with commas between them") from None


@contextmanager
def _progress(title: str, shown: bool) -> Iterator[Callable[[int, int], None] | None]:
    """A progress bar on stderr, as a function of (done, total); None where nobody watches."""
    if not shown:
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def main() -> None:
    """The entry point of `nip-ray`."""
    app(prog_name="nip-ray")


if __name__ == "__main__":
    main()
