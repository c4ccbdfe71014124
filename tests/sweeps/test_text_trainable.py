"""Language-model runs as trials of Tune, and what trackers are told of them."""

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import nip_ray.text.training.trainer
from nip_ray import tracking
from nip_ray.cluster.resources import trial_bundles
from nip_ray.config.experiment import TextExperimentConfig
from nip_ray.config.load import config_from_dict
from nip_ray.errors import UserError
from nip_ray.runs.experiment import resume_experiment
from nip_ray.storage.folder import RunFolder
from nip_ray.sweeps.text_trainable import TextTrainable
from nip_ray.text.parts import load_state
from nip_ray.tracking import RunInfo, TrackerKind
from tests.runs.test_text_run import OPTIONS, dummy, played
from tests.text.cooperation import config, roles
from tests.text.provider import provider_thread

ONE = ["sample", "log", "test", "create_jobs", "await_jobs"]
TENSORBOARD = {"tensorboard": {"enabled": True}}


def hosted(folder: Path, base_url: str, **changes: Any) -> dict[str, Any]:
    made = config(folder, {"name": "expert_iteration", "rollouts_per_iteration": 12}, iterations=1, **changes)
    made["providers"]["tables"] |= {"base_url": base_url, "api_key_variable": "NIP_PROVIDER_KEY"}
    return made


def told(folder: Path, data: dict[str, Any]) -> dict[str, Any]:
    return {"experiment": data, "run_root": str(folder / "trials"), "group": "many"}


class Notes:
    """What one process of a run told its trackers; checkpoints are kept as they were then."""

    def __init__(self, run: RunInfo, kept: Path) -> None:
        self.run, self.kept = run, kept
        self.heard: list[str] = []

    def log(self, row: Mapping[str, Any]) -> None:
        self.heard.append(f"row {row['iteration']}")

    def checkpoint(self, folder: Path, iteration: int) -> None:
        self.heard.append(f"checkpoint {iteration}")
        shutil.copytree(folder, self.kept / f"{iteration:06d}", dirs_exist_ok=True)

    def transcripts(self, file: Path, iteration: int) -> None:
        assert file.read_text()
        self.heard.append(f"{file.stem} {iteration}")

    def finish(self, failed: bool) -> None:
        self.heard.append("stopped" if failed else "over")


@pytest.fixture
def notes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Notes]:
    """One more tracker in the registry, a `Notes` for each process of a run."""
    taken: list[Notes] = []

    def start(settings: Any, run: RunInfo) -> Notes:
        taken.append(Notes(run, tmp_path / "kept"))
        return taken[-1]

    monkeypatch.setitem(tracking.TRACKERS, "notes", TrackerKind(lambda s: True, lambda s: None, start))
    return taken


def iteration_of(number: int) -> list[str]:
    return [f"{number:06d} {number}", f"test-{number:06d} {number}", f"row {number}", f"checkpoint {number}"]


def test_trackers_hear_everything_once_also_over_a_resume(tmp_path: Path, notes: list[Notes]) -> None:
    run_dir = played(tmp_path, dummy(tmp_path))
    resume_experiment(run_dir, iterations=3, quiet=True)
    first, second = notes
    assert first.heard == [*iteration_of(1), *iteration_of(2), "over"]
    assert second.heard == ["checkpoint 2", *iteration_of(3), "over"], (
        "the second iteration's models were trained only now"
    )
    assert (first.run.resumed_from, second.run.resumed_from) == (0, 2)
    assert first.run.run_id == second.run.run_id == json.loads((run_dir / "run.json").read_text())["run_id"]
    with RunFolder.open(run_dir) as folder:
        assert load_state(folder).run_id not in json.dumps([first.run.run_id, dict(first.run.config)]), (
            "calls' keys are made of that one"
        )


