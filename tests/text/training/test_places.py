"""Policy gradient where others play and learn: rollout workers, learners, dialogues that are played while models
learn."""

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest
import ray

from nip_ray.config.experiment import TextExperimentConfig
from nip_ray.config.load import config_from_dict, config_to_yaml
from nip_ray.errors import TrainingError
from nip_ray.serving import learner_group
from nip_ray.serving.generation import Generation, GenerationRequest
from nip_ray.serving.learner_group import LearnerGroup
from nip_ray.serving.policy_model import PolicyModel
from nip_ray.settings.policy_gradient import PolicyGradientSettings
from nip_ray.storage.folder import RunFolder, read_lines
from nip_ray.text.dialogues.runner import rollout_file
from nip_ray.text.parts import load_state, prepare, save_state
from nip_ray.text.training import policies
from nip_ray.text.training.trainer import begin, new_state
from tests.text.training.test_policy_gradient import rows


def config_of(
    iterations: int = 3, opponents: dict[str, Any] | None = None, all_learn: bool = False, **algorithm: Any
) -> TextExperimentConfig:
    """opponents: from the past; without them, or `all_learn`, the verifier alone learns."""
    agent = {"model": "words", "max_tokens": 2, "max_invalid_replies": 1}
    prover = {**agent, "frozen": opponents is None and not all_learn}
    rule = {
        "rollouts_per_iteration": 12,
        "group_size": 4,
        "evaluate_every": 2,
        "learning_rate": 1e-3,
        "checkpoint_every": 2,
    }
    config = config_from_dict(
        {
            "name": "tiny",
            "opponents": opponents,
            "iterations": iterations,
            "protocol": {"name": "bisection", "max_rounds": 3},
            "scenario": {
                "name": "state_tracking",
                "length": 2,
                "num_train": 20,
                "num_test": 3,
                "agents": {"_default": agent, "prover0": prover, "prover1": prover},
            },
            "algorithm": {"name": "policy_gradient", **rule, **algorithm},
            "providers": {
                "local": {
                    "name": "local",
                    "method": "full",
                    "num_cpus": 0.5,
                    "max_batch_size": 64,
                    "word_model": {"hidden_size": 16, "num_layers": 1, "num_heads": 2},
                }
            },
        }
    )
    assert isinstance(config, TextExperimentConfig)
    return config


def weights(path: Path) -> bytes:
    with RunFolder.open(path) as folder:
        return (path / "local" / "models" / load_state(folder).models()["verifier"] / "model.safetensors").read_bytes()


class Apart:
    """A policy that samples by weights of its own, and takes its time where it learns."""

    samples_apart = True
    delay = 0.0

    def __init__(self, *args: Any, **options: Any) -> None:
        self._learner, self._sampler = PolicyModel(*args, **options), PolicyModel(*args, **options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sampler if name in ("forget", "take", "logprobs") else self._learner, name)

    def sample(self, requests: Sequence[GenerationRequest]) -> list[Generation]:
        time.sleep(self.delay * self.trained)
        return self._sampler.sample(requests)

    def step(self, *args: Any) -> dict[str, float]:
        time.sleep(self.delay)
        return self._learner.step(*args)


def stale(staleness: int, iterations: int, monkeypatch: pytest.MonkeyPatch, **parts: Any) -> TextExperimentConfig:
    """With policies that are `Apart`; by the config alone there would be no place to play ahead in."""
    monkeypatch.setattr(policies, "PolicyModel", Apart)
    config = config_of(iterations, **parts)
    assert isinstance(config.algorithm, PolicyGradientSettings)
    return config.model_copy(update={"algorithm": replace(config.algorithm, max_staleness=staleness)})


def trained(config: TextExperimentConfig, path: Path, stages: int = 99) -> None:
    """Work on a run, new or begun, for so many stages."""
    with (
        RunFolder.open(path, write=True) if path.exists() else RunFolder.create(path, config_to_yaml(config)) as folder
    ):
        state = load_state(folder) if (path / "state.json").exists() else new_state(config)
        save_state(folder, state)
        trainer = begin(config, folder, prepare(config), state)
        try:
            while stages and not trainer.state.over:
                trainer.run_stage()
                stages -= 1
        finally:
            trainer.close()


