"""`ExperimentTrainable`: a trial is a run like any other, wherever Tune sends it."""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ray.tune.result import TRIAL_INFO

from nip_ray.errors import UserError
from nip_ray.evaluation.verbs.evaluate import evaluate_run
from nip_ray.runs.experiment import run_experiment
from nip_ray.storage.checkpoint import kept_iterations
from nip_ray.storage.folder import RunFolder
from nip_ray.sweeps.trainable import ExperimentTrainable
from tests.runs.small import MESSAGES, small, untimed

LONG = {**MESSAGES, "iterations": 40}  # a run that ends has its report drawn, which takes longer than all the rest
LR = {"algorithm.lr": 0.02}


def told(name: str, root: Path, **more: Any) -> dict[str, Any]:
    """What Tune tells the trial `name`."""
    return {"experiment": LONG, "run_root": root, **more, TRIAL_INFO: SimpleNamespace(trial_id=name, trial_name=name)}


@contextmanager
def trial(root: Path, name: str, **more: Any) -> Iterator[ExperimentTrainable]:
    """The trial `name` in this process, as Tune makes it in an actor."""
    made = ExperimentTrainable(told(name, root, **more))
    try:
        yield made
    finally:
        made.cleanup()


def steps(made: ExperimentTrainable, number: int) -> list[dict[str, Any]]:
    return [made.step() for _ in range(number)]


def rows(run: Path) -> list[dict[str, Any]]:
    return [untimed(row) for row in RunFolder.open(run).metrics()]


def pointer(folder: Path, name: str, iteration: int) -> str:
    """A checkpoint of Tune's that names another trial."""
    folder.mkdir(exist_ok=True)
    (folder / "run.json").write_text(
        json.dumps({"format": "nip_ray.trial", "version": 1, "trial": name, "iteration": iteration})
    )
    return str(folder)


