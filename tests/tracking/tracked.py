"""Run folders for tests of trackers, and processes that track them."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]

CONFIG = {"name": "proofs", "seed": 3, "algorithm": {"lr": 0.01, "betas": [0.9, 0.99]}, "plugins": []}


def run_folder(path: Path) -> Path:
    """A run folder with a config, a checkpoint and a file of transcripts."""
    (path / "checkpoints" / "000002" / "tensors").mkdir(parents=True)
    (path / "config.yaml").write_text("name: proofs\nseed: 3\n", encoding="utf-8")
    (path / "checkpoints" / "000002" / "manifest.json").write_text('{"iteration": 2}', encoding="utf-8")
    (path / "checkpoints" / "000002" / "tensors" / "a.bin").write_bytes(bytes(range(256)) * 40)
    (path / "transcripts").mkdir()
    (path / "transcripts" / "000002.jsonl").write_text('{"episode": 0}\n', encoding="utf-8")
    return path


def row(iteration: int) -> list[Any]:
    """The news of one row, which has everything that rows have."""
    return [
        "log",
        {
            "iteration": iteration,
            "train/verifier/accuracy": iteration / 8,
            "eval/verifier/accuracy/wl_score=-1": 0.5,
            "eval/verifier/soundness": None,
            "time/iteration_s": 0.25,
            "stage": "sampling",
        },
    ]


def files_news(folder: Path) -> list[list[Any]]:
    """The news of the checkpoint and the transcripts of `run_folder`."""
    return [
        ["checkpoint", str(folder / "checkpoints" / "000002"), 2],
        ["transcripts", str(folder / "transcripts" / "000002.jsonl"), 2],
    ]


def track(
    folder: Path,
    settings: dict[str, Any],
    news: list[list[Any]],
    *,
    resumed_from: int = 0,
    environment: dict[str, str] | None = None,
    cwd: Path | None = None,
) -> subprocess.CompletedProcess[str]:
    """`news` of the run in `folder`, told by a process of its own."""
    run = {
        "run_dir": str(folder),
        "run_id": "proofs-a1b2",
        "name": "proofs",
        "config": CONFIG,
        "group": "sweep-7",
        "resumed_from": resumed_from,
    }
    return subprocess.run(
        [sys.executable, str(Path(__file__).with_name("track.py"))],
        input=json.dumps({"settings": settings, "run": run, "news": news}),
        env={**os.environ, "PYTHONPATH": str(ROOT), **(environment or {})},
        cwd=cwd or folder.parent,
        capture_output=True,
        text=True,
        timeout=240,
    )
