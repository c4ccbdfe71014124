"""The smallest experiments that have everything in them, and what two runs are compared by."""

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from nip_ray.config.experiment import ExperimentConfig
from nip_ray.config.load import apply_overrides, config_from_dict
from nip_ray.storage.checkpoint import load_checkpoint

ROOT = Path(__file__).resolve().parents[2]

GRAPHS: dict[str, Any] = {
    "name": "small",
    "seed": 3,
    "iterations": 4,
    "protocol": {"name": "nip", "min_rounds": 3, "max_rounds": 3},
    "scenario": {
        "name": "graph_isomorphism",
        "data": {"num_train": 60, "num_test": 20, "graph_sizes": [7]},
        "agents": {
            "_default": {
                "num_gnn_layers": 1,
                "d_gnn": 4,
                "d_gin_mlp": 6,
                "use_dual_gnn": False,
                "num_heads": 2,
                "num_transformer_layers": 1,
                "d_transformer": 4,
                "d_transformer_mlp": 6,
                "d_representation": 4,
                "d_node_selector": 4,
                "d_decider": 4,
                "d_value": 4,
            }
        },
        "num_normalization_steps": 30,
    },
    "algorithm": {"num_epochs": 2, "minibatch_size": 24, "lr": 0.01},
    "play": {"num_copies": 16},
    "evaluation": {"interval": 2, "num_transcripts": 3},
    "checkpoint": {"interval": 2},
    "runtime": {"num_threads": 1},
}

MESSAGES: dict[str, Any] = {
    **{key: GRAPHS[key] for key in ("seed", "iterations", "play", "evaluation", "checkpoint", "runtime")},
    "name": "small-messages",
    "protocol": {"name": "message_game", "max_rounds": 4},
    "scenario": {"name": "message_game", "num_symbols": 5, "agents": {"_default": {"hidden": 8}}},
    "algorithm": {"num_epochs": 2, "minibatch_size": 32},
}


def small(*overrides: str, base: Mapping[str, Any] = GRAPHS) -> ExperimentConfig:
    """The small config with "a.b=c" laid over it."""
    return config_from_dict(apply_overrides(base, overrides))


def write_small(path: Path, *overrides: str, base: Mapping[str, Any] = GRAPHS) -> Path:
    """The same, as a YAML file at `path`."""
    path.write_text(yaml.safe_dump(apply_overrides(base, overrides)), encoding="utf-8")
    return path


def untimed(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row of metrics without what depends on the clock."""
    return {key: value for key, value in row.items() if not key.startswith("time/") and key != "env_steps_per_s"}


def files(run: Path) -> dict[str, bytes]:
    """Path within a run folder -> what the file holds, but for its lock."""
    return {
        str(path.relative_to(run)): path.read_bytes()
        for path in run.rglob("*")
        if path.is_file() and path.name != ".lock"
    }


def modules(run: Path, iteration: int | None = None) -> dict[str, dict[str, Any]]:
    """Agent -> the weights in a checkpoint, the newest by default."""
    return load_checkpoint(run / "checkpoints", iteration).tensors["training"]["modules"]


def nip_ray(
    *arguments: str | Path, cwd: Path | None = None, code: str = "", check: int | None = None
) -> subprocess.CompletedProcess[str]:
    """`nip-ray ARGUMENTS` in a process of its own. code: Python that runs before it. check: the exit status that it
    must have."""
    done = subprocess.run(
        command(arguments, code), cwd=cwd, env=environment(), capture_output=True, text=True, timeout=240
    )
    assert check is None or done.returncode == check, f"exit status {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


def command(arguments: Sequence[str | Path], code: str = "") -> list[str]:
    return [sys.executable, "-c", f"{code}\nfrom nip_ray.cli import main\nmain()", *map(str, arguments)]


def environment() -> dict[str, str]:
    """One thread, and this checkout's nip_ray."""
    return {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
