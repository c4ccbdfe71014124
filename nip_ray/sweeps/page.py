"""The page of a sweep: one HTML file with its outcome, its table, its learning curves and how the figure moves with a setting.

Decisions that matter here:

- Names, values and errors come from files and processes of others: jinja2 escapes them, the content security policy of all our pages
  forbids it to load or run anything, and matplotlib gets them without mathematics.
- A mean of seeds is drawn only where all seeds of the setting have a value: where some have been stopped, the mean of the others is no
  learning curve.
"""

import itertools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from nip_ray.errors import UserError
from nip_ray.evaluation.report.describe import describe
from nip_ray.evaluation.report.episodes import short
from nip_ray.evaluation.report.pictures import GRID, PALETTE, Drawing, picture, plain
from nip_ray.evaluation.report.source import MAX_TEXT
from nip_ray.progress import duration
from nip_ray.sweeps.gap import gap_map
from nip_ray.sweeps.spaces import Space
from nip_ray.sweeps.spec import SweepSpec, sweep_to_yaml
from nip_ray.sweeps.summary import SettingSummary, Summary, TrialRecord, figure_of, headline, label, short_names, show, table_rows

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PAGE, TRIALS = "sweep.html", "trials"
CURVES_NAMED, CURVES_GREY, BANDS = 12, 150, 6
"""Settings that get a colour of their own, the most others that are drawn in grey, and the best ones whose range of seeds is drawn."""
ROWS_SHOWN, ERRORS_SHOWN = 400, 60
_POINTS = 400  # of a curve: less than one a pixel
_LONGEST = 60  # characters of a title or label
_VALUES_TOLD_APART = 8
_WIDE_RANGE = 10.0  # ratio of largest to smallest value from which a grid gets a logarithmic axis


def write_sweep_page(folder: Path, spec: SweepSpec, summary: Summary, trials: Sequence[TrialRecord]) -> Path:
    """Write ``sweep.html`` into `folder` and return its path. Raises UserError when it cannot be written."""
    # here, not above: what starts a sweep must not wait for matplotlib
    from nip_ray.evaluation.report.page import rendered
    from nip_ray.storage.files import write_atomically
    from nip_ray.storage.folder import environment

    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder, so the page of the sweep cannot be written; name a sweep's folder")
    header, cells = table_rows(summary)
    rows = [(row, _reports(folder, setting)) for row, setting in zip(cells, summary.ranked, strict=True)]
    page = rendered(
        "page.html.j2",
        folder=Path(__file__).parent,
        kind="sweep",
        title=spec.name[:100],
        about=describe(spec.base),
        sentence=headline(summary),
        note=summary.note,
        tone="" if summary.best is None else "good" if summary.best.complete else "bad",
        best=None if summary.best_trial is None else (summary.best_trial, _report(folder, summary.best_trial)),
        facts=_facts(spec, summary, trials),
        header=header,
        rows=rows[:ROWS_SHOWN],
        num_left_out=max(0, len(rows) - ROWS_SHOWN),
        gap=gap_map(folder, spec, summary),
        pictures=_pictures(spec, summary),
        failed=[(trial.trial_id, label_of(trial, summary), (trial.error or "no reason is known")[:1000]) for trial in _failed(trials)],
        num_failed=sum(trial.status == "failed" for trial in trials),
        config=short(sweep_to_yaml(spec), MAX_TEXT),
        environment=short(json.dumps({key: value for key, value in environment().items() if key != "started"}, indent=2), MAX_TEXT),
    )
    path = folder / PAGE
    write_atomically(path, page.encode("utf-8", errors="replace"))
    return path


def _report(folder: Path, trial: TrialRecord) -> str:
    """The address of a trial's own report as seen from the page, "" where there is none."""
    path = folder / TRIALS / trial.trial_id / "report.html"
    return f"{TRIALS}/{quote(trial.trial_id, safe='')}/report.html" if "/" not in trial.trial_id and path.is_file() else ""


def _reports(folder: Path, setting: SettingSummary) -> list[tuple[str, str]]:
    """(name, address) of the reports of a setting's trials."""
    return [(f"seed {trial.seed}", link) for trial in setting.trials if (link := _report(folder, trial))]


def label_of(trial: TrialRecord, summary: Summary) -> str:
    """A trial's setting in a few words, and its seed."""
    own = next(setting for setting in summary.settings if trial in setting.trials)
    return ", ".join(part for part in (label(own, summary), f"seed {trial.seed}") if part)


def _failed(trials: Sequence[TrialRecord]) -> list[TrialRecord]:
    return [trial for trial in trials if trial.status == "failed"][:ERRORS_SHOWN]


