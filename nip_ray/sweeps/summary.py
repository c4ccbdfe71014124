"""The results of a sweep: trials grouped by setting, each with its mean over seeds, and the best of them.

Decisions that matter here:

- Only trials that ran to their end count in a mean, a smallest and a largest value. A stopped one was stopped for being
  poor, and a failed one may have failed because of its learning: a mean over the others alone would flatter the
  setting. So a setting with such a seed is best only if there is no other.
- A mean over seeds is shown with the value of each seed, without an interval. Results of runs that learn or fail are
  not about normal: if one seed in five fails, Student's interval of five seeds covers the mean of all seeds in two
  cases of three.
- The best of several settings was chosen by the shown values, which are on average too good. The summary says so.
"""

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from nip_ray.settings.sweep import SweepSettings

Status = Literal["done", "stopped", "failed", "unfinished"]
STATUSES: tuple[Status, ...] = ("done", "stopped", "failed", "unfinished")
"""Ran to its end; stopped early by the scheduler; failed for good; neither yet (interrupted, or out of time)."""


@dataclass(frozen=True)
class TrialRecord:
    """One trial.

    trial_id: its name below `trials/`. values: dotted key -> value of every space (under PBT: the newest). run_dir: its
    run folder, None if it has none yet. iterations: number done. metrics: the last known value of each. curve:
    (iteration, metric) pairs in order. seconds: of wall clock time. error: why it failed, on one line.
    """

    trial_id: str
    values: Mapping[str, Any]
    seed: int
    status: Status
    run_dir: Path | None = None
    iterations: int = 0
    metrics: Mapping[str, float] = field(default_factory=dict)
    curve: Sequence[tuple[int, float]] = ()
    seconds: float = 0.0
    error: str | None = None


_LONGEST = 48  # characters of a value in a table
SEEDS_SHOWN = 10
"""Maximum number of seeds whose values are all in a table; beyond it, the smallest and the largest."""