@pytest.mark.parametrize(
    ("stop_after", "before", "resumed_from"), [(2, 1, 0), (3, 3, 1), (4, 3, 1), (5, 4, 1), (8, 8, 2)]
)
def test_a_trial_goes_on_telling_where_it_stopped(
    tmp_path: Path, notes: list[Notes], stop_after: int, before: int, resumed_from: int
) -> None:
    """stop_after: stages, of five in the first iteration and three in the last. before: pieces of news by then."""
    trial = TextTrainable(told(tmp_path, dummy(tmp_path)))
    for _ in range(stop_after):
        trial.train()
    trial.stop()
    again = TextTrainable(told(tmp_path, dummy(tmp_path)))
    while not again.train()["done"]:
        pass
    again.stop()
    everything = [*iteration_of(1), *iteration_of(2)]
    assert notes[0].heard == [*everything[:before], "over" if stop_after == 8 else "stopped"]
    assert notes[1].heard == [*everything[before:], "over"]
    assert notes[1].run.resumed_from == resumed_from
    assert {note.run.group for note in notes} == {"many"}


def test_a_row_that_comes_again_after_a_crash_is_one_step_in_tensorboard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save, saved = nip_ray.text.training.trainer.save_state, []

    def crash(folder: RunFolder, state: Any) -> None:
        saved.append(state.stage)
        if len(saved) == 3:  # the row is written and told; that the stage is over is not
            raise OSError("the machine is gone")
        save(folder, state)

    monkeypatch.setattr(nip_ray.text.training.trainer, "save_state", crash)
    with pytest.raises(OSError, match="gone"):
        played(tmp_path, dummy(tmp_path, tracking=TENSORBOARD))
    resume_experiment(tmp_path / "run", quiet=True)
    shown = EventAccumulator(str(tmp_path / "run" / "events"))
    shown.Reload()
    assert [event.step for event in shown.Scalars("eval_sampled/verifier/accuracy")] == [1, 2]


def test_what_trackers_get_of_the_models_is_enough_to_start_another_run(tmp_path: Path, notes: list[Notes]) -> None:
    run_dir = played(tmp_path, dummy(tmp_path, iterations=3))
    names = {path.name for path in (tmp_path / "kept" / "000001").iterdir()}
    assert names == {"config.yaml", "state.json"}
    base = {"run_dir": str(tmp_path / "kept" / "000001"), "kind": "models"}
    with RunFolder.open(run_dir) as folder:
        models = load_state(folder).history[1]
    with RunFolder.open(played(tmp_path, dummy(tmp_path, base_run=base, iterations=1), "next")) as folder:
        assert load_state(folder).history[0] == models == {"prover": "none-ft", "verifier": "none-ft"}


def test_a_tracker_that_cannot_start_is_refused_before_anybody_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(settings: Any) -> None:
        raise UserError("tracking.notes.enabled: no such library")

    monkeypatch.setitem(
        tracking.TRACKERS, "notes", TrackerKind(lambda s: True, refuse, lambda s, run: pytest.fail("opened"))
    )
    with provider_thread(tmp_path, roles=roles(), **OPTIONS) as provider:
        with pytest.raises(UserError, match="no such library"):
            played(tmp_path, hosted(tmp_path, provider.base_url))
        trial = TextTrainable(told(tmp_path, hosted(tmp_path, provider.base_url)))
        assert "no such library" in trial.train()["failed"]
        trial.stop()
        assert provider.requests() == {}
    assert not (tmp_path / "run").exists()


def test_a_trial_reports_every_stage_and_counts_iterations_whose_figures_are_there(tmp_path: Path) -> None:
    trial = TextTrainable({**told(tmp_path, dummy(tmp_path)), "iterations_per_report": 5})
    results = [trial.train() for _ in range(8)]
    trial.stop()
    assert [result["stage"] for result in results] == [*ONE, *ONE[:3]]
    assert [result["text_iteration"] for result in results] == [0, 0, 1, 1, 1, 1, 1, 2]
    assert [result.get("iteration") for result in results] == [None, None, 1, 1, 1, 1, 1, 2]
    assert [result["done"] for result in results] == [False] * 7 + [True]
    assert results[-1]["eval_sampled/verifier/accuracy"] >= 0
    assert Path(results[-1]["run_dir"]) == tmp_path / "trials" / "default"


