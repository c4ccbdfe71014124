"""Compare several runs on one page: grouped by config apart from the seed, with curves, bands over seeds, and metrics
with intervals.

Decisions that matter here:
- different tasks are not compared: runs must share scenario, protocol and the settings that choose their held-out
  instances. Other differences, including the protocol's parameters, are the subject of a comparison;
- a group's metric is the interquartile mean over its seeds, with the interval of `stratified_interval`: with three
  seeds a mean depends on one lucky seed. A run alone in its group has its own metric and interval, over its episodes;
- claims about settings need groups with `MIN_SEEDS` seeds each; otherwise claims are about these runs. So no seed may
  count twice: two runs with one config and one seed are refused;
- a curve's line is the mean at iterations that all seeds of the group have, its band their range. Where some have
  stopped, the mean of the others is not a learning curve;
- groups are named by the settings in which they differ.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from nip_ray.errors import UserError
from nip_ray.evaluation.aggregates import FREE_KEYS, MIN_SEEDS, stratified_interval
from nip_ray.evaluation.report.contents import NAMES
from nip_ray.evaluation.report.describe import describe, section
from nip_ray.evaluation.report.episodes import short
from nip_ray.evaluation.report.findings import exact_figures, held_out
from nip_ray.evaluation.report.panels import Panel, Series, agents, thinned, varies
from nip_ray.evaluation.report.source import (
    EXACT,
    Figure,
    Record,
    RunSource,
    cell,
    figure_of,
    finite,
    interval_words,
    percent_words,
    read_run,
)
from nip_ray.evaluation.report.trust import every_message, examined_words, heat_map, is_held_out, soundness_error

MAX_RUNS, MAX_GROUPS = 64, 8
SETTINGS_NAMED, SETTINGS_LISTED = 3, 60
_ACCURACY = "verifier/accuracy"
_ERROR = "soundness_error"
_CURVES = (
    ("eval/verifier/accuracy", "Accuracy, {}", "share of episodes"),
    ("train/verifier/accuracy", "Accuracy, training", "share of episodes"),
    ("eval/verifier/completeness", "Completeness, {}", "share of episodes"),
    ("eval/verifier/soundness", "Soundness, {}", "share of episodes"),
    ("train/verifier/undecided", "Undecided, training", "share of episodes"),
    ("train/episode_length", "Episode length, training", "rounds"),
)
_EXAMINED = ("on training instances", "evaluated", "held out")  # the first that applies to a run
_OVER_SEEDS = (
    "Over seeds: interquartile mean with a bootstrap 95 % interval, widened for few seeds (normality assumed below 5). "
    "A run alone: its own metric, with the interval of its episodes; another seed may lie far outside it."
)
_RUN_HEAD = (
    "run",
    "group",
    "seed",
    "iterations",
    "accuracy",
    "completeness",
    "soundness",
    "soundness error under attack",
)
_RUN_KEYS = (_ACCURACY, "verifier/completeness", "verifier/soundness", _ERROR)  # of its last columns
_OF_TRAINING = {"num_train", "min_wl_score"}  # keys of `scenario.data` that choose no held-out instance


@dataclass(frozen=True)
class Run:
    """A run with the name that distinguishes it from the others."""

    name: str
    source: RunSource

    @property
    def seed(self) -> str:
        """The seed in its config."""
        return short(self.source.config.get("seed", "?"), 20)


@dataclass(frozen=True)
class Group:
    """Runs that differ only in their seed. settings: dotted key -> value, of all settings that may not differ."""

    label: str
    runs: Sequence[Run]
    settings: Mapping[str, Any]


def write_comparison(run_dirs: Sequence[Path], out: Path, cross_play: Path | None = None) -> Path:
    """Write the page of these runs to `out`; return it. cross_play: the output of `nip-ray cross-play --out`, or None.

    Raises UserError for fewer than two runs, a folder that is not a run, the same run twice (also by config and seed),
    runs of different scenarios, protocols or held-out instances, an unreadable cross-play file, and an `out` that
    cannot be written.
    """
    from nip_ray.storage.files import write_atomically

    page = comparison_page(run_dirs, cross_play)
    if not out.parent.is_dir():
        raise UserError(f"--out {out}: there is no folder {out.parent}; make it, or name another file")
    if out.is_dir():
        raise UserError(f"--out {out}: is a folder; name a file in it, as in {out / 'comparison.html'}")
    write_atomically(out, page.encode("utf-8", errors="replace"))
    return out


def comparison_page(run_dirs: Sequence[Path], cross_play: Path | None = None) -> str:
    """The page itself; see `write_comparison`."""
    from nip_ray.evaluation.report import curves
    from nip_ray.evaluation.report.page import Section, sections

    crossed = {} if cross_play is None else _cross_play(cross_play)
    runs = _runs(run_dirs)
    _refuse_strangers(runs)
    groups = grouped(runs)
    _refuse_twins(groups)
    head, rows = _figures(groups)
    runs_of = [
        ("Runs", *((f"{len(group.runs)}", f"seed {', '.join(run.seed for run in group.runs)}") for group in groups))
    ]
    examined = _examined(groups)
    run_rows, notes = [], []
    for group in groups:
        for run in group.runs:
            iterations = f"{run.source.rows[-1]['iteration']:,.0f}"
            run_rows.append(
                [
                    run.name,
                    group.label,
                    run.seed,
                    iterations,
                    *(cell(_run_figure(run.source, key), True) for key in _RUN_KEYS),
                ]
            )
            notes += [f"{run.name}: {note}" for note in run.source.notes]
            if isinstance(run.source.evaluation.get("unseen"), dict) and (
                overlap := finite(run.source.evaluation.get("overlap"))
            ):
                notes.append(
                    f"{run.name}: its metrics leave out the {overlap:,.0f} evaluated instances that it was trained"
                    " with."
                )
    return sections(
        "comparison",
        f"{len(runs)} runs compared",
        _sentence(groups),
        [" ".join(describe(next((run.source.config for run in runs if run.source.config), {})))],
        [
            Section(
                "Metrics",
                head=[f"{examined}{_modes(runs)}", *head],
                rows=[*runs_of, *rows],
                figures=True,
                note=_OVER_SEEDS,
            ),
            Section(
                "Config differences", head=["setting", *head], rows=_differences(groups)[:SETTINGS_LISTED], code=True
            ),
            Section(
                "Learning curves",
                curves=curves.drawn(_panels(groups[:MAX_GROUPS])),
                note="The mean of a group's seeds, and their range.",
            ),
            Section("Cross-play", heat=heat_map(crossed)),
            Section("Runs", head=_RUN_HEAD, rows=run_rows),
        ],
        notes=notes,
        footer="Every key is defined in docs/metrics.md, this page in docs/report.md.",
    )


def grouped(runs: Sequence[Run]) -> list[Group]:
    """The groups in the order of their first runs, labelled by their differences."""
    found: dict[str, list[Run]] = {}
    settings: dict[str, dict[str, Any]] = {}
    for run in runs:
        own = flat({key: value for key, value in run.source.config.items() if key not in FREE_KEYS})
        # an unreadable config matches no other
        key = json.dumps(own, sort_keys=True, default=str) if own else run.name
        found.setdefault(key, []).append(run)
        settings[key] = own
    groups = [Group("", members, settings[key]) for key, members in found.items()]
    keys = [key for key, *_ in _differences(groups)]
    return [replace(group, label=_label(group, keys, groups)) for group in groups]


def _label(group: Group, keys: Sequence[str], groups: Sequence[Group]) -> str:
    """The settings that distinguish the group, or its first run's name where these are too many or ambiguous."""

    def told(one: Group) -> str:
        return ", ".join(
            f"{_name(key, group.settings)} {_value(one.settings.get(key))}" for key in keys[:SETTINGS_NAMED]
        )

    name = short(group.runs[0].source.config.get("name") or group.runs[0].name, 40)
    if not keys or len(keys) > SETTINGS_NAMED or sum(told(other) == told(group) for other in groups) > 1:
        others = [short(other.runs[0].source.config.get("name") or other.runs[0].name, 40) for other in groups]
        return name if others.count(name) == 1 else short(group.runs[0].name, 60)
    return told(group)