@dataclass(frozen=True)
class SettingSummary:
    """One setting and its trials, which are in the order of `seeds`.

    figures: the metric of each seed that ran to its end, by seed. last: mean over the others, None if unknown. rank:
    from 1, the best.
    """

    values: Mapping[str, Any]
    trials: tuple[TrialRecord, ...]
    figures: tuple[float, ...]
    last: float | None
    rank: int = 0

    @property
    def mean(self) -> float | None:
        """Over the seeds that ran to their end, None without any."""
        return sum(self.figures) / len(self.figures) if self.figures else None

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seeds it was run with; a search may try a setting again with one of them."""
        return tuple(dict.fromkeys(trial.seed for trial in self.trials))

    @property
    def statuses(self) -> dict[str, int]:
        """Status -> how many of its trials have it."""
        return _counted(self.trials)

    @property
    def complete(self) -> bool:
        """True if every seed ran to its end and has the metric."""
        return len(self.figures) == len(self.seeds)


@dataclass(frozen=True)
class Summary:
    """A sweep's outcome.

    settings: in the order in which they appeared. best, best_trial: None if no trial has the metric. note: a caveat, ""
    if there is none. seconds: of all trials together.
    """

    metric: str
    mode: str
    settings: tuple[SettingSummary, ...]
    best: SettingSummary | None
    best_trial: TrialRecord | None
    note: str
    statuses: Mapping[str, int]
    seconds: float

    @property
    def ranked(self) -> list[SettingSummary]:
        """The settings, best first."""
        return sorted(self.settings, key=lambda setting: setting.rank)


def summarise(settings: SweepSettings, trials: Sequence[TrialRecord]) -> Summary:
    """The results of `trials` by the metric of `settings`."""
    groups: dict[str, list[TrialRecord]] = {}
    for trial in trials:
        groups.setdefault(json.dumps(trial.values, sort_keys=True, default=str), []).append(trial)
    unranked = [_setting(settings.metric, group) for group in groups.values()]
    sign = 1 if settings.mode == "max" else -1
    order = sorted(range(len(unranked)), key=lambda i: _merit(unranked[i], sign))
    place = {index: rank for rank, index in enumerate(order, 1)}
    ranked = tuple(replace(one, rank=place[i]) for i, one in enumerate(unranked))
    best = next((one for one in ranked if one.rank == 1 and known(one) is not None), None)
    best_trial = None
    if best is not None:  # among those that ran to their end, or among all if none did
        figures = [(trial, x) for trial in best.trials if (x := figure_of(trial, settings.metric)) is not None]
        done = [pair for pair in figures if pair[0].status == "done"]
        best_trial = max(done or figures, key=lambda pair: sign * pair[1])[0]
    seconds = sum(trial.seconds for trial in trials)
    return Summary(
        settings.metric,
        settings.mode,
        ranked,
        best,
        best_trial,
        _note(best, ranked, settings.mode),
        _counted(trials),
        seconds,
    )


def as_json(summary: Summary) -> dict[str, Any]:
    """The summary as plain JSON values; settings in order of appearance, trials by name."""
    return {
        "metric": summary.metric,
        "mode": summary.mode,
        "statuses": dict(summary.statuses),
        "seconds": summary.seconds,
        "best": None if summary.best is None else {"values": dict(summary.best.values), **_record(summary.best)},
        "best_trial": None if summary.best_trial is None else summary.best_trial.trial_id,
        "note": summary.note,
        "settings": [
            {
                "values": dict(setting.values),
                "rank": setting.rank,
                **_record(setting),
                "min": min(setting.figures, default=None),
                "max": max(setting.figures, default=None),
                "last_of_unfinished": setting.last,
                "seeds": list(setting.seeds),
                "trials": [trial.trial_id for trial in setting.trials],
                "statuses": setting.statuses,
            }
            for setting in summary.settings
        ],
    }


def table_rows(summary: Summary) -> tuple[list[str], list[list[str]]]:
    """(header, rows) of a plain table, best setting first."""
    keys = list(dict.fromkeys(key for setting in summary.settings for key in setting.values))
    short = short_names(keys)
    several = any(len(setting.seeds) > 1 for setting in summary.settings)
    header = [
        "rank",
        *(short[key] for key in keys),
        "seeds" if several else "seed",
        summary.metric,
        "of each seed",
        "trials",
    ]
    rows = []
    for setting in summary.ranked:
        values = [show(setting.values[key]) if key in setting.values else "" for key in keys]
        figure = number(setting.mean) or (f"({number(setting.last)})" if setting.last is not None else "")
        seeds = ", ".join(map(str, setting.seeds))
        rows.append([str(setting.rank), *values, seeds, figure, each(setting.figures), counts(setting.statuses)])
    return header, rows


def headline(summary: Summary) -> str:
    """The result in one sentence."""
    best, tried = summary.best, len(summary.settings)
    if best is None:
        return f"No trial has the metric {summary.metric}."
    name = label(best, summary) or "the only setting"
    figure = known(best)
    if not best.figures:
        return f"No trial ran to its end; {name} was at {summary.metric} {number(figure)} when it was left."
    of = f"mean of {len(best.figures)} seeds: {each(best.figures)}" if len(best.figures) > 1 else "of one seed"
    found = f"{summary.metric} {number(figure)} ({of})"
    return f"Best of {tried} settings: {name}, {found}." if tried > 1 else f"{name}: {found}."


# ---------------------------------------------------------------------------------------------------------------- words


def short_names(keys: Sequence[str]) -> dict[str, str]:
    """Dotted key -> its shortest suffix that no other key has: `lr` for `algorithm.lr`."""
    made = {}
    for key in keys:
        parts = key.split(".")
        ends = [".".join(parts[-n:]) for n in range(1, len(parts) + 1)]
        others = [f".{other}" for other in keys if other != key]
        made[key] = next((end for end in ends if not any(other.endswith(f".{end}") for other in others)), key)
    return made


def label(setting: SettingSummary, summary: Summary) -> str:
    """A setting in a few words, "" for one without spaces."""
    keys = list(dict.fromkeys(key for one in summary.settings for key in one.values))
    short = short_names(keys)
    return ", ".join(f"{short[key]} = {show(value)}" for key, value in setting.values.items())


def show(value: Any) -> str:
    """A value for readers: four digits of a number, mappings and lists as JSON, cut short."""
    if isinstance(value, float):
        return f"{value:.4g}"
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def number(value: float | None) -> str:
    """A number as text, "" for None."""
    return "" if value is None else f"{value:.4g}"


def each(figures: Sequence[float]) -> str:
    """The value of each of several seeds, or of many the smallest and largest; "" for one, which is its own mean."""
    if len(figures) > SEEDS_SHOWN:
        return f"{number(min(figures))} to {number(max(figures))}"
    return ", ".join(map(number, figures)) if len(figures) > 1 else ""


def counts(statuses: Mapping[str, int]) -> str:
    """The number of trials by status: `2 done, 1 failed`."""
    return ", ".join(f"{count} {status}" for status, count in statuses.items() if count)


# -------------------------------------------------------------------------------------------------------------- figures


def figure_of(trial: TrialRecord, metric: str) -> float | None:
    """The newest known value of a trial's metric, None for none or a non-finite one."""
    value = trial.metrics.get(metric)
    if value is None and trial.curve:
        value = trial.curve[-1][1]
    return float(value) if value is not None and math.isfinite(value) else None