def test_figures_of_the_last_test_stay_in_later_results(tmp_path: Path) -> None:
    data = dummy(tmp_path, iterations=3)
    data["algorithm"]["test_scheme"] = "first_and_last"
    trial = TextTrainable(told(tmp_path, data))
    results = [trial.train() for _ in range(8)]
    trial.stop()
    assert results[7]["text_iteration"] == 2
    assert results[7]["eval_sampled/verifier/accuracy"] == results[2]["eval_sampled/verifier/accuracy"]


def test_a_checkpoint_of_another_run_is_refused(tmp_path: Path) -> None:
    (tmp_path / "checkpoint").mkdir()
    one, other = (
        TextTrainable({**told(tmp_path, dummy(tmp_path)), "run_root": str(tmp_path / place)}) for place in "ab"
    )
    one.train()
    one.save_checkpoint(str(tmp_path / "checkpoint"))
    other.load_checkpoint(str(tmp_path / "checkpoint"))
    assert "another run" in other.train()["failed"]
    for trial in (one, other):
        trial.stop()


def test_a_spent_budget_ends_a_trial_and_the_run_can_go_on_by_hand(tmp_path: Path) -> None:
    with provider_thread(tmp_path, roles=roles(), **OPTIONS) as provider:
        trial = TextTrainable(told(tmp_path, hosted(tmp_path, provider.base_url, budget={"usd": 0.003})))
        while not (result := trial.train())["done"]:
            pass
        assert "budget.usd" in result["failed"]
        trial.stop()
        run_dir = Path(result["run_dir"])
        spent = json.loads((run_dir / "cost.json").read_text())["usd"]
        assert 0 < spent <= 0.003
        resume_experiment(run_dir, settings=["budget.usd=5"], quiet=True)
        cost = json.loads((run_dir / "cost.json").read_text())
        assert round(cost["usd"] * 1e12) == sum(row["pusd"] for row in provider.ledger())


def resources(folder: Path, **changes: Any) -> list[dict[str, float]]:
    made = config_from_dict(dummy(folder, **changes))
    assert isinstance(made, TextExperimentConfig)
    return trial_bundles(made)


LOCAL = {"name": "local", "num_cpus": 2, "num_gpus": 0.25}


def test_a_trial_asks_for_all_that_its_main_process_starts(tmp_path: Path) -> None:
    scenario: Callable[[str], dict[str, Any]] = lambda name: {  # noqa: E731
        **dummy(tmp_path)["scenario"],
        "agents": {"_default": {"provider": name, "model": "default"}},
    }
    main = {"CPU": 0.5}
    runtime = {"num_cpus": 0.5}
    assert resources(tmp_path) == [{"CPU": 1}]
    assert resources(tmp_path, talk={"num_talkers": 2, "num_cpus_per_talker": 0.25}, runtime=runtime) == [
        main,
        {"CPU": 0.25},
        {"CPU": 0.25},
    ]
    assert resources(tmp_path, talk={"num_talkers": 2, "num_cpus_per_talker": 0}, runtime=runtime) == [main]
    local = {"scenario": scenario("here"), "providers": {"here": LOCAL, "unused": LOCAL}, "runtime": runtime}
    assert resources(tmp_path, **local) == [main, {"CPU": 2, "GPU": 0.25}, {"CPU": 2, "GPU": 0.25}]
    assert resources(tmp_path, **local, algorithm={"name": "policy_gradient"}) == [{"CPU": 2, "GPU": 0.25}]
    apart = {"name": "policy_gradient", "num_rollout_workers": 1, "num_learners": 1}  # of prover and verifier
    assert resources(tmp_path, **local, algorithm=apart) == [main, *[{"CPU": 2, "GPU": 0.25}] * 3]
    with pytest.raises(UserError, match=r"providers\.here: got 2 workers for fine-tuning.*ask for 1"):
        resources(tmp_path, **{**local, "providers": {"here": {**LOCAL, "num_training_workers": 2}}})
