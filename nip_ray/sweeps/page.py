"""The page of a sweep, made like the page of `compare`: the outcome, the settings, their curves, the metric over a
setting, failures.

A mean over seeds is drawn only where all seeds of the setting have a value: if some have been stopped, the mean of the
others is not a learning curve.
"""

import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import numpy as np

from nip_ray.errors import UserError
from nip_ray.evaluation.report.compare import mean_and_range
from nip_ray.evaluation.report.describe import describe
from nip_ray.evaluation.report.episodes import short
from nip_ray.evaluation.report.source import MAX_TEXT
from nip_ray.progress import duration
from nip_ray.sweeps.gap import gap_map
from nip_ray.sweeps.spec import SweepSpec, sweep_to_yaml
from nip_ray.sweeps.summary import (
    SettingSummary,
    Summary,
    TrialRecord,
    figure_of,
    headline,
    known,
    label,
    short_names,
    show,
    table_rows,
)

if TYPE_CHECKING:
    from nip_ray.evaluation.report.panels import Panel, Series

PAGE, TRIALS = "sweep.html", "trials"
CURVES_NAMED, CURVES_GREY = 8, 150
"""Number of best settings with their own colours, and maximum number of others, in grey."""
ROWS_SHOWN, ERRORS_SHOWN = 400, 60
_VALUES_TOLD_APART = 8
_WIDE_RANGE = 10.0  # ratio of largest to smallest value from which a grid gets a logarithmic axis
_OF_FIGURES = (
    "The figure is the mean over the seeds that ran to their end, beside that of each of them; in brackets: none did,"
    " and this is where they were left."
)
_OF_PICTURES = (
    f"A mean is drawn where all seeds of the setting have a value, with their range; settings beyond the {CURVES_NAMED}"
    " best are grey. A dot is one seed, a hollow one of a trial that did not run to its end."
)


def write_sweep_page(folder: Path, spec: SweepSpec, summary: Summary, trials: Sequence[TrialRecord]) -> Path:
    """Write ``sweep.html`` into `folder` and return its path. Raises UserError when it cannot be written."""
    # not at the top: starting a sweep must not wait for matplotlib
    from nip_ray.evaluation.report import curves
    from nip_ray.evaluation.report.page import Section, sections
    from nip_ray.storage.files import write_atomically
    from nip_ray.storage.folder import environment

    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder, so the page of the sweep cannot be written; name a sweep's folder")
    header, cells = table_rows(summary)
    rows = [[*row, _reports(folder, setting)] for row, setting in zip(cells, summary.ranked, strict=True)]
    failed = [trial for trial in trials if trial.status == "failed"]
    best, more = summary.best_trial, (len(rows) - ROWS_SHOWN, len(failed) - ERRORS_SHOWN)
    about: list[Any] = [summary.note] if summary.note else []
    if best is not None:
        about.append(
            [("Its best trial is ", ""), (best.trial_id, _report(folder, best)), (f" (seed {best.seed}).", "")]
        )
    machine = json.dumps({key: value for key, value in environment().items() if key != "started"}, indent=2)
    gap = gap_map(folder, spec, summary)
    page = sections(
        "sweep",
        spec.name[:100],
        headline(summary),
        [*about, " ".join(describe(spec.base))],
        [
            Section("The sweep", facts=_facts(spec, summary, trials)),
            Section(
                "Settings",
                head=[*header, "reports"],
                rows=rows[:ROWS_SHOWN],
                ranked=True,
                note=_OF_FIGURES + (f" {more[0]} more settings are in sweep.json." if more[0] > 0 else ""),
            ),
            Section("" if gap is None else f"Accuracy and soundness by {' and '.join(gap['roles'])}", heat=gap),
            Section("Pictures", curves=curves.drawn(list(_panels(spec, summary))), note=_OF_PICTURES),
            Section(
                "Trials that failed",
                head=("trial", "setting", "error"),
                rows=[
                    (t.trial_id, label_of(t, summary), (t.error or "no reason is known")[:1000])
                    for t in failed[:ERRORS_SHOWN]
                ],
                note=f"{more[1]} more are in sweep.json." if more[1] > 0 else "",
            ),
            Section(
                "How it was made",
                files=[
                    ("sweep.yaml", short(sweep_to_yaml(spec), MAX_TEXT)),
                    ("The machine that wrote this page", short(machine, MAX_TEXT)),
                ],
            ),
        ],
        tone="" if summary.best is None else "good" if summary.best.complete else "bad",
        footer=(
            "Each trial has a run folder with a report of its own in trials/. Every metric is defined in"
            " docs/metrics.md."
        ),
    )
    path = folder / PAGE
    write_atomically(path, page.encode("utf-8", errors="replace"))
    return path


def _report(folder: Path, trial: TrialRecord) -> str:
    """The address of a trial's own report relative to the page, "" if there is none."""
    path = folder / TRIALS / trial.trial_id / "report.html"
    return (
        f"{TRIALS}/{quote(trial.trial_id, safe='')}/report.html" if "/" not in trial.trial_id and path.is_file() else ""
    )


