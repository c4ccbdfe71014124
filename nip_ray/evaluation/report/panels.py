"""Learning curves to draw: the rows of metrics.jsonl as panels of series; `curves` draws them."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from nip_ray.evaluation.intervals import Mean
from nip_ray.evaluation.report.source import Figure, Row
from nip_ray.evaluation.trend import slope

Floats = npt.NDArray[np.float64]
Style = Literal["line", "faint", "grey", "dashed", "marked", "area", "points", "dots", "hollow"]

MAX_POINTS = 500  # per series: about one a pixel
MAX_GROUPS = 8  # values of one group that a panel distinguishes
MAX_AGENTS = 8
PALETTE = ("#1668c4", "#b34a00", "#08714f", "#8d3aa0", "#746300", "#b3304c", "#3d3d99", "#5d646d")
"""Colours by number: `--a0` to `--a7` of the style sheet. They also differ in lightness, for colour-blind readers."""
_OF_AGENTS = {
    **dict.fromkeys(("verifier", "host", "player0"), 0),
    **dict.fromkeys(("prover", "prover0", "agent", "player1"), 1),
    "prover1": 2,
    "prover2": 3,
    "adversarial_verifier": 4,
    "simulator": 5,
}


@dataclass(frozen=True)
class Series:
    """Values y_N over iterations x_N. colour: index into the palette. A series without a label is not in the legend.

    spread: lower and upper ends (N,) of a band around the values.
    """

    label: str
    x_N: Floats
    y_N: Floats
    colour: int
    style: Style = "line"
    spread: tuple[Floats, Floats] | None = None


@dataclass(frozen=True)
class Panel:
    """One picture. marks: horizontal lines (label, height). limits: of the vertical axis (None: by the data).

    x_label, log: of the horizontal axis. x_names: labels of its places 0, 1, ..., in place of numbers.
    """

    name: str
    title: str
    y_label: str
    series: Sequence[Series]
    marks: Sequence[tuple[str, float]] = field(default_factory=tuple)
    limits: tuple[float, float] | None = None
    x_label: str = "iteration"
    log: bool = False
    x_names: Sequence[str] = ()


def panels(rows: Sequence[Row], chance: float, baseline: Figure | None, *, held_out: bool = True) -> list[Panel]:
    """The panels with something to show; constant series are left out.

    chance: accuracy of the best constant answer; baseline: measured without a prover. held_out: True if evaluations
    are.
    """
    lengths = [
        *_trained(rows, "train/episode_length", "training", 0),
        *_examined(rows, "episode_length", "held-out", 1),
    ]
    made = [
        _accuracy(rows, chance, baseline),
        _both_sides(rows),
        _hacking(rows),
        *_groups(rows),
        Panel("episode_length", "Episode length", "rounds", lengths),
        _returns(rows),
        *_exact(rows),
    ]
    made = [
        panel for panel in [*made, _entropies(rows), _times(rows)] if panel.series and (panel.marks or varies(panel))
    ]
    if held_out:
        return made
    return [
        replace(one, series=[replace(s, label=s.label.replace("held-out", "evaluation")) for s in one.series])
        for one in made
    ]


def varies(panel: Panel) -> bool:
    """True if any of its series changes over the iterations."""
    return any(float(np.ptp(one.y_N)) > 1e-9 for one in panel.series)


def agents(rows: Sequence[Row]) -> list[str]:
    """The agents in the metrics, the verifier first."""
    names = {
        found[1] for row in (rows[0], rows[-1]) for key in row if (found := re.fullmatch(r"train/(.+)/return", key))
    }
    return sorted(names, key=lambda name: (name != "verifier", name))[:MAX_AGENTS]


def deciders(rows: Sequence[Row]) -> list[str]:
    """The members of a panel, whose votes have their own metrics; none with one verifier."""
    keys = {key for row in (rows[0], rows[-1]) for key in row}
    return [name for name in agents(rows) if name != "verifier" and f"train/{name}/accuracy" in keys]


def agent_colours(names: Iterable[str]) -> dict[str, int]:
    """Agent -> number of its colour, the same on every page: built-in agents have fixed ones, others by name."""
    ordered = sorted(set(names))
    colours = {name: _OF_AGENTS[name] for name in ordered if name in _OF_AGENTS}
    free = [i for i in range(len(PALETTE)) if i not in colours.values()]
    others = [name for name in ordered if name not in colours]
    return colours | {name: free[i % len(free)] for i, name in enumerate(others)}


def smooth(y_N: Floats, window: int) -> Floats:
    """Centred mean over `window` neighbours, fewer at the ends."""
    kernel = np.ones(min(window, len(y_N)))
    return np.convolve(y_N, kernel, "same") / np.convolve(np.ones_like(y_N), kernel, "same")


def _accuracy(rows: Sequence[Row], chance: float, baseline: Figure | None) -> Panel:
    key = "verifier/accuracy"
    series = [*_trained(rows, f"train/{key}", "training", 0), *_examined(rows, key, "held-out", 1)]
    marks = [(f"chance {chance:.1%}", chance)]
    if baseline is not None and abs(baseline.estimate - chance) > 1e-9:
        marks.append((f"without a prover {baseline.estimate:.1%}", baseline.estimate))
    lowest = min([0.42, chance - 0.05, *(float(one.y_N.min()) for one in series)])
    return Panel("accuracy", "Accuracy", "share of episodes", series, marks, (lowest - 0.02, 1.02))


def _both_sides(rows: Sequence[Row]) -> Panel:
    series: list[Series] = []
    for colour, name in enumerate(("completeness", "soundness")):
        series += _trained(rows, f"train/verifier/{name}", f"{name}, training", colour, raw=False)
        series += _examined(rows, f"verifier/{name}", f"{name}, held-out", colour, modes=("eval",))
    series += _trained(rows, "train/verifier/undecided", "undecided, training", 5, raw=False)
    return Panel(
        "completeness_soundness", "Completeness and soundness", "share of episodes", series, _even(rows), (-0.03, 1.03)
    )


def _even(rows: Sequence[Row]) -> list[tuple[str, float]]:
    """A mark at the accuracy of a random verdict."""
    claims = {key for row in rows for key in row if key.startswith("train/verifier/completeness/") and "=" not in key}
    return [("chance", 1 / max(2, len(claims)))]


def wrong_side(rows: Sequence[Row]) -> tuple[Floats, Floats, Floats]:
    """Iterations (N,) of evaluations, and of each the shares of episodes won by the wrong side, and judged rightly.

    The wrong side wins where the verdict is not the label; an undecided episode has no winner. Empty without provers.
    """
    mode = next(
        (mode for mode in ("eval", "eval_sampled") if any(f"{mode}/verifier/accuracy" in row for row in rows)), ""
    )
    keys = [f"{mode}/verifier/{name}" for name in ("accuracy", "undecided")]
    found = [(row["iteration"], *(row[key] for key in keys)) for row in rows if all(key in row for key in keys)]
    x_N, right_N, undecided_N = (
        np.array([] if agents(rows) == ["verifier"] else found, dtype=np.float64).reshape(-1, 3).T
    )
    return x_N, np.maximum(0.0, 1 - right_N - undecided_N), right_N


def slope_words(found: Mean) -> str:
    """Slope per iteration as points per 100 iterations, with interval; empty without one, as for few evaluations."""
    if found.estimate is None or found.lower is None or found.upper is None:
        return ""
    return f"{1e4 * found.estimate:+.3g} points / 100 iterations ({1e4 * found.lower:.3g} to {1e4 * found.upper:.3g})"


def _hacking(rows: Sequence[Row]) -> Panel:
    """The share of wins of the wrong side, with its trend, and accuracy; empty for fewer than three evaluations."""
    x_N, wrong_N, right_N = wrong_side(rows)
    trend, series = slope(x_N, wrong_N), []
    if len(x_N) > 2 and trend.estimate is not None:
        series += [
            Series("accuracy, held-out", x_N, right_N, 0, "marked"),
            Series("wrong side wins", x_N, wrong_N, 1, "marked"),
        ]
        if words := slope_words(trend):
            line_N = wrong_N.mean() + trend.estimate * (x_N - x_N.mean())
            series += [Series(words, x_N, line_N, 1, "dashed")]
    return Panel(
        "judge_hacking",
        "Wins of the wrong side, and their trend",
        "share of episodes",
        list(map(_thinned, series)),
        (),
        (-0.03, 1.03),
    )


def _groups(rows: Sequence[Row]) -> list[Panel]:
    """Accuracy by group: held-out if evaluated more than once, else in training."""
    made = []
    for group, values in sorted(
        group_values({key for row in rows for key in row if "/verifier/accuracy/" in key}).items()
    ):
        series: list[Series] = []
        for colour, value in enumerate(values[:MAX_GROUPS]):
            key = f"verifier/accuracy/{group}={value}"
            held_out = _examined(rows, key, value, colour, modes=("eval",))
            if held_out and len(held_out[0].x_N) > 1:
                series += held_out
            else:
                series += _trained(rows, f"train/{key}", f"{value} (training)", colour, raw=False)
        name = "accuracy_by_" + (re.sub(r"[^A-Za-z0-9_]", "_", group)[:40] or "group")
        title = f"Accuracy by {group}" + (f", {MAX_GROUPS} of {len(values)} groups" if len(values) > MAX_GROUPS else "")
        made.append(Panel(name, title, "share of episodes", series, _even(rows), (-0.03, 1.03)))
    return made[:4]


def group_values(keys: Iterable[str]) -> dict[str, list[str]]:
    """Group -> its values in order, of keys that end in ``verifier/accuracy/<group>=<value>``."""
    values: dict[str, set[str]] = {}
    for key in keys:
        found = re.fullmatch(r"(?:.*/)?verifier/accuracy/(.+)=(.+?)", key)
        if found:
            values.setdefault(found[1], set()).add(found[2])
    return {group: sorted(some, key=_numeric) for group, some in values.items()}


def _numeric(value: str) -> tuple[bool, int, str]:
    whole = bool(re.fullmatch(r"-?[0-9]{1,18}", value))
    return (not whole, int(value) if whole else 0, value)


def _returns(rows: Sequence[Row]) -> Panel:
    series: list[Series] = []
    for agent, colour in agent_colours(agents(rows)).items():
        series += _trained(rows, f"train/{agent}/return", f"{agent}, training", colour, raw=False)
        series += _examined(rows, f"{agent}/return", f"{agent}, held-out", colour, modes=("eval",))
    return Panel("returns", "Returns", "reward per episode", series)


def _exact(rows: Sequence[Row]) -> list[Panel]:
    """Exact metrics of a game: the agents' values, and the distance from equilibrium."""
    values: list[Series] = []
    for agent, colour in agent_colours(agents(rows)).items():
        values += _examined(rows, f"{agent}/value", agent, colour, modes=("eval",))
    distances: list[Series] = []
    for colour, name in enumerate(("exploitability", "distance_to_nash")):
        distances += _examined(rows, name, name.replace("_", " "), colour, modes=("eval",))
    return [
        Panel("values", "Exact values", "reward", values),
        Panel("equilibrium", "Distance from equilibrium", "exact", distances),
    ]


