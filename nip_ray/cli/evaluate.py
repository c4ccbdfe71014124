"""`nip-ray evaluate` and `nip-ray cross-play`."""

import sys
from collections.abc import Iterator, Mapping
from contextlib import redirect_stdout
from pathlib import Path
from typing import Annotated, Any

import typer

from nip_ray.cli.common import AsJson, Quiet, RunDir, app, check_run_dir, errors, number, print_json, print_table
from nip_ray.cli.complete import config_keys, run_folders
from nip_ray.errors import UserError

_TOLD_APART = ("attack", "greedy", "sampled", "searched", "solo_baseline", "message_regression", "exact", "figures")
_COLUMNS = 10  # checkpoints in a printed table


@app.command()
def evaluate(
    run_dir: RunDir,
    dataset: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Instances (default: the run's held-out ones)", show_default=False),
    ] = None,
    checkpoint: Annotated[
        int | None, typer.Option(metavar="N", help="Iteration (default: the newest checkpoint)", show_default=False)
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="Seed of sampled actions (default: the run's)", show_default=False)
    ] = None,
    all_checkpoints: Annotated[
        bool, typer.Option("--all-checkpoints", help="Evaluate every checkpoint; results go to RUN_DIR/reruns.")
    ] = False,
    attack: Annotated[
        bool,
        typer.Option("--attack", help="Train adversarial provers against the verifier and report their success rate."),
    ] = False,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="A.B=C",
            help="Change a key of evaluation, as in evaluation.attack.seeds=4",
            show_default=False,
            autocompletion=config_keys,
        ),
    ] = None,
    instances: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Also write a JSON line about every instance there", show_default=False),
    ] = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Evaluate the verifier of a checkpoint, or of all, on held-out instances."""
    with errors():
        from nip_ray.storage.mirror import local_run
        from nip_ray.storage.sources import run_folder

        if all_checkpoints:
            if checkpoint is not None:
                raise UserError("--all-checkpoints and --checkpoint: give one of them")
            if attack or instances is not None:
                raise UserError("--all-checkpoints: --attack and --instances are for one checkpoint; leave them out")
            folder = local_run(run_dir)
            check_run_dir(folder)
            _rerun(folder, dataset, seed, settings or [], as_json, quiet)
            return
        _refuse_no_file("--instances", instances)
        # libraries may print: stdout is for the metrics
        with run_folder(str(run_dir)) as folder, redirect_stdout(sys.stderr):
            check_run_dir(folder)
            from nip_ray.evaluation.verbs.evaluate import evaluate_run

            figures = evaluate_run(
                folder,
                dataset=dataset,
                checkpoint=checkpoint,
                seed=seed,
                attacked=attack,
                settings=settings or [],
                instances=instances,
                quiet=quiet or as_json,
            )
        if as_json:
            print_json(figures)
        if as_json or quiet:
            return
        counted = [key for key in figures if f"{key}/n" in figures]
        ends = {f"{key}/{end}" for key in counted for end in ("lower", "upper", "n")}
        plain = [
            key
            for key, value in figures.items()
            if not isinstance(value, dict) and key not in ends and key not in counted
        ]
        print_table(["", ""], [[key, number(figures[key])] for key in plain])
        rows = [_row(key, *(figures.get(f"{key}{end}") for end in ("", "/lower", "/upper", "/n"))) for key in counted]
        print_table(["", "estimate", "from", "to", "of"], [*rows, *_records(figures)])
        _print_attack(figures)


@app.command("cross-play")
def cross_play(
    run_dirs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN_DIR...",
            help="Run folders, at least two (with --checkpoints: one).",
            show_default=False,
            autocompletion=run_folders,
        ),
    ],
    checkpoints: Annotated[
        bool, typer.Option("--checkpoints", help="All kept checkpoints of one run against each other.")
    ] = False,
    dataset: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Instances for networks (default: the held-out ones, which must be the same)",
            show_default=False,
        ),
    ] = None,
    sampled: Annotated[
        bool, typer.Option("--sampled", help="Sampled actions instead of the most likely ones.")
    ] = False,
    max_instances: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Use N instances, drawn at random", show_default=False)
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Random seed.")] = 0,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also write it there, as cross_play.json", show_default=False)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Play the verifiers of some runs, or of all checkpoints of one, against the provers of the others."""
    with errors():
        if checkpoints and len(run_dirs) > 1:
            raise UserError(f"--checkpoints: got {len(run_dirs)} runs, expected one")
        for run_dir in run_dirs:
            check_run_dir(run_dir)
        _refuse_no_file("--out", out)
        with redirect_stdout(sys.stderr):
            from nip_ray.storage.folder import write_document

            options: dict[str, Any] = dict(dataset=dataset, greedy=not sampled, max_instances=max_instances, seed=seed)
            if checkpoints:
                from nip_ray.evaluation.verbs.over_time import cross_play_checkpoints

                found = cross_play_checkpoints(run_dirs[0], **options)
            else:
                from nip_ray.evaluation.verbs.cross_play import cross_play as play

                found = play(run_dirs, **options)
            if out is not None:
                write_document(out, found, "cross_play")
        if as_json:
            print_json(found)
            return
        if checkpoints:
            _print_over_time(found)
            return
        cells = {(cell["verifier"], cell["prover"]): cell["accuracy"] for cell in found["matrix"]}
        names = [run["name"] for run in found["runs"]]
        print_table(
            ["verifier, below provers of", *names], [[v, *(_interval(cells[v, p]) for p in names)] for v in names]
        )
        rows = [[f"{row['verifiers']} with {row['provers']}", _interval(row["accuracy"])] for row in found["by_group"]]
        print_table(["IQM accuracy against other runs' provers", ""], rows)
        elo = [{one["name"]: _points(one) for one in found["elo"][role]} for role in found["roles"]]
        print_table(["Elo", "verifier", "prover"], [[name, *(of_role[name] for of_role in elo)] for name in names])