@pytest.mark.parametrize("opponents", [None, {"every": 1, "latest": 0.4, "agents": ["verifier"]}])
def test_dialogues_are_played_ahead_and_played_again_after_a_crash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, opponents: dict[str, Any] | None
) -> None:
    """By the weights of one iteration before, against which they are checked; ratios are to the recorded
    log-probabilities."""
    # without it no reply may be paid
    form = {"format_warmup": 40, "warmup_batch_size": 8, "warmup_learning_rate": 1e-2}
    config = stale(1, 5, monkeypatch, opponents=opponents, kl_coefficient=0.1, **form)
    trained(config, tmp_path / "whole")
    # the warm-up and three iterations, the last of which is not in a checkpoint
    trained(config, tmp_path / "killed", 4)
    trained(config, tmp_path / "killed")
    assert rows(tmp_path / "whole") == rows(tmp_path / "killed")
    assert weights(tmp_path / "whole") == weights(tmp_path / "killed")
    made = rows(tmp_path / "whole")[1:]
    assert [row["learn/verifier/staleness"] for row in made] == [0, 1, 1, 1, 1]
    last = {split: read_lines(rollout_file(tmp_path / "whole", split, 4)) for split in ("train", "test")}
    assert {split: {record["policy_version"] for record in found} for split, found in last.items()} == {
        "train": {3},
        "test": {5},
    }
    assert all(row["learn/verifier/logprob_difference"] < 1e-5 for row in made)
    assert [row["learn/verifier/ratio_max"] > 1.0001 for row in made] == [False, True, True, True, True]
    with pytest.raises(TrainingError, match="max_logprob_difference"):
        trained(stale(1, 5, monkeypatch, max_logprob_difference=1e-12), tmp_path / "bound")


@pytest.mark.slow
def test_playing_ahead_saves_the_time_of_learning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer takes as long as a step, and an iteration has one of each."""
    monkeypatch.setattr(Apart, "delay", 0.4)
    taken = []
    for staleness in (0, 1):
        trained(
            stale(staleness, 12, monkeypatch, rollouts_per_iteration=4, num_test_items=1), tmp_path / str(staleness)
        )
        with RunFolder.open(tmp_path / str(staleness)) as folder:
            taken.append(sum(row["time/play_s"] + row["time/learn_s"] for row in folder.metrics()[1:]))
    assert taken[1] < 0.6 * taken[0], taken


LEARNERS = {"num_learners": 2}


@pytest.mark.parametrize(
    ("opponents", "places"), [({"every": 1, "latest": 0.4}, {}), pytest.param(None, LEARNERS, marks=pytest.mark.crash)]
)
def test_what_is_said_does_not_depend_on_where(
    ray_session: None, tmp_path: Path, opponents: dict[str, Any] | None, places: dict[str, Any]
) -> None:
    """With two rollout workers, who have opponents from the past, or one of whom dies where there are learners too: the
    dialogues of one process, and nearly its figures."""
    here, there = (
        config_of(opponents=opponents, kl_coefficient=0.1, average_weights=0.5, minibatch_size=6, **given)
        for given in ({}, {"num_rollout_workers": 2, **places})
    )
    trained(here, tmp_path / "here")
    with RunFolder.create(tmp_path / "there", config_to_yaml(there)) as folder:
        trainer: Any = begin(there, folder, prepare(there), new_state(there))
        try:
            while not trainer.state.over:
                trainer.run_stage()
                if places and trainer.state.iteration == 1:
                    ray.kill(trainer._playing.plays.pool.actors[1], no_restart=False)
        finally:
            trainer.close()
    for file in ("000001.jsonl", "000003.jsonl", "test-000003.jsonl"):
        assert (tmp_path / "here" / "rollouts" / file).read_bytes() == (
            tmp_path / "there" / "rollouts" / file
        ).read_bytes()
    for mine, theirs in zip(rows(tmp_path / "here"), rows(tmp_path / "there"), strict=True):
        met = [{key: row.pop(key) for key in list(row) if key.endswith("/met")} for row in (mine, theirs)]
        assert (met[0] == met[1], mine) == (True, pytest.approx(theirs, rel=1e-3, abs=1e-5))
        assert (opponents is None or not mine["iteration"]) == ("opponents/snapshots" not in mine)


@pytest.mark.slow
def test_a_resume_with_workers_and_learners_is_exact(ray_session: None, tmp_path: Path) -> None:
    places = {"num_learners": 2, "num_rollout_workers": 2, "max_staleness": 1}
    config = config_of(4, checkpoint_every=1, kl_coefficient=0.1, average_weights=0.5, **places)
    trained(config, tmp_path / "whole")
    trained(config, tmp_path / "killed", 3)
    trained(config, tmp_path / "killed")
    assert rows(tmp_path / "whole") == rows(tmp_path / "killed")
    assert weights(tmp_path / "whole") == weights(tmp_path / "killed")


@pytest.mark.slow
def test_models_with_learners_of_their_own_step_at_once(
    ray_session: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each begins its step when all do, or not at all; and all learn what they learn one after the other."""
    meeting = Barrier(3)

    class Meeting(LearnerGroup):
        def step(self, *given: Any) -> dict[str, float]:
            meeting.wait(60)
            return super().step(*given)

    monkeypatch.setattr(learner_group, "LearnerGroup", Meeting)
    trained(config_of(2, all_learn=True), tmp_path / "here")
    trained(config_of(2, all_learn=True, num_learners=1), tmp_path / "there")
    assert rows(tmp_path / "here") == rows(tmp_path / "there")
    assert weights(tmp_path / "here") == weights(tmp_path / "there")