@pytest.fixture(scope="module")
def donor(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with four iterations of the trial `donor` in it."""
    root = tmp_path_factory.mktemp("trials")
    with trial(root, "donor", values=LR) as made:
        assert [result["iteration"] for result in steps(made, 4)] == [1, 2, 3, 4]
    return root


@pytest.fixture
def root(donor: Path, tmp_path: Path) -> Path:
    shutil.copytree(donor, tmp_path / "trials")
    return tmp_path / "trials"


def test_a_trial_gives_the_numbers_of_a_single_run(donor: Path, tmp_path: Path) -> None:
    run_experiment(small("algorithm.lr=0.02", base=MESSAGES), tmp_path / "run", quiet=True)
    assert rows(donor / "donor") == rows(tmp_path / "run")


def test_several_iterations_to_a_report_change_no_number(donor: Path, tmp_path: Path) -> None:
    with trial(tmp_path, "a", values={**LR, "iterations": 4}, iterations_per_report=3) as made:
        assert [(result["iteration"], result["done"]) for result in steps(made, 2)] == [(3, False), (4, True)]
    assert rows(tmp_path / "a") == rows(donor / "donor")
    assert {path.name for path in (tmp_path / "a").iterdir()} >= {
        "config.yaml",
        "evaluation.json",
        "report.html",
        "checkpoints",
    }


def test_a_trial_that_follows_another_in_its_process_is_the_same(donor: Path, tmp_path: Path) -> None:
    with trial(tmp_path, "first", values={"algorithm.lr": 1e-5}) as made:
        steps(made, 2)
        assert made.reset(told("second", tmp_path, values=LR))
        with RunFolder.open(tmp_path / "first", write=True) as first:  # free again, and saved
            assert [path.name for path in first.checkpoints.iterdir() if path.name.isdigit()][-1] == "000002"
        assert [result["iteration"] for result in steps(made, 4)] == [1, 2, 3, 4]
    assert rows(tmp_path / "second") == rows(donor / "donor")


def test_a_trial_that_cannot_follow_another_says_so_in_its_first_step(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with trial(tmp_path, "first") as made:
        assert made.reset(told("second", tmp_path / "file"))
        with pytest.raises((UserError, OSError), match="file"):
            made.step()
        assert made.reset(told("third", tmp_path))
        assert made.step()["iteration"] == 1


def test_a_trial_whose_process_was_lost_goes_on_from_its_newest_checkpoint(root: Path, tmp_path: Path) -> None:
    with trial(root, "lost", values=LR) as made:
        steps(made, 3)
    # which one that is stopped has saved, and one that is lost has not
    shutil.rmtree(root / "lost" / "checkpoints" / "000003")
    with trial(root, "lost", values=LR) as made:
        assert made.step()["iteration"] == 3
        made.step()
    assert rows(root / "lost") == rows(root / "donor")


def test_tunes_counter_is_that_of_the_run_after_a_restore(root: Path, tmp_path: Path) -> None:
    """Tune's newest checkpoint is of iteration 1, the run's own of 3: schedulers and `stop` compare by the former's
    counter."""
    with trial(root, "lost", values=LR) as made:
        first = made.train()
        made.save(str(tmp_path / "tunes"))
        counted = [
            (result["iteration"], result["training_iteration"]) for result in (first, made.train(), made.train())
        ]
    with trial(root, "lost", values=LR) as made:
        made.restore(str(tmp_path / "tunes"))
        counted += [(result["iteration"], result["training_iteration"]) for result in (made.train(), made.train())]
    assert counted == [(1, 1), (2, 2), (3, 3), (4, 4), (5, 5)]
    with trial(root, "thirds", values={**LR, "iterations": 4}, iterations_per_report=3) as made:
        assert [made.train()["training_iteration"] for _ in range(2)] == [1, 2]


def test_reports_stay_at_multiples_after_a_process_was_lost(root: Path) -> None:
    """Else a trial would be compared at other iterations than its rivals."""
    with trial(root, "before", values=LR) as made:
        steps(made, 2)
    with trial(root, "before", values=LR, iterations_per_report=3) as made:
        assert [result["iteration"] for result in steps(made, 2)] == [3, 6]


def test_a_finished_trial_that_starts_again_trains_no_more(root: Path) -> None:
    with trial(root, "donor", values={**LR, "iterations": 4}) as made:
        result = made.step()
    assert (result["iteration"], result["done"]) == (4, True)
    assert len(rows(root / "donor")) == 4


def test_a_trial_goes_on_from_another_ones_checkpoint_under_its_own_values(root: Path, tmp_path: Path) -> None:
    """Rows are its own up to there, its folder holds one config's checkpoints only, and the lineage says what
    happened."""
    with trial(root, "poor", values={"algorithm.lr": 1e-5}) as made:
        steps(made, 3)
    before = rows(root / "poor")
    values = {"algorithm.lr": 0.03}
    with trial(root, "poor", values=values) as made:
        made.load_checkpoint(pointer(tmp_path / "tunes", "donor", 2))
        steps(made, 2)
    after = rows(root / "poor")
    assert [row["iteration"] for row in after] == [1, 2, 3, 4]
    assert after[:2] == before[:2]
    assert after[2] != before[2]
    assert RunFolder.open(root / "poor").read_json("lineage.json") == {
        "steps": [{"iteration": 2, "from": "donor", "values": values}]
    }
    assert "lr: 0.03" in (root / "poor" / "config.yaml").read_text()
    assert evaluate_run(root / "poor")["iteration"] == 4
    with trial(root, "poor", values=values) as made:  # started again: what was taken over is not taken over twice
        made.load_checkpoint(pointer(tmp_path / "tunes", "donor", 2))
        assert made.step()["iteration"] == 5
    assert rows(root / "poor")[:4] == after


def test_rows_that_a_trial_never_reached_come_from_where_it_goes_on(root: Path, tmp_path: Path) -> None:
    with trial(root, "slow", values={"algorithm.lr": 1e-5}) as made:
        steps(made, 1)
    with trial(root, "slow", values={"algorithm.lr": 0.03}) as made:
        made.load_checkpoint(pointer(tmp_path / "tunes", "donor", 2))
        made.step()
    assert [row["iteration"] for row in rows(root / "slow")] == [1, 2, 3]
    assert rows(root / "slow")[1] == rows(root / "donor")[1]


def test_a_checkpoint_that_the_other_trial_no_longer_keeps_is_replaced_by_its_newest(
    root: Path, tmp_path: Path
) -> None:
    shutil.rmtree(root / "donor" / "checkpoints" / "000002")
    with trial(root, "poor", values={"algorithm.lr": 0.03}) as made:
        made.load_checkpoint(pointer(tmp_path / "tunes", "donor", 2))
        assert made.step()["iteration"] == 5
    assert [row["iteration"] for row in rows(root / "poor")] == [1, 2, 3, 4, 5]


def test_values_that_tune_forgot_are_taken_back_without_losing_the_weights(root: Path) -> None:
    """The process that ran the sweep was killed after a change of settings that Tune had not written down."""
    shutil.rmtree(root / "donor" / "checkpoints" / "000004")
    with trial(root, "donor", values={"algorithm.lr": 0.001}) as made:
        assert made.step()["iteration"] == 3
    assert RunFolder.open(root / "donor").read_json("lineage.json")["steps"][0]["from"] == "donor"


def test_a_trial_that_cannot_save_what_it_took_over_keeps_its_own_checkpoints(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with trial(root, "poor", values={"algorithm.lr": 1e-5}) as made:
        steps(made, 3)

    def full(*_: Any, **__: Any) -> None:
        raise UserError("no space left")

    with monkeypatch.context() as patched:
        patched.setattr("nip_ray.runs.session.save_checkpoint", full)
        with trial(root, "poor", values={"algorithm.lr": 0.03}) as made:
            made.load_checkpoint(pointer(tmp_path / "tunes", "donor", 2))
            assert "no space left" in made.step()["failed"]
    assert kept_iterations(root / "poor" / "checkpoints")[-1] == 3
    with trial(root, "poor", values={"algorithm.lr": 0.03}) as made:
        made.load_checkpoint(pointer(tmp_path / "tunes", "donor", 2))
        assert kept_iterations(root / "poor" / "checkpoints")[-1] == 3
        assert made.step()["iteration"] == 3
        assert kept_iterations(root / "poor" / "checkpoints")[0] == 2, "those of the other values are gone"


@pytest.mark.parametrize(
    "more, said",
    [
        ({"values": {"algorithm.lr": "fast"}}, "algorithm.lr"),
        ({"experiment": {"scenario": {"name": "code_validation"}}}, "TextTrainable"),
        ({"values": {"algorithm.lr": 1e30}}, "not finite"),
    ],
)
def test_what_would_fail_again_ends_the_trial_with_its_reason(tmp_path: Path, more: dict[str, Any], said: str) -> None:
    with trial(tmp_path, "a", **more) as made:
        found = [result for result in steps(made, 2) if "failed" in result]
    assert found
    assert all(result["done"] for result in found)
    assert said in found[0]["failed"]
    assert "\n" not in found[0]["failed"]


def test_an_impossible_setting_asks_for_some_place_in_which_to_say_so(tmp_path: Path) -> None:
    asked = ExperimentTrainable.default_resource_request(
        {"experiment": MESSAGES, "run_root": tmp_path, "values": {"algorithm.lr": -1}}
    )
    assert asked.bundles == [{"CPU": 1.0}]


def test_the_resources_of_env_runners_and_learners_are_asked_for(tmp_path: Path) -> None:
    values = {"play.num_env_runners": 2, "learners.num_learners": 1, "runtime.num_cpus": 0.5}
    asked = ExperimentTrainable.default_resource_request(
        {"experiment": MESSAGES, "run_root": tmp_path, "values": values}
    )
    assert asked.bundles == [{"CPU": 0.5}, {"CPU": 1.0}, {"CPU": 1.0}, {"CPU": 1.0}]
