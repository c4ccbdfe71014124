"""The analysis of `gap.json` by the plan in plans.md: the generated parts of docs/gap.md, and its plots."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
import numpy.typing as npt
from _common import ROOT, plot, put_between

PAGE = ROOT / "docs" / "gap.md"
BEGIN, END = "<!-- {}: written by `python benchmarks/gap.py --page` -->", "<!-- end of {} -->"
POINTS = 400 / np.log(10)
"""Points of Elo per unit of log odds."""
PRIOR = 0.01
"""Weight of a drawn game added to each pair, against one game by the win rate."""
LEVELS = {"layers": (1, 2, 3, 4, 5, 6), "width": (8, 16, 32, 64)}
"""Strength -> its levels, of either side."""
GAMES = {"sampled": "realised", "the best": "exact"}
"""The messages against the verifier in a game -> the value of a row: games that it loses."""
FOLDS = 4
RESAMPLES = 500

Array = npt.NDArray[np.float64]
Row = Mapping[str, Any]


@dataclass(frozen=True)
class Grid:
    """The cells of one strength. seeds: those with all of them."""

    rows: Sequence[Row]
    strength: str
    seeds: list[int]

    @property
    def levels(self) -> tuple[int, ...]:
        """Of either side."""
        return LEVELS[self.strength]

    def values(self, name: str) -> Array:
        """(S, V, P)."""
        value = {(row["seed"], row["verifier"], row["prover"]): row[name] for row in self.rows}
        return np.array([[[value[seed, v, p] for p in self.levels] for v in self.levels] for seed in self.seeds])


def grids(rows: Sequence[Row]) -> list[Grid]:
    """Those with a seed that has all cells."""
    found = []
    for strength, levels in LEVELS.items():
        own = [row for row in rows if row["strength"] == strength]
        made = Counter(row["seed"] for row in own)
        if whole := sorted(seed for seed, count in made.items() if count == len(levels) ** 2):
            found.append(Grid(own, strength, whole))
    return found


def elo(win_VP: Array, seen_VP: npt.NDArray[np.bool_]) -> tuple[Array, Array]:
    """Strengths in log odds of verifiers and of provers by maximum likelihood on the seen cells, mean 0."""
    from scipy.optimize import minimize

    count = len(win_VP)
    drawn_VP = (win_VP + PRIOR / 2) / (1 + PRIOR)

    def loss(x: Array) -> tuple[float, Array]:
        odds_VP = x[:count, None] - x[None, count:]
        each_VP = (np.logaddexp(0, odds_VP) - drawn_VP * odds_VP) * seen_VP
        slope_VP = (1 / (1 + np.exp(-odds_VP)) - drawn_VP) * seen_VP
        mean = x.mean()
        return float(each_VP.sum() + mean**2), np.r_[slope_VP.sum(1), -slope_VP.sum(0)] + 2 * mean / len(x)

    found = minimize(loss, np.zeros(sum(win_VP.shape)), jac=True, method="BFGS").x
    return found[:count], found[count:]


def plateaus(x_N: Array, y_N: Array) -> tuple[float, float, float]:
    """(from, to, slope) of the plateau-slope-plateau curve through (x, y), by least squares; knots are among x."""
    best = (np.inf, 0.0, 0.0, 0.0)
    for low, high in combinations(x_N, 2):
        bent_N = np.clip(x_N, low, high)
        slope, constant = np.polyfit(bent_N, y_N, 1)
        best = min(best, (float(((y_N - constant - slope * bent_N) ** 2).sum()), low, high, float(slope)))
    return best[1:]


def left_out(win_VP: Array) -> list[Array]:
    """(V, P) log loss of each cell, left out with a quarter of the others, under Elo, and under the means of the rest:
    of all, of the same verifier, of the same prover."""
    fold_VP = np.add.outer(np.arange(len(win_VP)), np.arange(win_VP.shape[1])) % FOLDS
    found = [np.zeros_like(win_VP) for _ in range(4)]
    for fold in range(FOLDS):
        away_VP = fold_VP == fold
        verifier_V, prover_P = elo(win_VP, ~away_VP)
        rest_VP = np.ma.array(win_VP, mask=away_VP)
        chances = [1 / (1 + np.exp(prover_P[None] - verifier_V[:, None])), rest_VP.mean()]
        chances += [rest_VP.mean(1)[:, None], rest_VP.mean(0)[None]]
        for one, chance in zip(found, chances, strict=True):
            one[away_VP] = _log_loss(win_VP, np.broadcast_to(np.ma.getdata(chance), win_VP.shape))[away_VP]
    return found


def _log_loss(win: Array, chance: Array) -> Array:
    chance = np.clip(chance, 1e-6, 1 - 1e-6)
    return -(win * np.log(chance) + (1 - win) * np.log1p(-chance))


def write_page(rows: Sequence[Row]) -> None:
    """Write the tables and draw the plots."""
    text = PAGE.read_text()
    for grid in grids(rows):
        for name, made in {"maps": _maps(grid), "curves": _curves(grid), "left out": _left_out(grid)}.items():
            marks = f"{grid.strength}, {name}"
            text = put_between(text, BEGIN.format(marks), END.format(marks), made)
        _draw(grid)
    PAGE.write_text(text)


def _maps(grid: Grid) -> str:
    lines = []
    for name, title in (("accuracy", "Held-out accuracy"), ("exact", "Exact soundness error")):
        value_SVP = grid.values(name)
        lines += [f"{title}: the mean over {len(grid.seeds)} seeds, and their minimum and maximum.", ""]
        lines += [f"| verifier's {grid.strength} | " + " | ".join(f"prover {p}" for p in grid.levels) + " |"]
        lines += ["|---" * (len(grid.levels) + 1) + "|"]
        for level, value_SP in zip(grid.levels, value_SVP.transpose(1, 0, 2), strict=True):
            cells = [f"{x.mean():.2f} ({x.min():.2f} to {x.max():.2f})" for x in value_SP.T]
            lines.append(f"| {level} | " + " | ".join(cells) + " |")
        lines.append("")
    return "\n".join(lines[:-1])


def _fits(win_SVP: Array, level_N: Array) -> Array:
    """(R, A, K) `plateaus` of the Elo of verifiers and provers: of all seeds, then of seeds drawn from them."""
    whole_VP = np.ones(win_SVP.shape[1:], bool)
    draws, found = np.random.default_rng(0), []
    for resample in range(RESAMPLES):
        seeds = draws.integers(len(win_SVP), size=len(win_SVP)) if resample else np.arange(len(win_SVP))
        found.append([plateaus(level_N, POINTS * x_N) for x_N in elo(win_SVP[seeds].mean(0), whole_VP)])
    return np.array(found)


def _curves(grid: Grid) -> str:
    lines = [
        f"| Elo of | messages | plateau until, {grid.strength} | plateau from, {grid.strength} | points per doubling |",
        "|---" * 5 + "|",
    ]
    for messages, lost in GAMES.items():
        found_RAK = _fits(1 - grid.values(lost), np.log2(grid.levels))
        for agent, name in enumerate(("verifiers", "provers")):
            low, high = np.quantile(found_RAK[:, agent], (0.025, 0.975), axis=0)
            values = (2 ** found_RAK[0, agent, :2], 2 ** low[:2], 2 ** high[:2])
            knots = [f"{one:.0f} ({least:.0f} to {most:.0f})" for one, least, most in zip(*values, strict=True)]
            slope = f"{found_RAK[0, agent, 2]:.0f} ({low[2]:.0f} to {high[2]:.0f})"
            lines.append(f"| {name} | {messages} | {' | '.join(knots)} | {slope} |")
    return "\n".join(lines)


def _left_out(grid: Grid) -> str:
    lines = [
        f"| messages | verifier's {grid.strength} | cells | Elo | mean | of the verifier | of the prover |"
        " Elo less mean |",
        "|---" * 8 + "|",
    ]
    for messages, lost in GAMES.items():
        for least in range(2 if grid.strength == "layers" else 1):  # judges of two layers and more: not in the plan
            found = left_out(1 - grid.values(lost).mean(0)[least:])
            gain_C = (found[0] - found[1]).ravel()
            draws = np.random.default_rng(0)
            means = [draws.choice(gain_C, len(gain_C)).mean() for _ in range(10 * RESAMPLES)]
            low, high = np.quantile(means, (0.025, 0.975))
            losses = " | ".join(f"{loss_VP.mean():.3f}" for loss_VP in found)
            lines.append(
                f"| {messages} | {grid.levels[least]} to {grid.levels[-1]} | {len(gain_C)} | {losses} |"
                f" {gain_C.mean():.3f} ({low:.3f} to {high:.3f}) |"
            )
    return "\n".join(lines)


def _draw(grid: Grid) -> None:
    with plot(f"gap-{grid.strength}", 1, 2, salt="gap", figsize=(8, 3.4)) as (figure, axes_A):
        for axes, (name, title) in zip(
            axes_A, (("accuracy", "held-out accuracy"), ("exact", "exact soundness error")), strict=True
        ):
            value_VP = grid.values(name).mean(0)
            shown = axes.imshow(value_VP, origin="lower", aspect="auto", cmap="viridis")
            for (v, p), value in np.ndenumerate(value_VP):
                axes.text(p, v, f"{value:.2f}", ha="center", va="center", fontsize=7, color="w")
            axes.set_xticks(range(len(grid.levels)), grid.levels)
            axes.set_yticks(range(len(grid.levels)), grid.levels)
            axes.set(title=title, xlabel=f"prover's {grid.strength}", ylabel=f"verifier's {grid.strength}")
            figure.colorbar(shown, ax=axes)
