"""Verifiers of some runs against provers of others."""

import json
from pathlib import Path
from typing import Any

import pytest
from scipy import stats
from typer.testing import CliRunner

from nip_ray.cli import app
from nip_ray.errors import UserError
from nip_ray.evaluation.elo import fitted
from nip_ray.evaluation.report import report_page
from nip_ray.evaluation.report.trust import heat_map
from nip_ray.evaluation.verbs.cross_play import cross_play
from nip_ray.evaluation.verbs.over_time import cross_play_checkpoints
from nip_ray.runs.experiment import run_experiment
from nip_ray.scenarios.graph_isomorphism.build import graph_data
from nip_ray.scenarios.graph_isomorphism.dataset import save_pairs
from nip_ray.storage.folder import RunFolder
from tests.runs.small import MESSAGES, small

WIDE = "scenario.agents._default.d_gnn=8"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two seeds of one config, and one of another, whose networks are wider."""
    folder = tmp_path_factory.mktemp("cross play")
    made = [("a0", ["seed=0"]), ("a1", ["seed=1", "name=other-name"]), ("wide", ["seed=0", WIDE])]
    return [
        run_experiment(small("iterations=1", *changes), folder / name, quiet=True).run_dir for name, changes in made
    ]


def cells(found: dict[str, Any]) -> dict[tuple[str, str], dict[str, Any]]:
    return {(cell["verifier"], cell["prover"]): cell for cell in found["matrix"]}


@pytest.fixture(scope="module")
def found(runs: list[Path]) -> dict[str, Any]:
    return cross_play(runs)


def test_everyone_meets_everyone(found: dict[str, Any]) -> None:
    assert set(cells(found)) == {(v, p) for v in ("a0", "a1", "wide") for p in ("a0", "a1", "wide")}
    for cell in found["matrix"]:
        assert cell["accuracy"]["n"] == found["num_instances"] == 20
        exact = stats.binomtest(round(cell["accuracy"]["estimate"] * 20), 20).proportion_ci(method="exact")
        assert (cell["accuracy"]["lower"], cell["accuracy"]["upper"]) == pytest.approx((exact.low, exact.high))


def test_verifiers_and_provers_are_rated_apart(found: dict[str, Any]) -> None:
    names, table = ["a0", "a1", "wide"], cells(found)
    wins = [[table[v, p]["accuracy"]["estimate"] * 20 for p in names] for v in names]
    expected = fitted(wins, 20)
    for places, role in ((slice(0, 3), "verifier"), (slice(3, 6), "prover")):
        assert [one["name"] for one in found["elo"][role]] == names
        assert [one["estimate"] for one in found["elo"][role]] == pytest.approx(expected[places], abs=1e-6)
        assert all(one["lower"] < one["estimate"] < one["upper"] for one in found["elo"][role])


def test_with_its_own_prover_a_verifier_is_what_its_evaluation_says(found: dict[str, Any], runs: list[Path]) -> None:
    for run in runs:
        own = RunFolder.open(run).read_json("evaluation.json")["greedy"]
        for name in ("accuracy", "completeness", "soundness", "undecided"):
            assert cells(found)[run.name, run.name][name] == own[f"verifier/{name}"]


def test_runs_that_differ_in_their_seed_alone_are_a_group(found: dict[str, Any]) -> None:
    assert found["groups"] == ["a0", "wide"]
    assert {run["name"]: run["group"] for run in found["runs"]} == {"a0": "a0", "a1": "a0", "wide": "wide"}
    rows = {(row["verifiers"], row["provers"]): row for row in found["by_group"]}
    own = rows["a0", "a0"]
    assert own["accuracy"]["n"] == 2, "strangers alone"
    table = cells(found)
    strangers = [table["a0", "a1"]["accuracy"]["estimate"], table["a1", "a0"]["accuracy"]["estimate"]]
    assert own["accuracy"]["estimate"] == pytest.approx(sum(strangers) / 2)
    together = [table[name, name]["accuracy"]["estimate"] for name in ("a0", "a1")]
    assert own["accuracy_trained_together"]["estimate"] == pytest.approx(sum(together) / 2)
    assert rows["wide", "wide"]["accuracy"]["n"] == 0
    assert rows["a0", "wide"]["accuracy"]["n"] == 2


def test_the_command_line_prints_what_python_returns(found: dict[str, Any], runs: list[Path], tmp_path: Path) -> None:
    out = tmp_path / "any_name.json"
    result = CliRunner().invoke(app, ["cross-play", *map(str, runs), "--json", "--out", str(out)])
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout) == found
    written = json.loads(out.read_text())
    assert written["format"] == "nip_ray.cross_play"
    assert written["matrix"] == found["matrix"]
    table = CliRunner().invoke(app, ["cross-play", *map(str, runs)])
    assert table.exit_code == 0
    assert "a1" in table.stdout


def test_runs_with_other_data_meet_on_a_file(tmp_path: Path, runs: list[Path]) -> None:
    config = small("iterations=1", "scenario.data.seed=5")
    other = run_experiment(config, tmp_path / "other", quiet=True).run_dir
    with pytest.raises(UserError, match=r"other held-out instances.*--dataset"):
        cross_play([runs[0], other])
    scenario: Any = config.scenario
    save_pairs(graph_data(scenario.data)[1], tmp_path / "pairs.npz")
    assert cross_play([runs[0], other], dataset=tmp_path / "pairs.npz")["num_instances"] == 20


def test_sampled_play_depends_on_the_seed_alone(runs: list[Path]) -> None:
    found = [cross_play(runs[:2], greedy=False, seed=seed, max_instances=12) for seed in (0, 0, 1)]
    assert found[0] == found[1]
    assert found[0]["matrix"] != found[2]["matrix"]
    assert found[0]["num_instances"] == 12


def test_some_instances_are_drawn_from_all_of_them(tmp_path: Path, runs: list[Path]) -> None:
    """Also from a file in which one label stands before the other."""
    scenario: Any = small().scenario
    pairs = graph_data(scenario.data)[1]
    save_pairs(pairs.select(pairs.y_P.argsort()), tmp_path / "sorted.npz")
    found = cross_play(runs[:2], dataset=tmp_path / "sorted.npz", max_instances=10)
    for cell in found["matrix"]:
        assert min(cell["completeness"]["n"], cell["soundness"]["n"]) > 0
        assert cell["completeness"]["n"] + cell["soundness"]["n"] == 10


@pytest.mark.parametrize(
    ("overrides", "base", "words"),
    [
        ([], MESSAGES, "plays graph_isomorphism and .* message_game"),
        (["protocol.max_rounds=5"], None, "max_rounds=3 and .* max_rounds=5"),
        (["protocol={name: adp}"], None, "name=nip.* and .* name=adp"),
        (["scenario.data.graph_sizes=[7, 8]"], None, "has 7 nodes and that of .* 8, .*same largest graph"),
    ],
)
def test_those_who_cannot_meet_are_refused_in_one_line(
    tmp_path: Path, runs: list[Path], overrides: list[str], base: Any, words: str
) -> None:
    config = small("iterations=1", *overrides) if base is None else small("iterations=1", *overrides, base=base)
    other = run_experiment(config, tmp_path / "other", quiet=True).run_dir
    with pytest.raises(UserError, match=words):
        cross_play([runs[0], other])
    result = CliRunner().invoke(app, ["cross-play", str(runs[0]), str(other)])
    assert result.exit_code == 2
    assert result.stderr.count("\n") == 1


def test_all_checkpoints_of_a_run_meet(tmp_path: Path) -> None:
    """Its last verifier with its last prover is what the evaluation says; the table, the file and the report have the
    ratings."""
    config = small("iterations=3", "checkpoint={interval: 1, keep: null}", base=MESSAGES)
    kept = run_experiment(config, tmp_path / "run", quiet=True).run_dir
    out = kept / "cross_play.json"
    shown = CliRunner().invoke(app, ["cross-play", str(kept), "--checkpoints", "--json", "--out", str(out)])
    assert shown.exit_code == 0, shown.output
    found = json.loads(shown.stdout)
    names = [f"{n:06d}" for n in (1, 2, 3)]
    assert set(cells(found)) == {(v, p) for v in names for p in names}
    own = RunFolder.open(kept).read_json("evaluation.json")["greedy"]
    assert cells(found)[names[2], names[2]]["accuracy"] == own["verifier/accuracy"]
    assert [one["name"] for one in found["elo"]["verifier"]] == names
    assert sum(one["estimate"] for role in found["elo"].values() for one in role) == pytest.approx(0, abs=1e-6)
    table = CliRunner().invoke(app, ["cross-play", str(kept), "--checkpoints"])
    assert "prover 3" in table.stdout
    page = report_page(kept)[0]
    assert "Elo" in page
    assert f"{found['elo']['verifier'][0]['estimate']:.0f}" in page


def test_players_of_a_game_without_a_verifier_meet_by_what_they_are_paid(tmp_path: Path) -> None:
    game = ["protocol={name: kuhn_poker}", "scenario={name: matrix_game, game: kuhn_poker}"]
    config = small("iterations=2", "checkpoint={interval: 1, keep: null}", *game, base=MESSAGES)
    found = cross_play_checkpoints(run_experiment(config, tmp_path / "run", quiet=True).run_dir, greedy=False)
    assert found["roles"] == ["player0", "player1"]
    for cell in found["matrix"]:
        assert {cell["player0"], cell["player1"]} <= {"000001", "000002"}
        won = cell["score"]["estimate"] * cell["score"]["n"]  # nobody draws in Kuhn poker
        assert won == pytest.approx(round(won))
        assert abs(cell["return"]["estimate"]) <= 2
    assert heat_map(found) is not None


def test_a_table_over_time_needs_one_run_and_two_checkpoints(runs: list[Path]) -> None:
    with pytest.raises(UserError, match=r"has 1, and needs two; set checkpoint\.keep=null"):
        cross_play_checkpoints(runs[0])
    result = CliRunner().invoke(app, ["cross-play", *map(str, runs), "--checkpoints"])
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
