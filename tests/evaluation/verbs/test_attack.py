"""`evaluate --attack` and runs that end with an attack: what is found, and how it joins a run's other figures in
`evaluation.json`."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from nip_ray.cli import app
from nip_ray.config.rules import check
from nip_ray.errors import UserError
from nip_ray.evaluation.attack_table import ENTRIES
from nip_ray.evaluation.verbs.evaluate import evaluate_run
from nip_ray.evaluation.verbs.kept_attack import can_be_kept, carried, keep, merged
from nip_ray.runs.experiment import run_experiment
from nip_ray.scenarios.graph_isomorphism.build import graph_data
from nip_ray.scenarios.graph_isomorphism.dataset import save_pairs
from nip_ray.settings.graph_isomorphism import GraphIsomorphismSettings
from nip_ray.storage.folder import RunFolder
from tests.runs.small import GRAPHS, small

SOUNDNESS = "evaluation.attack.goals=[soundness]"
SHORT = [
    f"evaluation.attack.{setting}" for setting in ("iterations=1", "copies=8", "seeds=1", "sizes=[1,2]", "max_nodes=0")
]
MATRIX: dict[str, Any] = {
    **{key: GRAPHS[key] for key in ("seed", "iterations", "play", "evaluation", "checkpoint", "runtime")},
    "name": "small-matrix",
    "protocol": {"name": "matrix_game"},
    "scenario": {"name": "matrix_game", "game": "matching_pennies"},
    "algorithm": {"num_epochs": 1, "minibatch_size": 16},
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_experiment(small("iterations=2", *SHORT), tmp_path_factory.mktemp("attack") / "run", quiet=True).run_dir


@pytest.fixture
def copy(run: Path, tmp_path: Path) -> Path:
    """One that may be written to."""
    return Path(shutil.copytree(run, tmp_path / "copy"))


def evaluation(run: Path) -> dict[str, Any]:
    return RunFolder.open(run).read_json("evaluation.json")


def records(value: Any) -> list[dict[str, Any]]:
    """Everything that has an estimate."""
    if isinstance(value, list):
        return [found for part in value for found in records(part)]
    if not isinstance(value, dict):
        return []
    here = [value] if "estimate" in value else []
    return here + [found for part in value.values() for found in records(part)]


def test_a_run_without_an_attack_says_nothing_of_one(run: Path) -> None:
    document = evaluation(run)
    assert "soundness_under_attack" not in document
    assert {"worst_case", "calibration", "message_value"} <= set(document)
    assert document["worst_case"]["episodes"] == 5


def test_every_number_has_its_sample_size_and_interval(copy: Path) -> None:
    found = evaluate_run(copy, attacked=True)
    document = evaluation(copy)
    assert len(records(document)) > 60
    for record in records({**document, **{key: found[key] for key in ("attack", "soundness_under_attack")}}):
        assert {"estimate", "lower", "upper", "n"} <= set(record)
        if record["lower"] is not None and record["n"]:
            assert record["lower"] <= record["estimate"] <= record["upper"]


def test_the_command_line_prints_what_python_returns_and_keeps_it(copy: Path) -> None:
    before = evaluation(copy)
    result = CliRunner().invoke(app, ["evaluate", str(copy), "--attack", "--json"])
    assert result.exit_code == 0, result.output
    assert len(result.stdout.splitlines()) == 1
    printed = json.loads(result.stdout)
    record = printed["soundness_under_attack"]
    assert {"estimate", "lower", "upper", "n", "attacker"} <= set(record)
    assert record["n"] == printed["soundness_error"]["n"] == 10
    names = [row["name"] for row in printed["attack"]["soundness"]["attackers"]]
    fresh = [f"fresh/size={size}/seed=0" for size in (1, 2)]
    assert names == [*fresh, "continued/seed=0", "own", "random", "silent", "manual", "search"]
    after = evaluation(copy)
    assert {key: after[key] for key in before} == before, "the other figures are those of the run"
    assert {key: after[key] for key in ENTRIES["soundness"]} == {key: printed[key] for key in ENTRIES["soundness"]}
    again = evaluate_run(copy, attacked=True)
    assert {**again["attack"], "seconds": 0} == {**printed["attack"], "seconds": 0}


def test_a_run_can_end_with_an_attack(tmp_path: Path) -> None:
    made = run_experiment(
        small("iterations=2", "evaluation.attack.enabled=true", *SHORT), tmp_path / "run", quiet=True
    ).run_dir
    document = evaluation(made)
    alone = evaluate_run(made, attacked=True)
    assert document["soundness_under_attack"] == alone["soundness_under_attack"], (
        "the same afterwards, from the checkpoint"
    )
    assert document["worst_case"] == alone["worst_case"]


def test_attackers_never_learn_on_what_the_verifier_is_measured_on(run: Path, tmp_path: Path) -> None:
    """Measured on a file, they learn on the run's own training pairs."""
    settings = small().scenario
    assert isinstance(settings, GraphIsomorphismSettings)
    pairs = graph_data(settings.data)[1]
    save_pairs(pairs.select(pairs.y_P == 0), tmp_path / "negatives.npz")
    found = evaluate_run(run, dataset=tmp_path / "negatives.npz", attacked=True)
    assert found["soundness_under_attack"]["n"] == 10
    assert found["attack"]["soundness"]["attackers"][0]["selection"]["n"] == 15, (
        "half of the run's 30 negative training pairs"
    )


def test_settings_can_be_changed_for_one_evaluation(run: Path) -> None:
    changed = [
        "evaluation.attack.goals=[completeness]",
        "evaluation.max_instances=8",
        "evaluation.worst_case_episodes=0",
    ]
    found = evaluate_run(run, attacked=True, settings=changed)
    assert "refusal" in found
    assert "soundness_error" not in found
    assert found["num_instances"] == 8
    with pytest.raises(UserError, match=r"evaluation\.… only"):
        evaluate_run(run, settings=["algorithm.lr=1"])


