"""What a sweep came to: who is best, how sure that is, and what a failed or stopped seed does to it."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nip_ray.settings.sweep import SweepSettings
from nip_ray.sweeps.summary import Status, Summary, TrialRecord, as_json, headline, summarise, table_rows

METRIC = "eval/verifier/accuracy"
SETTINGS = SweepSettings(metric=METRIC)


def trial(lr: float, seed: int, figure: float | None, status: Status = "done", **more: Any) -> TrialRecord:
    metrics = {} if figure is None else {METRIC: figure}
    return TrialRecord(f"{lr}-{seed}", {"algorithm.lr": lr}, seed, status, Path("x"), 10, metrics, seconds=2.0, **more)


def best_lr(trials: list[TrialRecord], settings: SweepSettings = SETTINGS) -> float | None:
    best = summarise(settings, trials).best
    return None if best is None else best.values["algorithm.lr"]


def test_settings_are_grouped_by_their_values_and_show_each_seed() -> None:
    values = [0.5, 0.6, 0.8]
    trials = [trial(1e-3, 2, values[2]), trial(1e-2, 0, 0.7), trial(1e-3, 0, values[0]), trial(1e-3, 1, values[1])]
    summary = summarise(SETTINGS, trials)
    first, second = summary.settings
    assert (first.values, first.seeds, first.figures) == ({"algorithm.lr": 1e-3}, (0, 1, 2), (0.5, 0.6, 0.8)), (
        "in the order of appearance"
    )
    assert first.mean == pytest.approx(sum(values) / 3)
    assert second.figures == (0.7,)
    assert (first.rank, second.rank) == (2, 1)
    assert summary.best is second
    assert summary.best_trial is not None
    assert summary.best_trial.trial_id == "0.01-0"
    assert (summary.statuses, summary.seconds) == ({"done": 4}, 8.0)


def test_a_seed_counts_once_though_a_search_tried_its_setting_twice() -> None:
    summary = summarise(SETTINGS, [trial(1e-3, 0, 0.9), trial(1e-3, 0, 0.9)])
    assert summary.settings[0].figures == (0.9,)
    assert "one seed" in summary.note
    trials = [trial(1e-3, 0, 0.9), trial(1e-3, 0, 0.9), trial(1e-2, 0, 0.3)]
    assert best_lr(trials) == 1e-3, "it is complete"
    assert table_rows(summarise(SETTINGS, trials))[1][0][2] == "0"


def test_where_one_seed_fails_every_seed_stands_beside_the_mean() -> None:
    """Student's interval of such seeds holds the mean of all seeds in two cases of three; no interval is claimed."""
    for figures, shown in (
        ((0.97, 0.97, 0.86, 0.97, 0.97), "0.97, 0.97, 0.86, 0.97, 0.97"),
        ((0.97,) * 11 + (0.86,), "0.86 to 0.97"),
    ):
        summary = summarise(SETTINGS, [trial(1e-3, seed, figure) for seed, figure in enumerate(figures)])
        header, rows = table_rows(summary)
        assert shown in rows[0]
        assert shown in headline(summary)
        assert "interval" not in f"{header} {headline(summary)}"
        assert "lower" not in as_json(summary)["settings"][0]
        assert as_json(summary)["settings"][0]["figures"] == list(figures)


def test_the_best_setting_is_best_in_the_mean_and_its_best_trial_in_the_figure() -> None:
    trials = [trial(1, 0, 0.9), trial(1, 1, 0.1), trial(2, 0, 0.6), trial(2, 1, 0.7)]
    assert best_lr(trials) == 2
    assert best_lr(trials, SweepSettings(metric=METRIC, mode="min")) == 1
    assert summarise(SETTINGS, trials).best_trial == trials[3]
    assert summarise(SweepSettings(metric=METRIC, mode="min"), trials).best_trial == trials[1]


@pytest.mark.parametrize("status", ["stopped", "failed", "unfinished"])
def test_a_setting_with_a_seed_that_did_not_end_is_best_only_without_another(status: Status) -> None:
    trials = [trial(1, 0, 0.9), trial(1, 1, 0.95, status), trial(2, 0, 0.6), trial(2, 1, 0.6)]
    summary = summarise(SETTINGS, trials)
    assert best_lr(trials) == 2
    assert summary.settings[0].mean == 0.9, "only seeds that ran to their end count"
    assert summary.settings[0].last == 0.95
    alone = summarise(SETTINGS, trials[:2])
    assert best_lr(trials[:2]) == 1
    assert "No setting has all its seeds trained to the end" in alone.note
    assert alone.best_trial == trials[0], "the one that ran to its end, though the other's figure is better"