def _refuse_no_file(option: str, out: Path | None) -> None:
    if out is not None and (out.is_dir() or not out.parent.is_dir()):
        wrong = "is a folder" if out.is_dir() else "its folder does not exist"
        raise UserError(f"{option} {out}: {wrong}; name a file in a folder that does")


def _print_over_time(found: Mapping[str, Any]) -> None:
    """Print checkpoints of the one role down, those of the other across, with ratings; of many, some over time."""
    from nip_ray.play.opponent_pool import thinned

    row, column = found["roles"]
    cells = {(cell[row], cell[column]): (cell.get("accuracy") or cell["score"])["estimate"] for cell in found["matrix"]}
    elo = {role: {one["name"]: one for one in found["elo"][role]} for role in (row, column)}
    names = {run["iteration"]: run["name"] for run in found["runs"]}
    shown = thinned(sorted(names), _COLUMNS)
    rows = [[str(i), *(f"{cells[names[i], names[j]]:.2f}" for j in shown), _points(elo[row][names[i]])] for i in shown]
    print_table([f"{row}, below {column}", *map(str, shown), "Elo"], rows)
    print_table(["", "Elo"], [[f"{column} {i}", _points(elo[column][names[i]])] for i in shown])
    if len(shown) < len(names):
        typer.echo(f"{len(shown)} of {len(names)} checkpoints shown; --json and --out have all")


def _points(record: Mapping[str, Any]) -> str:
    return f"{record['estimate']:.0f} [{record['lower']:.0f}, {record['upper']:.0f}]"


def _row(name: str, estimate: Any, lower: Any, upper: Any, n: Any) -> list[str]:
    ends = ["exact", ""] if lower is not None and lower == upper else [number(lower), number(upper)]
    return [name, number(estimate), *ends, number(n)]


def _records(figures: Mapping[str, Any], prefix: str = "") -> Iterator[list[str]]:
    """A row for every record of an evaluation, except those of the attack and flat copies."""
    for key, value in figures.items():
        if (prefix in ("", "unseen/") and key in _TOLD_APART) or not isinstance(value, dict):
            continue
        if "estimate" in value:
            yield _row(f"{prefix}{key}", *(value[part] for part in ("estimate", "lower", "upper", "n")))
        else:
            yield from _records(value, f"{prefix}{key}/")


def _print_attack(figures: Mapping[str, Any]) -> None:
    """Print the attackers and the verifier's accuracy against each."""
    for goal, table in figures.get("attack", {}).items():
        if not (isinstance(table, dict) and "attackers" in table):
            continue
        if goal == "refusal":
            typer.echo(f"if the prover refuses to help ({figures['refusal']['reason']}):")
        rows = [
            [
                row["name"] + (" (chosen)" if row["chosen"] else ""),
                row["mode"],
                _interval(row["selection"]),
                _interval(row["held_out"]),
            ]
            for row in table["attackers"]
        ]
        for name, key in (("against all of them at once", "any_attacker"), ("whatever is said", "every_message")):
            if table[key] is not None:
                rows.append([name, "", "", _interval(table[key])])
        measured = "held out" if figures.get("held_out", True) or "unseen" in figures else "all instances"
        print_table([f"{goal}: right verdicts against", "", "training", measured], rows)


def _interval(record: Mapping[str, Any] | None) -> str:
    if record is None or record["estimate"] is None:
        return "-"
    if record.get("exact"):
        return f"{record['estimate']:.3f} exact"
    ends = "" if record["lower"] is None else f" [{record['lower']:.3f}, {record['upper']:.3f}]"
    return f"{record['estimate']:.3f}{ends}"


def _rerun(
    run_dir: Path, dataset: Path | None, seed: int | None, settings: list[str], as_json: bool, quiet: bool
) -> None:
    """Evaluate all checkpoints of a run and print the results, unless quiet."""
    with redirect_stdout(sys.stderr):
        from nip_ray.evaluation.verbs.rerun import rerun_tests

        rows = rerun_tests(run_dir, dataset=dataset, seed=seed, settings=settings, quiet=quiet or as_json)
    if as_json:
        print_json({"checkpoints": rows})
    if as_json or quiet:
        return
    shown = [key for key in rows[-1] if f"{key}/n" in rows[-1] and key.count("/") == 2 and "=" not in key]
    print_table(
        ["", *(str(row["iteration"]) for row in rows)],
        [[key, *(number(row.get(key)) for row in rows)] for key in shown],
    )
    typer.echo(f"kept in {rows[-1]['file']}")
