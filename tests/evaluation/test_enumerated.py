"""Games whose situations are all played have exact figures, and no intervals as if 1,024 instances had been drawn."""

from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from nip_ray.cli import app
from nip_ray.evaluation.enumerated import as_exact, attack_as_exact, distinct_part
from nip_ray.evaluation.report.source import figure_of, interval_words, sure_words
from nip_ray.evaluation.verbs.cross_play import cross_play
from nip_ray.evaluation.verbs.evaluate import evaluate_run
from nip_ray.evaluation.verbs.paired import compare_paired, pair_record
from nip_ray.runs.experiment import run_experiment
from nip_ray.scenarios.registry import played_scenario
from tests.runs.small import MESSAGES, small


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("enumerated")
    return [
        run_experiment(small("iterations=1", f"seed={seed}", base=MESSAGES), folder / str(seed), quiet=True).run_dir
        for seed in (0, 1)
    ]


def test_greedy_figures_count_situations_and_have_no_interval(runs: list[Path]) -> None:
    figures = evaluate_run(runs[0])
    secrets = 4
    whole = figures["greedy"]["verifier/accuracy"]
    assert (whole["n"], whole["exact"]) == (secrets, True)
    assert whole["lower"] == whole["estimate"] == whole["upper"]
    assert figures["greedy"]["verifier/completeness"]["n"] == secrets / 2
    assert figures["message_value"]["heard"]["exact"]
    assert figures["message_value"]["silenced"]["lost"]["exact"]
    assert "exact" not in figures["message_value"]["shuffled"]["accuracy"]  # by whom a message is replaced is drawn
    sampled = figures["sampled"]["verifier/accuracy"]
    assert sampled["n"] == 1024
    assert sampled["lower"] < sampled["upper"]
    shown = CliRunner().invoke(app, ["evaluate", str(runs[0])]).output
    assert any("eval/verifier/accuracy " in line and "exact" in line for line in shown.splitlines())


def test_two_runs_are_compared_exactly_and_without_a_test(runs: list[Path]) -> None:
    record = compare_paired(*runs)["accuracy"]
    assert record["p"] is None
    assert record["difference"]["exact"]
    assert record["first"]["n"] == 4
    assert record["only_first"] + record["only_second"] <= 4
    assert "exact" in CliRunner().invoke(app, ["compare", "--paired", *map(str, runs)]).output
    found = cross_play(runs)
    assert all(cell["accuracy"]["exact"] for cell in found["matrix"])
    assert {one["n"] for one in found["elo"]["verifier"]} == {4}, "a game for each situation, not for each copy"
    assert found["matrix"][0]["accuracy"]["n"] == 4
    assert "exact" not in cross_play(runs, greedy=False)["matrix"][0]["accuracy"]


def test_a_sample_of_the_situations_is_not_exact() -> None:
    config = small(base=MESSAGES)
    scenario = played_scenario(config.protocol, config.scenario, config.algorithm)
    ids = scenario.ids("test")
    assert distinct_part(scenario, ids) == 4 / 1024
    assert distinct_part(scenario, ids[:3]) is None
    first = [int((scenario.situation_I() == secret).nonzero()[0]) for secret in range(4)]
    assert distinct_part(scenario, torch.tensor(first)) == 1
    assert distinct_part(scenario, torch.tensor([*first, first[0]])) is None, "all, but not equally often"
    assert distinct_part(played_scenario(small().protocol, small().scenario, small().algorithm), ids[:3]) is None


def test_records_of_drawn_attackers_keep_their_intervals() -> None:
    record = {"estimate": 0.5, "lower": 0.4, "upper": 0.6, "n": 512}
    rows = [{"mode": mode, "chosen": mode == "greedy", "held_out": record} for mode in ("sampled", "greedy")]
    entries = {
        "soundness_error": record,
        "attack": {"soundness": {"attackers": rows, "every_message": None}, "seed": 0},
    }
    found = attack_as_exact(entries, 4 / 1024)
    sampled, greedy = found["attack"]["soundness"]["attackers"]
    assert sampled["held_out"] == record
    assert greedy["held_out"]["n"] == 2
    assert found["soundness_error"]["exact"]
    assert attack_as_exact(entries, None) is entries
    drawn = attack_as_exact({**entries, "attack": {**entries["attack"], "verifier": "sampled"}}, 4 / 1024)
    assert drawn["attack"]["soundness"]["attackers"] == rows, "the verifier draws its actions, too"
    assert drawn["soundness_error"] == record
    assert as_exact([record], None) == [record]


def test_pages_write_exact_where_an_interval_would_stand() -> None:
    figure = figure_of({"estimate": 0.75, "lower": 0.75, "upper": 0.75, "n": 4})
    assert figure is not None
    assert interval_words(figure, True) == "exact"
    assert sure_words(figure) == " (exact)"
    half = np.array([True, False] * 4)
    assert pair_record(half, ~half, 0.5)["only_first"] == 2