def _name(key: str, settings: Iterable[str]) -> str:
    """The last part of a key; with the one before it if another key ends alike, unless it is the algorithm's."""
    *above, last = key.split(".")
    alone = above == ["algorithm"] or sum(other.rpartition(".")[2] == last for other in settings) < 2
    return last if alone else ".".join([*above[-1:], last])


def _value(value: Any) -> str:
    return "–" if value is None else short(value, 30)


def _runs(run_dirs: Sequence[Path]) -> list[Run]:
    paths = [Path(run_dir) for run_dir in run_dirs]
    resolved = [path.resolve() for path in paths]
    if len(set(resolved)) < 2:
        raise UserError("compare: name at least two different runs")
    if len(set(resolved)) < len(resolved):
        twice = next(path for path, place in zip(paths, resolved) if resolved.count(place) > 1)
        raise UserError(f"compare: {twice} is named twice; name each run once")
    if len(paths) > MAX_RUNS:
        raise UserError(f"compare: {len(paths)} runs are too many for one page; name at most {MAX_RUNS}")
    return [Run(name, read_run(path)) for name, path in zip(names_apart(resolved), paths)]


def _refuse_strangers(runs: Sequence[Run]) -> None:
    """Raise UserError unless all runs have the same task, as far as they have configs."""
    for run in runs:
        if run.source.config_text and not run.source.config:
            raise UserError(
                f"compare: {run.name}/config.yaml is damaged, and without it the run's task is unknown; put it back"
                " from a copy, or leave the run out"
            )
    first, *others = [run for run in runs if run.source.config] or runs[:1]
    for run in others:
        for key in ("scenario", "protocol"):
            one, other = (short(section(each.source.config, key).get("name"), 60) for each in (first, run))
            if one != other:
                raise UserError(
                    f"compare: {first.name} has the {key} {one} and {run.name} {other}; name runs of one {key}"
                )
        one, other = _instances(first.source.config), _instances(run.source.config)
        key = next((key for key in {**one, **other} if one.get(key) != other.get(key)), None)
        if key is not None:
            raise UserError(
                f"compare: {first.name} and {run.name} have other held-out instances (scenario.{key}:"
                f" {_value(one.get(key))} and {_value(other.get(key))}); name runs with the same"
            )