def _setting(metric: str, trials: Sequence[TrialRecord]) -> SettingSummary:
    ordered = tuple(sorted(trials, key=lambda trial: trial.seed))
    own = {trial.seed: figure_of(trial, metric) for trial in ordered if trial.status == "done"}
    done = [x for x in own.values() if x is not None]  # one of each seed: a search may try a setting twice
    rest = [x for trial in ordered if trial.status != "done" and (x := figure_of(trial, metric)) is not None]
    last = sum(rest) / len(rest) if rest else None
    return SettingSummary(ordered[0].values, ordered, tuple(done), last)


def _record(setting: SettingSummary) -> dict[str, Any]:
    return {"estimate": setting.mean, "n": len(setting.figures), "figures": list(setting.figures)}


def known(setting: SettingSummary) -> float | None:
    """The value by which a setting is ranked and drawn."""
    return setting.last if setting.mean is None else setting.mean


def _merit(setting: SettingSummary, sign: int) -> tuple[int, float]:
    """Smaller is better: all seeds done, then some, then none, then unknown; within these by the metric."""
    figure = known(setting)
    if figure is None:
        return (3, 0.0)
    tier = 0 if setting.complete else 1 if setting.figures else 2
    return (tier, -sign * figure)


def _counted(trials: Sequence[TrialRecord]) -> dict[str, int]:
    found = Counter(trial.status for trial in trials)
    return {status: found[status] for status in STATUSES if found[status]}


def _note(best: SettingSummary | None, settings: Sequence[SettingSummary], mode: str) -> str:
    """Caveats of the best setting's metric."""
    compared = [one for one in settings if known(one) is not None]
    if best is None:
        return ""
    notes = []
    if not best.complete:
        what = counts(best.statuses)
        notes.append(f"No setting has all its seeds trained to the end; of the best one's trials there are {what}.")
    if len(compared) > 1:
        notes.append(
            f"The best of {len(compared)} settings is chosen by the metrics shown here, so its score is"
            " selection-biased; re-train with fresh seeds for an unbiased one."
        )
        same = sum(one is not best and one.complete == best.complete and known(one) == known(best) for one in compared)
        if same:  # then the best is only the first of them
            notes.append(
                f"{same} other{'' if same == 1 else 's'} {'has' if same == 1 else 'have'} the very same figure."
            )
        sign = 1 if mode == "max" else -1
        worst = min((sign * x for x in best.figures), default=math.inf)
        near = sum(any(sign * x >= worst for x in one.figures) for one in compared if one is not best)
        if near and len(best.figures) > 1:
            has = "1 other setting has a seed" if near == 1 else f"{near} other settings have a seed"
            notes.append(f"{has} at least as good as its worst.")
    if len(best.figures) == 1:
        notes.append("There is one seed, which says nothing about other seeds.")
    return " ".join(notes)
