"""What an attack found joins a run's other figures where it is about the same, and is never lost for where it should go."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from nip_ray.errors import UserError
from nip_ray.evaluation.attack_table import ENTRIES
from nip_ray.evaluation.verbs.evaluate import evaluate_run
from nip_ray.evaluation.verbs.kept_attack import can_be_kept, keep, merged
from nip_ray.runs.experiment import run_experiment
from nip_ray.storage.folder import RunFolder
from tests.runs.small import small

SHORT = [f"evaluation.attack.{setting}" for setting in ("iterations=1", "copies=8", "seeds=1", "sizes=[1]", "max_nodes=0")]
SOUNDNESS = "evaluation.attack.goals=[soundness]"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_experiment(small("iterations=1", *SHORT), tmp_path_factory.mktemp("kept") / "run", quiet=True).run_dir


@pytest.fixture
def run(made: Path, tmp_path: Path) -> Path:
    """A copy that may be written to."""
    return Path(shutil.copytree(made, tmp_path / "run"))


def entries(goal: str, right: float, seed: int = 0) -> dict[str, Any]:
    figures = {name: {"estimate": right} for name in ENTRIES[goal]}
    return {**figures, "attack": {"seed": seed, "settings": {}, goal: {"attackers": [], "seed": seed}}}


def test_goals_are_kept_one_by_one() -> None:
    first = merged({"iteration": 3, "greedy": {}}, entries("soundness", 0.5))
    second = merged(first, entries("completeness", 0.9, seed=7))
    assert {"iteration", "greedy", *ENTRIES["soundness"], *ENTRIES["completeness"], "attack"} == set(second)
    assert (second["attack"]["soundness"]["seed"], second["attack"]["completeness"]["seed"], second["attack"]["seed"]) == (0, 7, 7)
    assert merged(second, entries("soundness", 0.1))["soundness_under_attack"] == {"estimate": 0.1}


@pytest.mark.parametrize("attack", [None, 5, {}, {"completeness": {}}])
def test_a_figure_without_its_table_and_a_table_without_its_figure_go(attack: Any) -> None:
    found = merged({"soundness_under_attack": {"estimate": 0.5}, "attack": attack}, entries("completeness", 0.9))
    assert set(found) == {"completeness_under_attack", "attack"}
    assert found["attack"]["completeness"] == {"attackers": [], "seed": 0}


def test_an_attack_about_other_instances_leaves_the_file_alone(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = (run / "evaluation.json").read_bytes()
    found = evaluate_run(run, attacked=True, seed=99, settings=["evaluation.max_instances=8", SOUNDNESS])
    assert (found["num_instances"], found["attack"]["seed"]) == (8, 99)
    assert (run / "evaluation.json").read_bytes() == before
    assert "about num_instances 20 instead of 8; what the attack finds is not written there" in capsys.readouterr().err


def test_an_attack_changes_no_other_figure(run: Path) -> None:
    before = RunFolder.open(run).read_json("evaluation.json")
    found = evaluate_run(run, attacked=True, seed=99, settings=[SOUNDNESS, "evaluation.worst_case_episodes=0"])
    after = RunFolder.open(run).read_json("evaluation.json")
    assert {key: after[key] for key in before} == before, "also what another seed or setting would have changed"
    assert set(after) - set(before) == {*ENTRIES["soundness"], "attack"}
    assert after["soundness_under_attack"] == found["soundness_under_attack"]


def test_a_sample_of_other_instances_is_another_sample(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    about = {"iteration": 1, "split": "test", "num_instances": 20}
    assert can_be_kept(RunFolder.open(run), about)
    assert not can_be_kept(RunFolder.open(run), about, same_instances=False)
    assert not can_be_kept(RunFolder.open(run), {**about, "iteration": 2})
    assert capsys.readouterr().err.count("not written there") == 2


def test_a_damaged_file_costs_nobody_an_attack(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (run / "evaluation.json").write_text('{"iterat')
    found = evaluate_run(run, attacked=True, settings=[SOUNDNESS])
    assert "is damaged" in capsys.readouterr().err
    after = RunFolder.open(run).read_json("evaluation.json")
    assert after["soundness_under_attack"] == found["soundness_under_attack"]
    assert after["greedy"] == found["greedy"]


def test_a_file_of_a_newer_version_is_refused_before_the_attack(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    document = json.loads((run / "evaluation.json").read_text())
    (run / "evaluation.json").write_text(json.dumps({**document, "version": 99}))
    monkeypatch.setattr("nip_ray.evaluation.verbs.evaluate.attack", lambda *_, **__: pytest.fail("it attacked"))
    with pytest.raises(UserError, match="format version 99"):
        evaluate_run(run, attacked=True, settings=[SOUNDNESS])


def test_a_file_that_cannot_be_written_is_said(run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def full(*_: Any) -> None:
        raise UserError("evaluation.json cannot be written (No space left on device)")

    monkeypatch.setattr(RunFolder, "write_json", full)
    keep(RunFolder.open(run), {}, entries("soundness", 0.5))
    assert "No space left on device); what the attack found was not kept" in capsys.readouterr().err