def _entropies(rows: Sequence[Row]) -> Panel:
    series: list[Series] = []
    for agent, colour in agent_colours(agents(rows)).items():
        series += _trained(rows, f"learn/{agent}/entropy", agent, colour, raw=False)
        x_N, y_N = _values(rows, f"learn/{agent}/decision_entropy")
        if len(x_N) and bool((y_N > 0).any()):
            series.append(
                _thinned(Series(f"{agent}, decision alone", x_N, smooth(y_N, _window(x_N)), colour, "dashed"))
            )
    return Panel("entropies", "Entropies", "nats per turn", series)


def _times(rows: Sequence[Row]) -> Panel:
    """Stacked: playing, learning, the rest of an iteration, without the occasional evaluations and checkpoints."""
    timed = [row for row in rows if {"time/sample_s", "time/learn_s"} <= row.keys()]
    sample, learn = (np.array([row[f"time/{name}_s"] for row in timed]) for name in ("sample", "learn"))
    whole = np.array([row.get("time/iteration_s", 0.0) for row in timed])
    x_N = np.array([row["iteration"] for row in timed])
    rest = np.clip(whole - sample - learn, 0, None)
    parts = (("playing", sample), ("learning", learn), ("the rest", rest)) if timed else ()
    series = [_thinned(Series(name, x_N, smooth(y_N, _window(x_N)), c, "area")) for c, (name, y_N) in enumerate(parts)]
    return Panel("time", "Time per iteration", "seconds", series)