def _facts(spec: SweepSpec, summary: Summary, trials: Sequence[TrialRecord]) -> list[tuple[str, str]]:
    settings = spec.settings
    seeds = sorted({trial.seed for trial in trials})
    facts = [
        ("metric", f"{summary.metric}, {'more' if summary.mode == 'max' else 'less'} is better"),
        ("settings", f"{len(summary.settings):,}"),
        ("seeds" if len(seeds) > 1 else "the only seed", ", ".join(map(str, seeds[:40])) + (" …" if len(seeds) > 40 else "")),
        ("trials", ", ".join(f"{count:,} {status}" for status, count in summary.statuses.items())),
        ("search", _search(spec)),
        ("scheduler", settings.scheduler.name),
        ("iterations", f"{sum(trial.iterations for trial in trials):,} in all trials together"),
        ("time", f"{duration(summary.seconds)} in all trials together"),
    ]
    return [(name, text) for name, text in facts if text]


def _search(spec: SweepSpec) -> str:
    """How settings are chosen: random search takes every point of a grid."""
    drawn = [spec.settings.search.name] if len(spec.grids) < len(spec.spaces) or not spec.spaces else []
    return " and ".join(["grid"] * bool(spec.grids) + drawn)


# ---------------------------------------------------------------------------------------------------------- pictures


def _pictures(spec: SweepSpec, summary: Summary) -> list[dict[str, str]]:
    """Title and SVG of each picture. None where there is nothing to draw."""
    from markupsafe import Markup

    curves = _curves(summary)
    drawn = [(f"{summary.metric} by iteration (mean and range of seeds)", _draw_curves(curves, summary))] if curves else []
    drawn += [(title, _draw_plot(plot, summary)) for title, plot in _plots(spec, summary)]
    return [{"title": title, "svg": Markup(drawing.svg)} for title, drawing in drawn]


@dataclass(frozen=True)
class Curve:
    """A setting's learning curve. seeds: a list of (iteration, figure) for each seed. mean: (iteration, mean, smallest, largest) where all
    seeds have a value. named: whether it gets a colour.
    """

    label: str
    seeds: Sequence[Sequence[tuple[int, float]]]
    mean: Sequence[tuple[int, float, float, float]]
    named: bool


def _curves(summary: Summary) -> list[Curve]:
    """The curves of all settings that have any, the best first."""
    made: list[Curve] = []
    for setting in summary.ranked:
        seeds = [curve for trial in setting.trials if (curve := [(i, x) for i, x in trial.curve if math.isfinite(x)])]
        if seeds and len(made) < CURVES_NAMED + CURVES_GREY:
            made.append(
                Curve(label(setting, summary), [_thinned(seed) for seed in seeds], _thinned(_mean_curve(seeds)), len(made) < CURVES_NAMED)
            )
    return made


def _thinned(points: Sequence[Any]) -> Sequence[Any]:
    """Every n-th point and the last."""
    step = 1 + len(points) // _POINTS
    return [*points[:-1:step], points[-1]] if points else points


def _mean_curve(seeds: Sequence[Sequence[tuple[int, float]]]) -> list[tuple[int, float, float, float]]:
    by_seed = [dict(seed) for seed in seeds]
    shared = sorted(set.intersection(*(set(seed) for seed in by_seed)))
    columns = [(i, [seed[i] for seed in by_seed]) for i in shared]
    return [(i, sum(values) / len(values), min(values), max(values)) for i, values in columns]


def _draw_curves(curves: Sequence[Curve], summary: Summary) -> Drawing:
    from nip_ray.evaluation.report.curves import over_iterations  # here: it waits for matplotlib

    def fill(axes: "Axes") -> None:
        for curve in (curve for curve in curves if not curve.named):
            for seed in curve.seeds:
                axes.plot(*zip(*seed, strict=True), color=GRID, linewidth=0.8, zorder=1)
        for i, curve in enumerate(curve for curve in curves if curve.named):
            style = "solid" if i < len(PALETTE) else "dashed"
            _add_curve(axes, curve, PALETTE[i % len(PALETTE)], style, band=i < BANDS)
        over_iterations(axes)

    return picture(summary.metric, fill, about=f"{summary.metric} by iteration", longest=_LONGEST)


def _add_curve(axes: "Axes", curve: Curve, colour: str, style: str, band: bool) -> None:
    band = band and len(curve.seeds) > 1
    for seed in curve.seeds if band else ():
        axes.plot(*zip(*seed, strict=True), color=colour, linewidth=0.6, alpha=0.35, zorder=2)
    name = plain(curve.label or "the setting", _LONGEST)
    if not curve.mean:  # seeds that have no iteration in common
        axes.plot([], [], color=colour, linestyle=style, label=name)
        return
    x_N, mean_N, low_N, high_N = zip(*curve.mean, strict=True)
    marker = "o" if len(x_N) == 1 else None
    axes.plot(x_N, mean_N, color=colour, linewidth=1.8, linestyle=style, marker=marker, label=name, zorder=4)
    if band:
        axes.fill_between(x_N, low_N, high_N, color=colour, alpha=0.14, linewidth=0, zorder=2)