def _instances(config: Mapping[str, Any]) -> dict[str, Any]:
    """Key -> value of a scenario's settings that choose the held-out instances."""
    scenario = section(config, "scenario")
    data = section(scenario, "data")
    if not data:
        return flat({key: value for key, value in scenario.items() if key != "agents"})
    left_out = set(_OF_TRAINING)
    if data.get("test") is not None:
        left_out.add("train")
        # the others define how pairs are made; the seed, which ones are taken
        if scenario.get("name") == "graph_isomorphism":
            left_out |= data.keys() - {"test", "num_test"} - ({"seed"} if data.get("num_test") is not None else set())
    return flat({key: value for key, value in data.items() if key not in left_out}, "data")


def _examined(groups: Sequence[Group]) -> str:
    """The description of the evaluated instances."""
    return (
        "held-out"
        if all(is_held_out(run.source) for group in groups for run in group.runs)
        else "on training instances"
    )


def _modes(runs: Sequence[Run]) -> str:
    """The mode of play of the evaluated episodes, as `_run_figure` chooses it, after a comma."""
    found = {
        next((mode for mode in ("greedy", "sampled") if section(run.source.evaluation, mode)), "") for run in runs
    } - {""}
    return f", {found.pop()}" if len(found) == 1 else ", greedy where so evaluated, else sampled" if found else ""


