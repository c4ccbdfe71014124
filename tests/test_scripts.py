"""Every script runs alone, at a tiny size."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TINY = ["scenario.data.num_train=40", "scenario.data.num_test=20", "play.num_copies=8", "algorithm.minibatch_size=64"]


def run(script: str, *arguments: str) -> str:
    """What a script prints."""
    done = subprocess.run([sys.executable, ROOT / "scripts" / script, *arguments], capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_ppo_gi(tmp_path: Path) -> None:
    settings = [part for setting in (*TINY, "algorithm.num_epochs=1", "runtime.num_threads=1") for part in ("--set", setting)]
    printed = run("ppo_gi.py", "--iterations", "1", "--seeds", "3", "--out", str(tmp_path), *settings)
    assert "eval/verifier/accuracy" in printed
    assert (tmp_path / "gi-published-seed3" / "report.html").is_file()


def test_create_gi_dataset(tmp_path: Path) -> None:
    assert '"pairs": 60' in run("create_gi_dataset.py", str(tmp_path / "gi"), "--pairs", "60", "--test-pairs", "20")
    assert (tmp_path / "gi" / "test.pairs.npz").is_file()