def test_settings_of_which_no_trial_ended_come_last_and_are_ranked_by_what_is_known() -> None:
    trials = [trial(1, 0, 0.99, "stopped"), trial(2, 0, 0.98, "stopped"), trial(3, 0, None, "failed"), trial(4, 0, 0.1)]
    summary = summarise(SETTINGS, trials)
    assert [setting.rank for setting in summary.settings] == [2, 3, 4, 1]
    assert best_lr(trials[:3]) == 1
    assert headline(summarise(SETTINGS, trials[:3])).startswith("No trial ran to its end; lr = 1 was at")


def test_without_any_figure_there_is_no_best() -> None:
    for trials in ([], [trial(1, 0, None, "failed")], [trial(1, 0, math.nan)]):
        summary = summarise(SETTINGS, trials)
        assert (summary.best, summary.best_trial, summary.note) == (None, None, "")
        assert headline(summary) == f"No trial has the metric {METRIC}."
        json.dumps(as_json(summary), allow_nan=False)


def test_a_figure_that_the_last_row_lacks_is_taken_from_the_curve() -> None:
    record = TrialRecord("a", {}, 0, "done", metrics={"other": 1.0}, curve=[(5, 0.4), (10, 0.6)])
    assert summarise(SETTINGS, [record]).settings[0].mean == 0.6


def test_the_note_says_that_the_best_of_several_is_flattered_and_how_many_may_be_as_good() -> None:
    trials = [
        trial(lr, seed, 0.5 + 0.1 * seed + shift)
        for lr, shift in ((1, 0.0), (2, 0.05), (3, -0.6))
        for seed in (0, 1, 2)
    ]
    note = summarise(SETTINGS, trials).note
    assert "The best of 3 settings is chosen by the metrics shown here" in note
    assert "1 other setting has a seed at least as good as its worst." in note
    other_way = summarise(SweepSettings(metric=METRIC, mode="min"), trials).note
    assert "as good" not in other_way
    assert "one seed" in summarise(SETTINGS, [trial(1, 0, 0.5)]).note
    assert (
        "1 other has the very same figure."
        in summarise(SETTINGS, [trial(1, 0, 0.5), trial(2, 0, 0.5), trial(3, 0, 0.4)]).note
    )
    assert "same figure" not in note
    assert "chosen" not in summarise(SETTINGS, [trial(1, 0, 0.5)]).note


def test_the_headline_says_which_setting_with_what_and_how_sure() -> None:
    trials = [trial(1e-3, 0, 0.8), trial(1e-3, 1, 0.9), trial(0.1, 0, 0.5)]
    said = headline(summarise(SETTINGS, trials))
    assert said.startswith(f"Best of 2 settings: lr = 0.001, {METRIC} 0.85 (mean of 2 seeds: 0.8, 0.9).")
    assert [table_rows(summarise(SETTINGS, some))[0][2] for some in (trials, trials[2:])] == ["seeds", "seed"]
    assert headline(summarise(SETTINGS, trials[2:])) == f"lr = 0.1: {METRIC} 0.5 (of one seed)."


FIGURES = st.none() | st.floats(-1e6, 1e6) | st.just(math.nan)
ENDS = st.sampled_from(["done", "stopped", "failed", "unfinished"])
TRIALS = st.lists(st.tuples(st.sampled_from([1.0, 2.0, 3.0]), FIGURES, ENDS), max_size=12)


@given(TRIALS, st.sampled_from(["max", "min"]))
def test_no_setting_is_placed_before_a_better_one_of_its_kind(
    found: list[tuple[float, float | None, Status]], mode: Any
) -> None:
    trials = [trial(lr, i, figure, status) for i, (lr, figure, status) in enumerate(found)]
    summary: Summary = summarise(SweepSettings(metric=METRIC, mode=mode), trials)
    assert sorted(setting.rank for setting in summary.settings) == list(range(1, len(summary.settings) + 1))
    assert sum(len(setting.trials) for setting in summary.settings) == len(trials)
    complete = [setting for setting in summary.ranked if setting.complete and setting.trials]
    assert summary.ranked[: len(complete)] == complete, "complete ones come first"
    figures = [setting.mean for setting in complete]
    assert figures == sorted(figures, reverse=mode == "max")
    content = as_json(summary)
    assert json.loads(json.dumps(content, allow_nan=False)) == content
    header, rows = table_rows(summary)
    assert all(isinstance(cell, str) for row in [header, *rows] for cell in row)
