"""Oversight against the gap in capability: accuracy and soundness over two settings, such as the depths of verifier and
provers, as a map.

Decisions that matter here:
- it needs exactly two settings that vary over listed values, and runs with verdicts. A setting of the verifier is the
  vertical axis, so that the gap between prover and verifier grows to the upper right;
- soundness is that under the strongest attacker, 1 - soundness error, if all runs of a cell were attacked at their end
  (`evaluation.attack.enabled`), else that against their own provers, and the map says which;
- a cell is the mean over the seeds that ran to their end, with the value of each (see `summary`); for one seed it has
  that run's own interval, over instances.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nip_ray.evaluation.report.source import Figure, figure_of, interval_words, percent_words
from nip_ray.evaluation.report.trust import CELLS_SHOWN, complement
from nip_ray.sweeps.spec import SweepSpec
from nip_ray.sweeps.summary import SettingSummary, Summary, each, short_names, show

ATTACKED, OWN = "soundness under attack", "soundness against its own provers"


def gap_map(folder: Path, spec: SweepSpec, summary: Summary) -> dict[str, Any] | None:
    """Variables of the heat map in the sweep's `folder` (trials/ID are its runs); None if there is none."""
    keys = sorted(spec.spaces, key=lambda key: ".verifier." not in key)
    if len(keys) != 2 or not all(spec.spaces[key].listed for key in keys):
        return None
    found = {
        tuple(show(one.values[key]) for key in keys): _cell(folder, one)
        for one in summary.settings
        if set(keys) <= set(one.values)
    }
    if not any(found.values()):
        return None
    every = [_ordered([one.values[key] for one in summary.settings if key in one.values]) for key in keys]
    down, across = (values[:CELLS_SHOWN] for values in every)
    most = max(map(len, every))
    names = short_names(keys)
    empty = {"text": "–", "interval": "", "step": "none", "own": False}
    rows = [
        {"name": row, "elo": None, "cells": [found.get((row, column)) or empty for column in across]} for row in down
    ]
    caption = (
        "Accuracy, which is shaded, and soundness: means over seeds, below them each seed's; of one seed its 95 %"
        " interval over instances."
    )
    return {
        "columns": across,
        "rows": rows,
        "cut": f"{CELLS_SHOWN} of {most} values shown; sweep.json has all." if most > CELLS_SHOWN else "",
        "roles": (names[keys[0]], names[keys[1]]),
        "elo": False,
        "last": [],
        "caption": (
            caption
            if any(one and "attack" in one["also"] for one in found.values())
            else f"{caption} No attack was made: evaluation.attack.enabled makes one at the end of each run."
        ),
    }


def _ordered(values: Sequence[Any]) -> list[str]:
    """Numbers by size, others in order of appearance."""
    numbers = all(isinstance(value, int | float) for value in values)
    return list(dict.fromkeys(map(show, sorted(values) if numbers else values)))


def _cell(folder: Path, setting: SettingSummary) -> dict[str, Any] | None:
    done = {trial.seed: trial for trial in setting.trials if trial.status == "done"}  # one that was repeated once
    runs = [_read(trial.run_dir or folder / "trials" / trial.trial_id) for trial in done.values()]
    told = [(*_played(run), figure_of(run.get("soundness_error"))) for run in runs]
    accuracies = [figure for figure, _, _ in told if figure is not None]
    if not accuracies:
        return None
    errors = [error for _, _, error in told if error is not None]
    attacked = len(errors) == len(told)
    sound = (
        [complement(error) for error in errors] if attacked else [figure for _, figure, _ in told if figure is not None]
    )
    also = f"{ATTACKED if attacked else OWN} {percent_words(_mean(sound))} {_spread(sound)}" if sound else ""
    step = round(10 * min(1.0, max(0.0, _mean(accuracies))))
    return {
        "text": percent_words(_mean(accuracies)),
        "interval": _spread(accuracies),
        "step": step,
        "own": False,
        "also": also,
    }


def _mean(figures: Sequence[Figure]) -> float:
    return sum(figure.estimate for figure in figures) / len(figures)


def _spread(figures: Sequence[Figure]) -> str:
    """For several seeds the value of each, for one its own interval; in hundredths."""
    return (
        interval_words(figures[0], True)
        if len(figures) == 1
        else each([round(100 * figure.estimate, 1) for figure in figures])
    )


def _played(document: Mapping[str, Any]) -> tuple[Figure | None, Figure | None]:
    """Accuracy and soundness on unseen instances if these are separate, greedy if available."""
    unseen = document.get("unseen")
    told = {**document, **unseen} if isinstance(unseen, dict) else document
    tables = [table for mode in ("greedy", "sampled") if isinstance(table := told.get(mode), dict)]
    accuracy, soundness = (
        figure_of(tables[0].get(f"verifier/{name}")) if tables else None for name in ("accuracy", "soundness")
    )
    return accuracy, soundness


def _read(run_dir: Path) -> dict[str, Any]:
    """A run's evaluation.json; {} if it is missing or damaged, which its own report shows."""
    try:
        found = json.loads((run_dir / "evaluation.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
