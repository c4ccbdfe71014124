"""Processes of a run of language agents that hang without dying: ended and made again, or waited for; the figures are
the same."""

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import ray

from nip_ray.cluster.liveness import GROUP
from nip_ray.config.experiment import TextExperimentConfig
from nip_ray.config.load import config_to_yaml, load_config
from nip_ray.errors import TrainingError
from nip_ray.storage.folder import RunFolder
from nip_ray.text.parts import prepare
from nip_ray.text.training.trainer import begin, new_state
from tests.text.providers.test_local_run import CONFIGS
from tests.text.training.test_places import config_of, rows, trained, weights

FINE_TUNED = (
    "providers.local.num_cpus=0.2",
    "iterations=2",
    "talk.num_talkers=2",
    "talk.num_cpus_per_talker=0.2",
    "algorithm.rollouts_per_iteration=6",
    "algorithm.fine_tuning.num_epochs=2",
    "algorithm.fine_tuning.min_examples=1",
    "algorithm.reward_threshold=-10",
    "algorithm.format_warmup=0",
    "scenario.data.num_train=8",
    "scenario.data.num_test=4",
)
Find = Callable[[Any], Any]
CASES: dict[str, tuple[TextExperimentConfig, str, int, Find]] = {
    "rollout worker": (
        load_config(CONFIGS / "ei_cv_offline.yaml", FINE_TUNED),
        "sample",
        1,
        lambda made: made.parts._workers.pool.actors[1],
    ),
    "chat actor": (
        load_config(CONFIGS / "ei_cv_offline.yaml", FINE_TUNED),
        "test",
        0,
        lambda made: made.parts._hosts["local"].chat,
    ),
    "training actor": (
        load_config(CONFIGS / "ei_cv_offline.yaml", FINE_TUNED),
        "await_jobs",
        0,
        lambda made: made.parts._hosts["local"].training,
    ),
    "rollout worker of policy gradient": (
        config_of(num_rollout_workers=2),
        "sample",
        1,
        lambda made: made._playing.plays.pool.actors[1],
    ),
}
"""The config, the stage and the iteration before which an actor is stopped, and who that is."""


def process_of(actor: Any) -> int:
    """Its id, which it tells whatever it is at."""
    return ray.get(actor.__ray_call__.options(concurrency_group=GROUP).remote(lambda _: os.getpid()))


def played(
    config: TextExperimentConfig, path: Path, stage: str, iteration: int, find: Find | None, half_a_minute: bool = False
) -> float:
    """Work on a new run. find: who is stopped there, for ever or for half a minute; returns the seconds from there
    on."""
    began = time.monotonic()
    with RunFolder.create(path, config_to_yaml(config)) as folder:
        trainer = begin(config, folder, prepare(config), new_state(config))
        try:
            while not trainer.state.over:
                if find is not None and (trainer.state.stage, trainer.state.iteration) == (stage, iteration):
                    process, find, began = process_of(find(trainer)), None, time.monotonic()
                    time.sleep(3.0)  # in which it gave signs of life
                    os.kill(process, signal.SIGSTOP)
                    if half_a_minute:
                        subprocess.Popen(["sh", "-c", f"sleep 30; kill -CONT {process}"])
                trainer.run_stage()
        finally:
            trainer.close()
    assert find is None, "nobody was stopped"
    return time.monotonic() - began


def said(path: Path) -> dict[str, str]:
    return {file.name: file.read_text() for file in sorted((path / "rollouts").iterdir())}


def models(path: Path) -> dict[str, bytes]:
    """Weights by the models' names, without what names the run."""
    found = {
        re.sub("-[0-9a-f]{12}$", "", file.parent.name): file.read_bytes()
        for file in (path / "local" / "models").rglob("*.safetensors")
    }
    assert len(found) > 1
    return found


def limited(config: TextExperimentConfig, limit_s: float) -> TextExperimentConfig:
    faults = replace(config.fault_tolerance, hang_timeout_s=limit_s)
    return config.model_copy(update={"fault_tolerance": faults})


@pytest.fixture(scope="module")
def calm(ray_session: None, tmp_path_factory: pytest.TempPathFactory) -> Callable[[TextExperimentConfig], Path]:
    """A run by that config that nothing happened to."""
    folder = tmp_path_factory.mktemp("calm")

    def made(config: TextExperimentConfig) -> Path:
        if not (folder / config.name).exists():
            played(config, folder / config.name, "", 0, None)
        return folder / config.name

    return made


@pytest.mark.crash
@pytest.mark.timeout(600)
@pytest.mark.parametrize("who", CASES)
def test_a_process_that_is_stopped_is_made_again_or_waited_for(
    calm: Callable[[TextExperimentConfig], Path], tmp_path: Path, capfd: pytest.CaptureFixture[str], who: str
) -> None:
    config, *where, find = CASES[who]
    undisturbed = calm(config)
    for name, limit_s in (("for ever", 10.0), ("for 30 s", 120.0)):
        seconds = played(limited(config, limit_s), tmp_path / name, *where, find, limit_s > 30)
        assert rows(tmp_path / name) == rows(undisturbed)
        assert said(tmp_path / name) == said(undisturbed)
        assert models(tmp_path / name) == models(undisturbed)
        replaced = (
            "gave no sign of life for 10 s (fault_tolerance.hang_timeout_s) and is ended" in capfd.readouterr().err
        )
        assert replaced == (name == "for ever")
        assert seconds < 150.0
        assert replaced or seconds > 29.0, "it was stopped, and went on"


@pytest.mark.crash
def test_a_learner_that_is_stopped_ends_the_run_which_is_resumed(ray_session: None, tmp_path: Path) -> None:
    config = limited(config_of(num_learners=2, checkpoint_every=1), 10.0)
    trained(config, tmp_path / "calm")
    with pytest.raises(TrainingError, match=r"a learner is lost .* then resume the run"):
        played(config, tmp_path / "stopped", "sample", 1, lambda made: made.models["verifier"]._actors[1])
    trained(config, tmp_path / "stopped")
    assert rows(tmp_path / "stopped") == rows(tmp_path / "calm")
    assert weights(tmp_path / "stopped") == weights(tmp_path / "calm")
