"""Runs side by side: which are one group, what stands for a group, and what is refused."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from nip_ray.errors import UserError
from nip_ray.evaluation.aggregates import interquartile_mean
from nip_ray.evaluation.intervals import proportion
from nip_ray.evaluation.report.compare import Run, band, comparison_page, group_figure, grouped, write_comparison
from nip_ray.evaluation.report.source import read_run


def run_folder(path: Path, seed: int, right: int, lr: float = 0.1, rows: int = 6, **config: Any) -> Path:
    path.mkdir(parents=True)
    settings = {
        "name": "tried",
        "seed": seed,
        "algorithm": {"name": "ppo", "lr": lr},
        "runtime": {"num_threads": seed + 1},
        **config,
    }
    (path / "config.yaml").write_text(yaml.safe_dump(settings))
    every = {"version": 1, "train/verifier/return": 0.0}
    made = [{"iteration": i, **every, "eval/verifier/accuracy": 0.5 + 0.01 * i * seed} for i in range(1, rows + 1)]
    (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in made))
    paid = {"estimate": 0.25, "lower": 0.2, "upper": 0.3, "n": 9}
    table = {"verifier/accuracy": proportion(right, 100).record(), "verifier/return": paid}
    (path / "evaluation.json").write_text(json.dumps({"format": "nip_ray.evaluation", "version": 1, "greedy": table}))
    return path


@pytest.fixture
def folders(tmp_path: Path) -> list[Path]:
    """Three seeds of one setting, two of another."""
    slow = [run_folder(tmp_path / f"slow-{seed}", seed, 60 + seed) for seed in (1, 2, 3)]
    return [*slow, *(run_folder(tmp_path / f"fast-{seed}", seed, 90 + seed, lr=0.2) for seed in (1, 2))]


def runs_of(folders: list[Path]) -> list[Run]:
    return [Run(folder.name, read_run(folder)) for folder in folders]


def test_runs_that_differ_in_their_seed_alone_are_one_group(folders: list[Path]) -> None:
    groups = grouped(runs_of(folders))
    assert [[run.name for run in group.runs] for group in groups] == [
        ["slow-1", "slow-2", "slow-3"],
        ["fast-1", "fast-2"],
    ]
    assert [group.label for group in groups] == ["lr 0.1", "lr 0.2"]


def test_a_group_has_the_interquartile_mean_and_a_single_run_its_own_interval(folders: list[Path]) -> None:
    groups = grouped(runs_of(folders[:4]))
    figure, alone = (group_figure(group, "verifier/accuracy") for group in groups)
    assert figure.estimate == pytest.approx(interquartile_mean([0.61, 0.62, 0.63]))
    assert figure.lower < 0.57, "three seeds of a hundred episodes each"
    assert figure.upper > 0.67
    assert (alone.estimate, alone.lower, alone.n) == (0.91, proportion(91, 100).lower, 100)


def test_a_band_holds_where_all_seeds_are(tmp_path: Path) -> None:
    short, long = (run_folder(tmp_path / str(seed), seed, 50, rows=rows) for seed, rows in ((1, 4), (3, 6)))
    (group,) = grouped(runs_of([short, long]))
    series = band(group, "eval/verifier/accuracy", 0)
    assert series.x_N.tolist() == [1, 2, 3, 4]
    assert series.y_N.tolist() == pytest.approx([0.52, 0.54, 0.56, 0.58])
    assert np.array(series.spread).T[-1].tolist() == pytest.approx([0.54, 0.62])


def test_the_page_says_who_is_ahead_and_in_what_they_differ(folders: list[Path]) -> None:
    page = comparison_page(folders)
    assert "lr 0.2: 91.5\u00a0% held-out accuracy (interquartile mean of 2 seeds, 95 % interval " in page
    assert "), higher in these runs than lr 0.1: 62.0" in page
    assert "With fewer than 5 seeds of each this compares runs, not settings." in page
    assert "<code>algorithm.<wbr>lr</code>" in page
    assert 'Return of verifier</th><td class="n">0.25<' in page  # a reward, not a share
    assert "runtime.num_threads" not in page


def test_a_setting_is_better_than_another_once_there_are_five_seeds_of_each(tmp_path: Path) -> None:
    slow = [run_folder(tmp_path / f"slow-{seed}", seed, 60 + seed) for seed in range(5)]
    fast = [run_folder(tmp_path / f"fast-{seed}", seed, 90 + seed, lr=0.2) for seed in range(5)]
    page = comparison_page([*slow, *fast])
    assert "), above lr 0.1: 62.0" in page
    assert "With fewer than" not in page
    same = [run_folder(tmp_path / f"same-{seed}", seed, 61 + seed, lr=0.3) for seed in range(5)]
    assert "no significant difference from lr 0.1" in comparison_page([*slow, *same])


def test_seeds_that_agree_have_the_interval_of_their_episodes(tmp_path: Path) -> None:
    (group,) = grouped(runs_of([run_folder(tmp_path / str(seed), seed, 80) for seed in range(3)]))
    figure, paid = group_figure(group, "verifier/accuracy"), group_figure(group, "verifier/return")
    assert (figure.lower, figure.upper) == pytest.approx((0.753, 0.842), abs=0.01)
    assert paid.lower is None, "a reward is no share: that three seeds agree says nothing of the next"


def test_a_copied_run_is_no_second_seed(folders: list[Path]) -> None:
    copy = run_folder(folders[0].parent / "copy", 1, 61)
    with pytest.raises(UserError, match="slow-1 and copy have the same config and the same seed, 1; name one of them"):
        comparison_page([*folders, copy])


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({"scenario": {"name": "graph_isomorphism"}}, "name runs of one scenario"),
        ({"protocol": {"name": "debate"}}, "name runs of one protocol"),
        (
            {"scenario": {"name": "image_classification", "data": {"seed": 1}}},
            r"other held-out instances \(scenario.data.seed: 0 and 1\)",
        ),
    ],
)
def test_runs_that_were_asked_something_else_are_refused(tmp_path: Path, other: dict[str, Any], words: str) -> None:
    config: dict[str, Any] = {
        "protocol": {"name": "nip"},
        "scenario": {"name": "image_classification", "data": {"seed": 0}},
    }
    folders = [run_folder(tmp_path / "a", 1, 60, **config), run_folder(tmp_path / "b", 2, 60, **(config | other))]
    with pytest.raises(UserError, match=words):
        comparison_page(folders)


def test_training_on_other_graphs_is_no_other_question_where_held_out_pairs_are_a_file(tmp_path: Path) -> None:
    folders = []
    for number, data in enumerate(({"seed": 0, "graph_sizes": [7]}, {"seed": 1, "graph_sizes": [8]})):
        scenario = {"name": "graph_isomorphism", "data": {"test": "x.npz", "num_test": None, **data}}
        folders.append(run_folder(tmp_path / str(number), number, 60, scenario=scenario))
        document = json.loads((folders[-1] / "evaluation.json").read_text())
        lied = {"soundness_error": proportion(1 + number, 50).record()}
        attack = {"attack": {"soundness": {"every_message": proportion(49, 50).record() if number else None}}}
        told = {"held_out": False, "overlap": 7, "unseen": {"greedy": document["greedy"]}} if number else {}
        (folders[-1] / "evaluation.json").write_text(json.dumps({**document, **lied, **attack, **told}))
    page = comparison_page(folders)
    assert "1: its metrics leave out the 7 evaluated instances that it was trained with." in page
    assert "under attack, in some runs over all messages, in others against attackers" in page
    config = folders[1] / "config.yaml"
    config.write_text(config.read_text().replace("x.npz", "y.npz"))
    with pytest.raises(UserError, match=r"scenario\.data\.test: x\.npz and y\.npz"):
        comparison_page(folders)


def test_it_is_one_file_without_scripts(folders: list[Path], tmp_path: Path) -> None:
    cell = {"verifier": "slow-1", "prover": "fast-1", "accuracy": proportion(3, 4).record()}
    (tmp_path / "crossed.json").write_text(json.dumps({"matrix": [cell]}))
    page = write_comparison(folders, tmp_path / "page.html", tmp_path / "crossed.json").read_text()
    assert not any(word in page for word in ("<script", "script-src", "unsafe"))
    assert "Cross-play" in page
