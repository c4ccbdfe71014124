"""A whole run on real digits, with pretraining and message regression: resumed, it gives the numbers of one that was
never stopped."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from nip_ray.config.experiment import ExperimentConfig
from nip_ray.evaluation.verbs.evaluate import evaluate_run
from nip_ray.runs.experiment import resume_experiment, run_experiment
from nip_ray.storage.checkpoint import load_checkpoint
from nip_ray.storage.folder import RunFolder
from tests.runs.small import small, untimed
from tests.scenarios.image_classification.files import TINY

IMAGES: dict[str, Any] = {
    "name": "small-images",
    "seed": 3,
    "iterations": 4,
    "protocol": {"name": "nip", "min_rounds": 3, "max_rounds": 3},
    "scenario": {
        "name": "image_classification",
        "data": {"num_train": 60, "num_test": 20},
        "agents": {"_default": TINY, "verifier": {**TINY, "sight": "coarse", "building_block_type": "residual_basic"}},
        "num_normalization_steps": 30,
    },
    "algorithm": {"num_epochs": 2, "minibatch_size": 24, "lr": 0.01},
    "pretraining": {"agents": ["verifier", "prover"], "num_epochs": 2, "minibatch_size": 20},
    "play": {"num_copies": 16},
    "evaluation": {"interval": 2, "num_transcripts": 3, "message_regression": {"enabled": True, "num_epochs": 5}},
    "checkpoint": {"interval": 2},
    "runtime": {"num_threads": 1},
}


def config(*overrides: str) -> ExperimentConfig:
    return small(*overrides, base=IMAGES)


def outcome(path: Path) -> tuple[list[dict[str, Any]], dict[str, Any], dict[str, Any]]:
    """Metrics without what depends on the clock, the last transcripts, and every trained weight as a list."""
    with RunFolder.open(path) as folder:
        found = load_checkpoint(folder.checkpoints)
        rows = [untimed(row) for row in folder.metrics()]
        said = {name: folder.read_transcripts(name) for name in folder.transcript_names()}
        return rows, said, plain(found.tensors["training"])


def plain(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.tolist()
    if isinstance(value, Mapping):
        return {str(key): plain(part) for key, part in value.items()}
    return [plain(part) for part in value] if isinstance(value, list | tuple) else value


def test_a_resumed_run_gives_the_numbers_of_one_that_was_never_stopped(tmp_path: Path) -> None:
    result = run_experiment(config(), tmp_path / "whole", quiet=True)
    run_experiment(config("iterations=2"), tmp_path / "parts", quiet=True)
    resume_experiment(tmp_path / "parts", iterations=4, quiet=True)
    whole, parts = outcome(tmp_path / "whole"), outcome(tmp_path / "parts")
    assert [row["iteration"] for row in whole[0]] == [1, 2, 3, 4]
    assert whole == parts
    assert {f"eval/{agent}/message_regression" for agent in ("prover", "verifier")} <= set(result.metrics)
    assert evaluate_run(tmp_path / "whole")["eval/verifier/accuracy"] == result.metrics["eval/verifier/accuracy"]
