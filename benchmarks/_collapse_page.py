"""The analysis of `collapse.json` by the plan in plans.md: the generated table of docs/collapse.md, and its plot."""

from collections.abc import Mapping, Sequence
from typing import Any

from _common import ROOT, plot, put_between

PAGE = ROOT / "docs" / "collapse.md"
BEGIN, END = "<!-- runs: written by `python benchmarks/collapse.py --page` -->", "<!-- end of runs -->"
BEFORE, AFTER = "magnet, averaged", "after the magnet"
FOUND, COLLAPSED, CURED = 0.1, 0.2, 0.05

Row = Mapping[str, Any]


def judged(tests: Sequence[tuple[int, float]]) -> dict[str, Any]:
    """Of one run: "found", the iteration of the first test below `FOUND` (None: none); "collapsed", of the first one
    above `COLLAPSED` after it; "worst", the largest value from the first one up to `CURED` on (None: none); "last"."""
    found = next((iteration for iteration, value in tests if value < FOUND), None)
    later = [] if found is None else [one for one in tests if one[0] > found]
    reached = next((iteration for iteration, value in tests if value <= CURED), None)
    return {
        "found": found,
        "collapsed": next((iteration for iteration, value in later if value > COLLAPSED), None),
        "worst": None if reached is None else max(value for iteration, value in tests if iteration >= reached),
        "last": tests[-1][1],
    }


def with_starts(rows: Sequence[Row]) -> list[Row]:
    """Runs that continue others, with the last test of those as their first."""
    last = {(row["game"], row["seed"]): row["tests"][-1][1] for row in rows if row["arm"] == BEFORE}
    return [
        {**row, "tests": [[0, last[row["game"], row["seed"]]], *row["tests"]]} if row["arm"] == AFTER else row
        for row in rows
    ]


def write_page(rows: Sequence[Row]) -> None:
    """Write the table and draw the plot."""
    rows = with_starts(rows)
    PAGE.write_text(put_between(PAGE.read_text(), BEGIN, END, _table(rows)))
    _draw(rows)


def _table(rows: Sequence[Row]) -> str:
    lines = [
        "| game | arm | first below .1 | above .2 after it | largest value from the first up to .05 on | last |",
        "|---|---|---|---|---|---|",
    ]
    for game, arm in dict.fromkeys((row["game"], row["arm"]) for row in rows):
        runs = [judged(row["tests"]) for row in rows if (row["game"], row["arm"]) == (game, arm)]
        cells = [", ".join(_shown(run[name]) for run in runs) for name in ("found", "collapsed", "worst", "last")]
        lines.append(f"| {game} | {arm} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _shown(value: float | None) -> str:
    return "–" if value is None else f"{value:,}" if isinstance(value, int) else f"{value:.3f}"


def _draw(rows: Sequence[Row]) -> None:
    games, arms = (list(dict.fromkeys(row[name] for row in rows)) for name in ("game", "arm"))
    size = (2 * len(arms), 1.9 * len(games))
    with plot(
        "collapse", len(games), len(arms), salt="collapse", font=8,
        figsize=size, sharey="row", sharex="row", squeeze=False,
    ) as (_, axes_GA):  # fmt: skip
        for game, axes_A in zip(games, axes_GA, strict=True):
            for arm, axes in zip(arms, axes_A, strict=True):
                for row in (row for row in rows if (row["game"], row["arm"]) == (game, arm)):
                    axes.plot(*zip(*row["tests"], strict=True), linewidth=0.8)
                for level in (CURED, COLLAPSED):
                    axes.axhline(level, color="0.7", linewidth=0.6, zorder=0)
                axes.set(title=f"{game}: {arm}", ylim=(0, 0.7))
        for axes in axes_GA[-1]:
            axes.set_xlabel("iteration")
