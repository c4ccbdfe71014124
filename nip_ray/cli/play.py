"""`nip-ray match`: two players of Hironaka's game."""

from typing import Annotated

import typer

from nip_ray.cli.common import AsJson, app, errors, number, print_json, print_table
from nip_ray.settings.hironaka import SCRIPTED

_NAMES = {role: ", ".join(name.replace("_", "-") for name in names) for role, names in SCRIPTED.items()}
_OR_RUN = "or a run folder: its own at the newest checkpoint, RUN_DIR@N at that of iteration N."


@app.command()
def match(
    host: Annotated[str, typer.Argument(help=f"{_NAMES['host']}; {_OR_RUN}", show_default=False)],
    agent: Annotated[str, typer.Argument(help=f"{_NAMES['agent']}; {_OR_RUN}", show_default=False)],
    rounds: Annotated[int, typer.Option(min=1, help="Rounds to play, game after game.")] = 10_000,
    seed: Annotated[int, typer.Option(min=0, help="The same seed gives the same games.")] = 0,
    search_starts: Annotated[
        int,
        typer.Option(
            min=0, help="Also search so many random starts for the longest game that any agent can force on this host."
        ),
    ] = 0,
    search_depth: Annotated[int, typer.Option(min=0, hidden=True, help="The former name of --search-starts.")] = 0,
    scale_state: Annotated[
        bool | None,
        typer.Option(
            "--scale-state/--whole-numbers",
            help=(
                "Divide the points in every round, as the published validator does, or not (default: as a run was"
                " trained; else yes)."
            ),
            show_default=False,
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Play two players of Hironaka's game. More finished games mean a stronger host."""
    with errors():
        from nip_ray.evaluation.verbs.matches import play_match

        figures = play_match(host, agent, rounds, seed, search_starts or search_depth, scale_state)
        if as_json:
            print_json(figures)
        else:
            error = figures.pop("standard_error")
            figures["games"] = f"{figures['games']} (standard error {error:.1f}, n {rounds} rounds)"
            print_table(
                ["", ""], [[key, number(value)] for key, value in figures.items() if not isinstance(value, list)]
            )