def _trained(rows: Sequence[Row], key: str, label: str, colour: int, raw: bool = True) -> list[Series]:
    """A training metric: smoothed, over its faint raw values if `raw`."""
    x_N, y_N = _values(rows, key)
    window = _window(x_N)
    if len(x_N) == 0:
        return []
    line = _thinned(Series(label, x_N, smooth(y_N, window), colour))
    return [_thinned(Series("", x_N, y_N, colour, "faint")), line] if raw and window > 1 else [line]


def _examined(
    rows: Sequence[Row], key: str, label: str, colour: int, modes: Sequence[str] = ("eval", "eval_sampled")
) -> list[Series]:
    """A held-out metric: greedy as marked points, sampled dashed in the next colour."""
    made = []
    for i, mode in enumerate(modes):
        x_N, y_N = _values(rows, f"{mode}/{key}")
        name = label if len(modes) == 1 else f"{label}, {('greedy', 'sampled')[i]}"
        if len(x_N):
            made.append(_thinned(Series(name, x_N, y_N, colour + i, "marked" if i == 0 else "dashed")))
    return made


def _values(rows: Sequence[Row], key: str) -> tuple[Floats, Floats]:
    """Iterations and values (N,) of the rows that have the key."""
    pairs = [(row["iteration"], row[key]) for row in rows if key in row]
    x_N, y_N = np.array(pairs, dtype=np.float64).reshape(-1, 2).T
    return x_N, y_N


def _window(x_N: Floats) -> int:
    return max(1, len(x_N) // 40)


def thinned(values_N: Any, most: int) -> Any:
    """At most `most` values (a list or an array) in equal steps, and always the last one."""
    return values_N[:: -(1 + len(values_N) // most)][::-1]


def _thinned(series: Series) -> Series:
    x_N, y_N = (thinned(values_N, MAX_POINTS) for values_N in (series.x_N, series.y_N))
    return Series(series.label, x_N, y_N, series.colour, series.style)
