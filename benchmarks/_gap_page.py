"""The analysis of `gap.json` by the plan in plans.md: the generated parts of docs/gap.md, and its plot."""

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np
import numpy.typing as npt
from _common import ROOT, put_between

PAGE = ROOT / "docs" / "gap.md"
BEGIN, END = "<!-- {}: written by `python benchmarks/gap.py --page` -->", "<!-- end of {} -->"
POINTS = 400 / np.log(10)
"""Points of Elo per unit of log odds."""
PRIOR = 0.01
"""Weight of a drawn game added to each pair, against one game by the win rate."""
FOLDS = 4
RESAMPLES = 500

Array = npt.NDArray[np.float64]
Row = Mapping[str, Any]


def cube(rows: Sequence[Row], name: str) -> tuple[Array, list[int]]:
    """(S, V, P) values by seed, verifier's depth and prover's, of seeds with all cells; and those seeds."""
    depths = sorted({row["prover"] for row in rows})
    seeds = sorted({row["seed"] for row in rows})
    value = {(row["seed"], row["verifier"], row["prover"]): row[name] for row in rows}
    whole = [seed for seed in seeds if all((seed, v, p) in value for v in depths for p in depths)]
    return np.array([[[value[seed, v, p] for p in depths] for v in depths] for seed in whole]), whole


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


def left_out(win_VP: Array) -> tuple[Array, Array]:
    """(V, P) log loss of each cell, left out with a quarter of the others, under Elo and under the mean of the rest."""
    fold_VP = np.add.outer(np.arange(len(win_VP)), np.arange(win_VP.shape[1])) % FOLDS
    by_elo, by_mean = np.zeros_like(win_VP), np.zeros_like(win_VP)
    for fold in range(FOLDS):
        away_VP = fold_VP == fold
        verifier_V, prover_P = elo(win_VP, ~away_VP)
        chance_VP = 1 / (1 + np.exp(prover_P[None] - verifier_V[:, None]))
        by_elo[away_VP] = _log_loss(win_VP, chance_VP)[away_VP]
        by_mean[away_VP] = _log_loss(win_VP, np.full_like(win_VP, win_VP[~away_VP].mean()))[away_VP]
    return by_elo, by_mean


def _log_loss(win: Array, chance: Array) -> Array:
    chance = np.clip(chance, 1e-6, 1 - 1e-6)
    return -(win * np.log(chance) + (1 - win) * np.log1p(-chance))


def write_page(rows: Sequence[Row]) -> None:
    """Write the tables and draw the plot."""
    text = PAGE.read_text()
    for name, made in {"maps": _maps(rows), "curves": _curves(rows), "left out": _left_out(rows)}.items():
        text = put_between(text, BEGIN.format(name), END.format(name), made)
    PAGE.write_text(text)
    _draw(rows)


def _maps(rows: Sequence[Row]) -> str:
    lines = []
    for name, title in (("accuracy", "Held-out accuracy"), ("exact", "Exact soundness error")):
        value_SVP, seeds = cube(rows, name)
        depths = range(1, value_SVP.shape[1] + 1)
        lines += [f"{title}: the mean over {len(seeds)} seeds, and their minimum and maximum.", ""]
        lines += ["| verifier's layers | " + " | ".join(f"prover {p}" for p in depths) + " |"]
        lines += ["|---" * (len(depths) + 1) + "|"]
        for v in depths:
            cells = [f"{x.mean():.2f} ({x.min():.2f} to {x.max():.2f})" for x in value_SVP[:, v - 1].T]
            lines.append(f"| {v} | " + " | ".join(cells) + " |")
        lines.append("")
    return "\n".join(lines[:-1])


def _curves(rows: Sequence[Row]) -> str:
    error_SVP, _ = cube(rows, "realised")
    win_SVP, depth_N = 1 - error_SVP, np.log2(np.arange(1, error_SVP.shape[1] + 1))
    whole = np.ones(win_SVP.shape[1:], bool)
    draws, found = np.random.default_rng(0), []
    for resample in range(RESAMPLES):
        seeds = draws.integers(len(win_SVP), size=len(win_SVP)) if resample else np.arange(len(win_SVP))
        found.append([plateaus(depth_N, POINTS * x_N) for x_N in elo(win_SVP[seeds].mean(0), whole)])
    found_RAK = np.array(found)
    lines = ["| Elo of | plateau until, layers | plateau from, layers | points per doubling |", "|---" * 4 + "|"]
    for agent, name in enumerate(("verifiers", "provers")):
        low, high = np.quantile(found_RAK[:, agent], (0.025, 0.975), axis=0)
        values = (2 ** found_RAK[0, agent, :2], 2 ** low[:2], 2 ** high[:2])
        knots = [f"{one:.0f} ({least:.0f} to {most:.0f})" for one, least, most in zip(*values, strict=True)]
        lines.append(f"| {name} | {' | '.join(knots)} | {found_RAK[0, agent, 2]:.0f} ({low[2]:.0f} to {high[2]:.0f}) |")
    return "\n".join(lines)


def _left_out(rows: Sequence[Row]) -> str:
    error_SVP, _ = cube(rows, "realised")
    win_VP = 1 - error_SVP.mean(0)
    lines = []
    for least in (1, 2):  # the second is not in the plan
        by_elo, by_mean = left_out(win_VP[least - 1 :])
        gain_C = (by_elo - by_mean).ravel()
        draws = np.random.default_rng(0)
        means = [draws.choice(gain_C, len(gain_C)).mean() for _ in range(10 * RESAMPLES)]
        low, high = np.quantile(means, (0.025, 0.975))
        lines.append(
            f"| {least} to {len(win_VP)} | {len(gain_C)} | {by_elo.mean():.3f} | {by_mean.mean():.3f} |"
            f" {gain_C.mean():.3f} ({low:.3f} to {high:.3f}) |"
        )
    titles = "| verifier's layers | cells | log loss of Elo | of the mean of the rest | difference |"
    return "\n".join([titles, "|---" * 5 + "|", *lines])


def _draw(rows: Sequence[Row]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    with matplotlib.rc_context({"svg.hashsalt": "gap", "font.size": 9}):
        figure, axes_A = pyplot.subplots(1, 2, figsize=(8, 3.4), layout="constrained")
        for axes, (name, title) in zip(
            axes_A, (("accuracy", "held-out accuracy"), ("exact", "exact soundness error")), strict=True
        ):
            value_VP = cube(rows, name)[0].mean(0)
            ends = (0.5, len(value_VP) + 0.5)
            shown = axes.imshow(value_VP, origin="lower", extent=(*ends, *ends), aspect="auto", cmap="viridis")
            for (v, p), value in np.ndenumerate(value_VP):
                axes.text(p + 1, v + 1, f"{value:.2f}", ha="center", va="center", fontsize=7, color="w")
            axes.set(title=title, xlabel="prover's layers", ylabel="verifier's layers")
            figure.colorbar(shown, ax=axes)
        figure.savefig(ROOT / "docs" / "gap.svg", metadata={"Date": None})
        pyplot.close(figure)