@pytest.mark.parametrize(
    ("base", "overrides", "words"),
    [
        (MATRIX, [], "has no verifier"),
        (GRAPHS, ["protocol={name: solo_verifier}", "algorithm.minibatch_size=16"], "no prover who could fool"),
        (GRAPHS, ["algorithm={name: solo, agent: verifier, minibatch_size: 16}"], "learns alone"),
    ],
)
def test_an_attack_that_is_impossible_at_the_end_of_a_run_is_a_fault_of_its_config(
    base: dict[str, Any], overrides: list[str], words: str
) -> None:
    with pytest.raises(UserError, match=words):
        check(small("evaluation.attack.enabled=true", *overrides, base=base))


def entries(goal: str, right: float, seed: int = 0) -> dict[str, Any]:
    figures = {name: {"estimate": right} for name in ENTRIES[goal]}
    return {**figures, "attack": {"seed": seed, "settings": {}, goal: {"attackers": [], "seed": seed}}}


def test_goals_are_kept_one_by_one() -> None:
    first = merged({"iteration": 3, "greedy": {}}, entries("soundness", 0.5))
    second = merged(first, entries("completeness", 0.9, seed=7))
    assert {"iteration", "greedy", *ENTRIES["soundness"], *ENTRIES["completeness"], "attack"} == set(second)
    assert (
        second["attack"]["soundness"]["seed"],
        second["attack"]["completeness"]["seed"],
        second["attack"]["seed"],
    ) == (0, 7, 7)
    assert merged(second, entries("soundness", 0.1))["soundness_under_attack"] == {"estimate": 0.1}


@pytest.mark.parametrize("attack", [None, 5, {}, {"completeness": {}}])
def test_a_figure_without_its_table_and_a_table_without_its_figure_go(attack: Any) -> None:
    found = merged({"soundness_under_attack": {"estimate": 0.5}, "attack": attack}, entries("completeness", 0.9))
    assert set(found) == {"completeness_under_attack", "attack"}
    assert found["attack"]["completeness"] == {"attackers": [], "seed": 0}


def test_metrics_of_the_same_checkpoint_keep_the_attack(tmp_path: Path) -> None:
    about = {"iteration": 3, "split": "test", "num_instances": 20}
    with RunFolder.create(tmp_path / "run", "") as folder:
        assert carried(folder, about) == about
        folder.write_json("evaluation.json", merged({**about, "greedy": {"old": 1}}, entries("soundness", 0.5)))
        kept = carried(folder, {**about, "greedy": {}})
        assert (kept["greedy"], kept["attack"]["soundness"]["seed"]) == ({}, 0)
        assert {*ENTRIES["soundness"]} < {*kept}
        for change in ({"iteration": 4}, {"num_instances": 8}):
            assert carried(folder, {**about, **change}) == {**about, **change}


def test_an_attack_about_other_instances_leaves_the_file_alone(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = (copy / "evaluation.json").read_bytes()
    found = evaluate_run(copy, attacked=True, seed=99, settings=["evaluation.max_instances=8", SOUNDNESS])
    assert (found["num_instances"], found["attack"]["seed"]) == (8, 99)
    assert (copy / "evaluation.json").read_bytes() == before
    assert "about num_instances 20 instead of 8; what the attack finds is not written there" in capsys.readouterr().err


def test_an_attack_changes_no_other_figure(copy: Path) -> None:
    before = evaluation(copy)
    found = evaluate_run(copy, attacked=True, seed=99, settings=[SOUNDNESS, "evaluation.worst_case_episodes=0"])
    after = evaluation(copy)
    assert {key: after[key] for key in before} == before, "also what another seed or setting would have changed"
    assert set(after) - set(before) == {*ENTRIES["soundness"], "attack"}
    assert after["soundness_under_attack"] == found["soundness_under_attack"]


def test_a_sample_of_other_instances_is_another_sample(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    about = {"iteration": 2, "split": "test", "num_instances": 20}
    assert can_be_kept(RunFolder.open(copy), about)
    assert not can_be_kept(RunFolder.open(copy), about, same_instances=False)
    assert not can_be_kept(RunFolder.open(copy), {**about, "iteration": 1})
    assert capsys.readouterr().err.count("not written there") == 2


def test_a_damaged_file_costs_nobody_an_attack(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (copy / "evaluation.json").write_text('{"iterat')
    found = evaluate_run(copy, attacked=True, settings=[SOUNDNESS])
    assert "is damaged" in capsys.readouterr().err
    after = evaluation(copy)
    assert after["soundness_under_attack"] == found["soundness_under_attack"]
    assert after["greedy"] == found["greedy"]


def test_a_file_of_a_newer_version_is_refused_before_the_attack(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    document = json.loads((copy / "evaluation.json").read_text())
    (copy / "evaluation.json").write_text(json.dumps({**document, "version": 99}))
    monkeypatch.setattr("nip_ray.evaluation.verbs.evaluate.attack", lambda *_, **__: pytest.fail("it attacked"))
    with pytest.raises(UserError, match="format version 99"):
        evaluate_run(copy, attacked=True, settings=[SOUNDNESS])


def test_a_file_that_cannot_be_written_is_said(
    copy: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: Any) -> None:
        raise UserError("evaluation.json cannot be written (No space left on device)")

    monkeypatch.setattr(RunFolder, "write_json", full)
    keep(RunFolder.open(copy), {}, entries("soundness", 0.5))
    assert "No space left on device); what the attack found was not kept" in capsys.readouterr().err