@dataclass(frozen=True)
class Plot:
    """The figure over one setting.

    x: its key. points: by value of the other setting ("" without one), (value, setting) pairs in the order of the values. log: logarithmic
    axis. names: labels of the values where they are no numbers, which then are places 0, 1, ... other: key of the other setting.
    """

    x: str
    points: Mapping[str, Sequence[tuple[float, SettingSummary]]]
    log: bool
    names: Sequence[str]
    other: str = ""


def _plots(spec: SweepSpec, summary: Summary) -> list[tuple[str, Plot]]:
    """For one space the figure over it; for two, over each of them, by the values of the other where these are few enough to tell apart."""
    keys = list(spec.spaces)
    settings = [one for one in summary.settings if _shown(one, summary.metric) is not None and all(key in one.values for key in keys)]
    if len(keys) not in (1, 2) or not settings:
        return []
    made = []
    for key in keys:
        other = next((one for one in keys if one != key), None)
        few = other is not None and len({show(one.values[other]) for one in settings}) <= _VALUES_TOLD_APART
        plot = _plot(key, spec.spaces[key], other if few else None, settings)
        made.append((f"{summary.metric} by {key}", plot))
    return made


def _plot(key: str, space: Space, other: str | None, settings: Sequence[SettingSummary]) -> Plot:
    values = [one.values[key] for one in settings]
    numeric = all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
    names = [] if numeric else list(dict.fromkeys(map(show, values)))
    points: dict[str, list[tuple[float, SettingSummary]]] = {}
    for one in settings:
        at = float(one.values[key]) if numeric else float(names.index(show(one.values[key])))
        points.setdefault("" if other is None else show(one.values[other]), []).append((at, one))
    for some in points.values():
        some.sort(key=lambda pair: pair[0])
    spread = numeric and min(values) > 0 and (max(values) / min(values) >= _WIDE_RANGE or _geometric(values))
    return Plot(key, points, space.log or (space.listed and spread), names, "" if other is None else other)


def _geometric(values: Sequence[float]) -> bool:
    """Whether at least three values are a constant ratio apart."""
    ordered = sorted(set(values))
    ratios = [high / low for low, high in itertools.pairwise(ordered)]
    return len(ratios) > 1 and max(ratios) < 1.05 * min(ratios)


def _shown(setting: SettingSummary, metric: str) -> float | None:
    """The height at which a setting is drawn."""
    return setting.last if setting.mean is None else setting.mean


def _draw_plot(plot: Plot, summary: Summary) -> Drawing:
    def fill(axes: "Axes") -> None:
        for i, (value, points) in enumerate(plot.points.items()):
            name = f"{short_names([plot.x, plot.other])[plot.other]} = {value}" if plot.other else "mean"
            aside = i - (len(plot.points) - 1) / 2
            _add_points(axes, _moved(plot, points, aside), summary.metric, PALETTE[i % len(PALETTE)], name)
        if plot.log:
            axes.set_xscale("log")
        if plot.names:
            names = [plain(name, _LONGEST)[:24] for name in plot.names]
            axes.set_xticks(range(len(names)), names, rotation=20 if len(names) > 4 else 0)
            axes.set_xlim(-0.5, len(plot.names) - 0.5)
        axes.set_xlabel(plain(plot.x, _LONGEST))

    return picture(summary.metric, fill, about=f"{summary.metric} by {plot.x}", longest=_LONGEST)


def _moved(plot: Plot, points: Sequence[tuple[float, SettingSummary]], steps: float) -> list[tuple[float, SettingSummary]]:
    """The points a little to the side, so that those of several values do not lie on each other."""
    if plot.names:
        return [(at + 0.08 * steps, one) for at, one in points]
    everywhere = [at for some in plot.points.values() for at, _ in some]
    low, high = min(everywhere), max(everywhere)
    if plot.log:
        return [(at * (high / low) ** (0.012 * steps), one) for at, one in points]
    return [(at + 0.012 * steps * (high - low), one) for at, one in points]


def _add_points(axes: "Axes", points: Sequence[tuple[float, SettingSummary]], metric: str, colour: str, name: str) -> None:
    """A dot for each seed (hollow for one that did not run to its end), the mean of each setting."""
    for status, face in (("done", colour), ("other", "none")):
        dots = [
            (at, x)
            for at, setting in points
            for trial in setting.trials
            if (trial.status == "done") == (status == "done") and (x := figure_of(trial, metric)) is not None
        ]
        if dots:
            axes.scatter(*zip(*dots, strict=True), s=14, alpha=0.5, facecolors=face, edgecolors=colour, linewidths=0.8, zorder=3)
    means = [(at, one.mean) for at, one in points if one.mean is not None]
    axes.plot(
        *(zip(*means, strict=True) if means else ([], [])),
        color=colour,
        marker="o",
        markersize=5,
        linewidth=0,
        label=plain(name, _LONGEST),
        zorder=4,
    )