def _refuse_twins(groups: Sequence[Group]) -> None:
    """Raise UserError for a seed that a group has twice: a copy adds no information."""
    for group in groups:
        first: dict[str, Run] = {}
        for run in group.runs:
            twin = first.setdefault(run.seed, run)
            if twin is not run and "seed" in run.source.config:
                raise UserError(
                    f"compare: {twin.name} and {run.name} have the same config and the same seed, {run.seed}; name one"
                    " of them"
                )


def names_apart(paths: Sequence[Path]) -> list[str]:
    """The folders' names, with as many parent folders as needed to be unique."""
    depth, names = 1, [path.name for path in paths]
    while len(set(names)) < len(names):
        depth += 1
        names = ["/".join(path.parts[-depth:]) for path in paths]
    return names


def _cross_play(path: Path) -> Record:
    try:
        found = json.loads(path.read_bytes())
    except OSError as error:
        raise UserError(
            f"--cross-play {path}: cannot be read ({error.strerror}); name what `nip-ray cross-play --out` wrote"
        ) from None
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict) or heat_map(found) is None:
        raise UserError(
            f"--cross-play {path}: is damaged or no such document; name what `nip-ray cross-play --out` wrote"
        )
    return found


def flat(config: Any, prefix: str = "") -> dict[str, Any]:
    """Dotted key -> value of a config. Lists are values."""
    if not isinstance(config, dict):
        return {prefix: config}
    made: dict[str, Any] = {}
    for key, value in config.items():
        made |= flat(value, f"{prefix}.{key}" if prefix else str(key))
    return made


def _differences(groups: Sequence[Group]) -> list[tuple[str, ...]]:
    """(key, the value in each group ...) of the settings that differ."""
    keys = dict.fromkeys(key for group in groups for key in group.settings)
    rows = [(key, [_value(group.settings.get(key)) for group in groups]) for key in keys]
    return [(short(key, 80), *values) for key, values in rows if len(set(values)) > 1]


# -------------------------------------------------------------------------------------------------------------- figures


def _run_figure(source: RunSource, key: str) -> Figure | None:
    """A held-out metric of a run: greedy if so evaluated, an exact one, or the soundness error under attack."""
    if key == _ERROR:
        return soundness_error(source)
    exact = exact_figures(source).get(key)
    return Figure(exact) if exact is not None else held_out(source, "greedy", key) or held_out(source, "sampled", key)


def group_figure(group: Group, key: str) -> Figure | None:
    """The interquartile mean over a group's seeds with its interval; for a single run its own metric. n: runs, or the
    run's episodes."""
    found = _of_runs(group, key)
    if len(found) < 2:
        return found[0] if found else None
    counts = [figure.n for figure in found if figure.n and figure.lower != figure.upper]  # not of exact ones
    known = [counts] if _is_share(key) and len(counts) == len(found) else None
    return figure_of(stratified_interval([[figure.estimate for figure in found]], seed=0, n_KL=known).record())


def _of_runs(group: Group, key: str) -> list[Figure]:
    """The metrics of those of a group's runs that have it."""
    return [figure for run in group.runs if (figure := _run_figure(run.source, key)) is not None]


def _figures(groups: Sequence[Group]) -> tuple[list[str], list[list[Any]]]:
    """The heads of the columns, and a row for each metric that at least one group has."""
    sources = [run.source for group in groups for run in group.runs]
    paid = {f"{agent}/return": f"Return of {agent}" for source in sources for agent in agents(source.rows)}
    exact = {name: name for source in sources for name in exact_figures(source) if name.count("/") < 3}
    exhaustive = {
        every_message(source, "soundness") is not None for source in sources if soundness_error(source) is not None
    }
    how = ", in some runs over all messages, in others against attackers" if len(exhaustive) > 1 else ""
    labels = {**NAMES, _ERROR: f"Soundness error: false claims accepted under attack{how}", **paid, **exact}
    rows = []
    for key, label in labels.items():
        cells = [cell(group_figure(group, key), _is_share(key)) for group in groups]
        if any(figure for figure, _ in cells):
            rows.append([short(label, 120), *cells])
    return [group.label for group in groups], rows[:60]


