"""The tests of old runs again, over all checkpoints: the figures of `evaluate_run`, kept beside the run's own, which
stay as they are."""

import json
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest

from nip_ray.errors import UserError
from nip_ray.evaluation.verbs.evaluate import evaluate_run
from nip_ray.evaluation.verbs.rerun import read_rerun, rerun_names, rerun_tests
from nip_ray.runs.experiment import resume_experiment, run_experiment
from nip_ray.scenarios.graph_isomorphism.dataset import save_pairs
from nip_ray.scenarios.graph_isomorphism.generate import GeneratorSettings, generate_pairs
from nip_ray.storage.folder import RunFolder
from tests.runs.small import files, small, untimed

CONFIG = small(
    "iterations=3", "checkpoint.interval=1", "checkpoint.keep=null", "evaluation.interval=1", "algorithm.lr=0.05"
)


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_experiment(CONFIG, tmp_path_factory.mktemp("rerun") / "run", quiet=True).run_dir


@pytest.fixture
def run(original: Path, tmp_path: Path) -> Path:
    """A copy that a test may change."""
    return Path(shutil.copytree(original, tmp_path / "run"))


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pairs") / "larger graphs.npz"
    save_pairs(generate_pairs(12, 5, GeneratorSettings(graph_sizes=(9,))), path)
    return path


def written(run: Path) -> dict[str, bytes]:
    """What the run itself wrote."""
    return {name: content for name, content in files(run).items() if not name.startswith("reruns/")}


def without_file(figures: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in figures.items() if key != "file"}


def damage(run: Path, iteration: int) -> None:
    file = run / "checkpoints" / f"{iteration:06d}" / "training.pt"
    file.write_bytes(file.read_bytes()[:-1])


def test_every_checkpoint_as_the_run_itself_tested_it(run: Path) -> None:
    before = written(run)
    found = rerun_tests(run)
    assert [figures["iteration"] for figures in found] == [1, 2, 3]
    with RunFolder.open(run) as folder:
        rows = folder.metrics()
    for figures, row in zip(found, rows, strict=True):
        assert {key: figures[key] for key in row if key.startswith("eval")} == {
            key: row[key] for key in row if key.startswith("eval")
        }
    assert written(run) == before, "what the run wrote is as it was"


@pytest.mark.parametrize("seed", [None, 11])
def test_the_figures_are_those_of_evaluate_run(run: Path, pairs: Path, seed: int | None) -> None:
    found = rerun_tests(run, dataset=pairs, seed=seed)
    for figures in found:
        found = evaluate_run(run, dataset=pairs, checkpoint=figures["iteration"], seed=seed)
        assert without_file(figures) == {key: value for key, value in found.items() if not isinstance(value, dict)}
        assert figures["num_instances"] == 12


def test_what_is_kept(run: Path, pairs: Path) -> None:
    found = rerun_tests(run, dataset=pairs, seed=11)
    assert {figures["file"] for figures in found} == {str(run / "reruns" / "larger-graphs.json")}
    kept = read_rerun(run, "larger-graphs")
    assert (kept["dataset"], kept["seed"], kept["passed_over"]) == (str(pairs), 11, [])
    for figures, record in zip(found, kept["checkpoints"], strict=True):
        assert record["iteration"] == figures["iteration"]
        for mode, prefix in (("greedy", "eval"), ("sampled", "eval_sampled")):
            accuracy = record[mode]["verifier/accuracy"]
            ends = [figures[f"{prefix}/verifier/accuracy{end}"] for end in ("/lower", "", "/upper")]
            assert [accuracy["lower"], accuracy["estimate"], accuracy["upper"]] == ends
            assert accuracy["n"] == 12
    stored = json.loads((run / "reruns" / "larger-graphs.json").read_text())
    assert (stored["format"], stored["version"]) == ("nip_ray.rerun", 1)


def test_nothing_is_overwritten(run: Path) -> None:
    names = [Path(rerun_tests(run, seed=seed)[0]["file"]).name for seed in (1, 2, 3)]
    assert names == ["held-out.json", "held-out-2.json", "held-out-3.json"]
    assert [read_rerun(run, Path(name).stem)["seed"] for name in names] == [1, 2, 3]
    rerun_tests(run, name="paper")
    content = (run / "reruns" / "paper.json").read_bytes()
    with pytest.raises(UserError, match="--name paper: this run has a rerun of that name; choose another"):
        rerun_tests(run, name="paper", seed=4)
    assert (run / "reruns" / "paper.json").read_bytes() == content
    assert rerun_names(run) == ["held-out", "held-out-2", "held-out-3", "paper"]


def test_reruns_at_the_same_time_get_names_of_their_own(run: Path) -> None:
    found: list[str] = []
    threads = [threading.Thread(target=lambda: found.append(rerun_tests(run)[0]["file"])) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == 3
    assert all(len(read_rerun(run, Path(file).stem)["checkpoints"]) == 3 for file in found)


@pytest.mark.parametrize("name", ["", "a/b", "../evaluation", ".hidden", "a b", "x" * 101])
def test_names_that_are_none(run: Path, name: str) -> None:
    before = written(run)
    with pytest.raises(UserError, match="--name"):
        rerun_tests(run, name=name)
    assert written(run) == before
    assert not (run / "reruns").exists()


def test_damaged_checkpoints_are_named_and_passed_over(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    damage(run, 2)
    found = rerun_tests(run)
    assert [figures["iteration"] for figures in found] == [1, 3]
    (reason,) = read_rerun(run, "held-out")["passed_over"]
    assert "000002 is damaged: training.pt has" in reason
    assert capsys.readouterr().err.splitlines() == [f"warning: {reason}; passed over"]


def test_a_run_that_is_being_written_can_be_tested_and_goes_on(run: Path) -> None:
    """No lock is taken, and a resumed run is none the wiser."""
    shutil.rmtree(run / "checkpoints" / "000003")
    with RunFolder.open(run, write=True):
        assert [figures["iteration"] for figures in rerun_tests(run)] == [1, 2]
    with RunFolder.open(run) as folder:
        before = [untimed(row) for row in folder.metrics()]
    resume_experiment(run, quiet=True)
    with RunFolder.open(run) as folder:
        assert [untimed(row) for row in folder.metrics()] == before
    assert rerun_names(run) == ["held-out"]
