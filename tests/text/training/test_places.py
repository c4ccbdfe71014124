"""Policy gradient where others play and learn: rollout workers, learners, dialogues that are played while models learn."""

from pathlib import Path
from typing import Any

import pytest
import ray

from nip_ray.config.experiment import TextExperimentConfig
from nip_ray.config.load import config_from_dict, config_to_yaml
from nip_ray.storage.folder import RunFolder
from nip_ray.text.parts import prepare
from nip_ray.text.training.run import begin, new_state
from nip_ray.text.training.state import load_state, save_state


def config_of(iterations: int = 3, **algorithm: Any) -> TextExperimentConfig:
    agent = {"model": "words", "max_tokens": 2, "max_invalid_replies": 1}
    rule = {"rollouts_per_iteration": 12, "group_size": 4, "evaluate_every": 2, "learning_rate": 1e-3, "checkpoint_every": 2}
    config = config_from_dict(
        {
            "name": "tiny",
            "iterations": iterations,
            "protocol": {"name": "bisection", "max_rounds": 3},
            "scenario": {
                "name": "state_tracking",
                "length": 2,
                "num_train": 20,
                "num_test": 3,
                "agents": {"_default": agent, "prover0": {**agent, "frozen": True}, "prover1": {**agent, "frozen": True}},
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


def rows(path: Path) -> list[dict[str, Any]]:
    """Metrics without what depends on the clock."""
    with RunFolder.open(path) as folder:
        return [{key: value for key, value in row.items() if not key.startswith("time/")} for row in folder.metrics()]


def weights(path: Path) -> bytes:
    with RunFolder.open(path) as folder:
        return (path / "local" / "models" / load_state(folder).models()["verifier"] / "model.safetensors").read_bytes()


def test_what_is_said_does_not_depend_on_where(ray_session: None, tmp_path: Path) -> None:
    """With two rollout workers, one of which dies, and a learner: the dialogues of one process, and nearly its weights."""
    for name, places in {"here": {}, "there": {"num_rollout_workers": 2, "num_learners": 1}}.items():
        config = config_of(kl_coefficient=0.1, **places)
        state = new_state(config)
        with RunFolder.create(tmp_path / name, config_to_yaml(config)) as folder:
            save_state(folder, state)
            trainer = begin(config, folder, prepare(config), state)
            try:
                trainer.run_stage()
                trainer.run_stage()
                if places:
                    ray.kill(trainer._playing.plays._actors[1], no_restart=False)
                while not trainer.state.over:
                    trainer.run_stage()
            finally:
                trainer.close()
    here, there = rows(tmp_path / "here"), rows(tmp_path / "there")
    for file in ("000001.jsonl", "000003.jsonl", "test-000003.jsonl"):
        assert (tmp_path / "here" / "rollouts" / file).read_bytes() == (tmp_path / "there" / "rollouts" / file).read_bytes()
    for mine, theirs in zip(here, there, strict=True):
        assert mine == pytest.approx(theirs, rel=1e-3, abs=1e-5)
    assert here[-1]["cost/tokens"] == there[-1]["cost/tokens"]