def _is_share(key: str) -> bool:
    return key == _ERROR or (key.startswith("verifier/") and key in NAMES)


def _sentence(groups: Sequence[Group]) -> str:
    """The best group, and whether the difference is significant."""
    found = [(group, figure) for group in groups if (figure := group_figure(group, _ACCURACY)) is not None]
    if not found:
        return (
            f"{len(groups)} groups of runs, by everything in their configs but the seed. None has an evaluated"
            " accuracy."
        )
    found.sort(key=lambda pair: -pair[1].estimate)
    best, figure = found[0]
    examined = _examined(groups)
    sentence = f"{best.label}: {_words(best, figure, examined)}"
    if len(found) == 1:
        return f"{sentence}."
    second, other = found[1]
    few = min(len(_of_runs(group, _ACCURACY)) for group in (best, second)) < MIN_SEEDS
    known = figure.lower is not None and other.upper is not None
    apart = figure.estimate > other.estimate if not known else figure.against(other.upper or 0.0) == "above"
    words = (
        "no significant difference from" if not apart else "higher in these runs than" if few or not known else "above"
    )
    caution = f" With fewer than {MIN_SEEDS} seeds of each this compares runs, not settings." if apart and few else ""
    return f"{sentence}, {words} {second.label}: {_words(second, other, examined)}.{caution}"


def _words(group: Group, figure: Figure, examined: str) -> str:
    seeds = len(_of_runs(group, _ACCURACY))
    how = f"interquartile mean of {seeds} seeds" if seeds > 1 else "one seed"
    sure = interval_words(figure, True)
    sure = sure if sure in ("", EXACT) else f"95 % interval {sure}"
    what = "held-out accuracy" if examined == "held-out" else f"accuracy {examined}"
    return f"{percent_words(figure.estimate)} {what} ({how}{f', {sure}' if sure else ''})"


# --------------------------------------------------------------------------------------------------------------- curves


def _panels(groups: Sequence[Group]) -> list[Panel]:
    examined = next(
        words for words in _EXAMINED if words in {examined_words(run.source) for group in groups for run in group.runs}
    )
    named = list(_CURVES)
    names = dict.fromkeys(agent for group in groups for run in group.runs for agent in agents(run.source.rows))
    named += [
        (f"train/{agent}/return", f"Return of {agent}, training", "reward per episode") for agent in list(names)[:6]
    ]
    made = []
    for number, (key, title, unit) in enumerate(named):
        series = [one for colour, group in enumerate(groups) if (one := band(group, key, colour)) is not None]
        if series and varies(panel := Panel(f"compared_{number}", title.replace("{}", examined), unit, series)):
            made.append(panel)
    return made


def band(group: Group, key: str, colour: int) -> Series | None:
    """The mean over a group's seeds with their range; see `mean_and_range`."""
    curves = [
        curve for run in group.runs if (curve := {row["iteration"]: row[key] for row in run.source.rows if key in row})
    ]
    return mean_and_range(f"{group.label}{f' ({len(curves)} seeds)' if len(curves) > 1 else ''}", curves, colour)


def mean_and_range(label: str, curves: Sequence[Mapping[float, float]], colour: int) -> Series | None:
    """The mean of several curves (iteration -> value), the range, at the iterations that all have; None without any."""
    shared = sorted(set.intersection(*map(set, curves))) if curves else []
    if not shared:
        return None
    shared = thinned(shared, 800)
    y_SN = np.array([[curve[i] for i in shared] for curve in curves])
    spread = (y_SN.min(0), y_SN.max(0)) if len(curves) > 1 else None
    return Series(label, np.array(shared, dtype=np.float64), y_SN.mean(0), colour, "line", spread)
