"""`nip-ray data ...`: generate data sets."""

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from nip_ray.cli.common import AsJson, app, errors, number, numbers, print_table, progress_bar
from nip_ray.errors import UserError

data_app = typer.Typer(help="Generate data sets.", no_args_is_help=True)
app.add_typer(data_app, name="data")

Force = Annotated[bool, typer.Option("--force", help="Overwrite existing files.")]


@data_app.command("graph-isomorphism")
def graph_isomorphism(
    pairs: Annotated[int, typer.Option(min=1, help="Number of pairs.", show_default=False)],
    out: Annotated[Path, typer.Option(metavar="PATH", help="A .npz file, or a folder.", show_default=False)],
    seed: Annotated[int, typer.Option(min=0, help="The same seed gives the same pairs.")] = 0,
    test_pairs: Annotated[int, typer.Option(min=0, help="Number of held-out pairs.")] = 0,
    exclude: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Data set with pairs that must not occur.", show_default=False)
    ] = None,
    sizes: Annotated[
        str | None, typer.Option(metavar="N,N,...", help="Numbers of nodes (default: 7,8,9,10,11)", show_default=False)
    ] = None,
    edge_probabilities: Annotated[
        str | None, typer.Option(metavar="P,P,...", help="Densities (default: 0.2,0.4,0.6,0.8)", show_default=False)
    ] = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Generate pairs of graphs with the published composition; splits never share a pair."""
    with errors():
        chosen: dict[str, Any] = {}
        if sizes is not None:
            chosen["graph_sizes"] = numbers("--sizes", sizes, int)
        if edge_probabilities is not None:
            chosen["edge_probabilities"] = numbers("--edge-probabilities", edge_probabilities, float)
        if exclude is not None and not exclude.exists():
            raise UserError(f"--exclude {exclude}: no such file, name a data set")
        from nip_ray.scenarios.graph_isomorphism.create import write_dataset
        from nip_ray.scenarios.graph_isomorphism.generate import GeneratorSettings

        with progress_bar("making pairs", shown=sys.stderr.isatty()) as progress:
            summary = write_dataset(
                out, pairs, seed, GeneratorSettings(**chosen), test_pairs, exclude, progress, replace=force
            )
        if as_json:
            typer.echo(json.dumps(summary))
            return
        splits = {name: summary[name] for name in ("train", "test") if name in summary}
        for title, key in (("score", "scores"), ("nodes", "sizes")):
            values = sorted({value for split in splits.values() for value in split[key]})
            named = [
                [
                    "isomorphic" if key == "scores" and v < 0 else str(v),
                    *(str(s[key].get(v, 0)) for s in splits.values()),
                ]
                for v in values
            ]
            print_table([title, *splits], named)
        typer.echo(f"{summary['pairs_per_s']:g} pairs/s, {summary['seconds']:g} s")
        for file in summary["files"]:
            typer.echo(file)


@data_app.command("code-validation")
def code_validation(
    items: Annotated[int, typer.Option(min=2, help="Number of items.", show_default=False)],
    out: Annotated[Path, typer.Option(metavar="FILE", help="A .jsonl file.", show_default=False)],
    seed: Annotated[int, typer.Option(min=0, help="The same seed gives the same items.")] = 0,
    split: Annotated[str, typer.Option(help="train or test; the two never share a family of problems.")] = "train",
    difficulties: Annotated[
        str | None,
        typer.Option(
            metavar="NAME,...", help="introductory, interview, competition (default: all)", show_default=False
        ),
    ] = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Write built-in Python problems with correct and incorrect solutions."""
    with errors():
        from nip_ray.scenarios.code_validation.create import write_code_items

        chosen = None if difficulties is None else tuple(name.strip() for name in difficulties.split(","))
        summary = write_code_items(out, items, seed, split, chosen, replace=force)
        if as_json:
            typer.echo(json.dumps(summary))
            return
        print_table(["", ""], [[key, number(value)] for key, value in summary.items() if not isinstance(value, dict)])