def _reports(folder: Path, setting: SettingSummary) -> list[tuple[str, str]]:
    """Links to the reports of a setting's trials, separated by commas."""
    links = [(f"seed {trial.seed}", link) for trial in setting.trials if (link := _report(folder, trial))]
    return [part for number, link in enumerate(links) for part in ([(", ", ""), link] if number else [link])]


def label_of(trial: TrialRecord, summary: Summary) -> str:
    """A trial's setting in a few words, and its seed."""
    own = next(setting for setting in summary.settings if trial in setting.trials)
    return ", ".join(part for part in (label(own, summary), f"seed {trial.seed}") if part)


def _facts(spec: SweepSpec, summary: Summary, trials: Sequence[TrialRecord]) -> list[tuple[str, str]]:
    settings, seeds = spec.settings, sorted({trial.seed for trial in trials})
    # random search takes all of a grid
    drawn = [settings.search.name] if len(spec.grids) < len(spec.spaces) or not spec.spaces else []
    facts = [
        ("metric", f"{summary.metric}, {'more' if summary.mode == 'max' else 'less'} is better"),
        ("settings", f"{len(summary.settings):,}"),
        (
            "seeds" if len(seeds) > 1 else "the only seed",
            ", ".join(map(str, seeds[:40])) + (" …" if len(seeds) > 40 else ""),
        ),
        ("trials", ", ".join(f"{count:,} {status}" for status, count in summary.statuses.items())),
        ("search", " and ".join(["grid"] * bool(spec.grids) + drawn)),
        ("scheduler", settings.scheduler.name),
        ("iterations", f"{sum(trial.iterations for trial in trials):,} in all trials together"),
        ("time", f"{duration(summary.seconds)} in all trials together"),
    ]
    return [(name, text) for name, text in facts if text]


def _panels(spec: SweepSpec, summary: Summary) -> "Iterator[Panel]":
    """The learning curves, and for one or two spaces the metric over each, by the values of the other if few."""
    from nip_ray.evaluation.report.panels import Panel

    if series := _curves(summary):
        yield Panel("curves", f"{summary.metric} by iteration (mean and range of seeds)", summary.metric, series)
    keys = list(spec.spaces)
    settings = [one for one in summary.settings if known(one) is not None and all(key in one.values for key in keys)]
    for key in keys if len(keys) in (1, 2) and settings else ():
        other = next(
            (one for one in keys if one != key and len({show(s.values[one]) for s in settings}) <= _VALUES_TOLD_APART),
            None,
        )
        values = [one.values[key] for one in settings]
        numeric = all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
        names = [] if numeric else list(dict.fromkeys(map(show, values)))
        groups: dict[str, list[tuple[float, SettingSummary]]] = {}
        for one in settings:
            name = "mean" if other is None else f"{short_names([key, other])[other]} = {show(one.values[other])}"
            groups.setdefault(name, []).append(
                (float(one.values[key]) if numeric else names.index(show(one.values[key])), one)
            )
        space = spec.spaces[key]
        log = space.log or (space.listed and numeric and min(values) > 0 and max(values) >= _WIDE_RANGE * min(values))
        points = [
            one
            for colour, (name, own) in enumerate(groups.items())
            for one in _points(name, own, summary.metric, colour)
        ]
        yield Panel(key, f"{summary.metric} by {key}", summary.metric, points, x_label=key, log=log, x_names=names)


def _curves(summary: Summary) -> "list[Series]":
    """The mean and range of the best settings, and the seeds of others in grey."""
    from nip_ray.evaluation.report.panels import Series

    made: list[Series] = []
    found = [
        (one, [curve for t in one.trials if (curve := {float(i): x for i, x in t.curve if math.isfinite(x)})])
        for one in summary.ranked
    ]
    for number, (setting, seeds) in enumerate(
        [(one, seeds) for one, seeds in found if seeds][: CURVES_NAMED + CURVES_GREY]
    ):
        whole = None
        # where some trials have no curve, those that have one are no fair sample
        if number < CURVES_NAMED and len(seeds) == len(setting.trials):
            whole = mean_and_range(label(setting, summary) or "the setting", seeds, number)
        made += [] if whole is None else [whole]
        if whole is None or len(seeds) > 1:
            style = "faint" if number < CURVES_NAMED else "grey"
            made += [Series("", *_columns(sorted(seed.items())), number, style) for seed in seeds]
    return made


def _points(name: str, own: Sequence[tuple[float, SettingSummary]], metric: str, colour: int) -> "Iterator[Series]":
    """The mean of each setting, and a dot for each seed, hollow if it did not run to its end."""
    from nip_ray.evaluation.report.panels import Series

    yield Series(name, *_columns([(at, one.mean) for at, one in own if one.mean is not None]), colour, "points")
    seeds = [
        (at, x, trial.status == "done")
        for at, one in own
        for trial in one.trials
        if (x := figure_of(trial, metric)) is not None
    ]
    yield Series("", *_columns([(at, x) for at, x, done in seeds if done]), colour, "dots")
    yield Series("", *_columns([(at, x) for at, x, done in seeds if not done]), colour, "hollow")


def _columns(points: Sequence[tuple[float, float]]) -> tuple[Any, Any]:
    """x (N,) and y (N,) of points."""
    x_N, y_N = np.array(points, dtype=np.float64).reshape(-1, 2).T
    return x_N, y_N
