"""What `pip install nip_ray` gives without the extra `ray`: in new interpreters that cannot import Ray."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from nip_ray.runs.experiment import run_experiment
from tests.runs.small import small

ROOT = Path(__file__).resolve().parents[1]
NO_RAY = "import sys; sys.modules['ray'] = None; sys.argv = sys.argv[1:]; "
CLI = f"{NO_RAY} from nip_ray.cli import main; main()"
VERBS = f"""{NO_RAY}
import json
from nip_ray.cli import app
for words in json.loads(sys.argv[0]):
    app(words, standalone_mode=False)
"""
SCRIPT = f"{NO_RAY} import runpy; runpy.run_path(sys.argv[0], run_name='__main__')"
MISSING = "error: this needs the package ray: pip install 'nip_ray[ray]'\n"


def python(source: str, *words: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", source, *map(str, words)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)


def nip_ray(*verbs: list[str | Path]) -> list[str]:
    """What these verbs print, one after the other in one interpreter."""
    done = python(VERBS, json.dumps([list(map(str, words)) for words in verbs]))
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_a_run_folder_is_listed_evaluated_and_reported(tmp_path: Path) -> None:
    folder = run_experiment(small("iterations=1"), tmp_path / "run", quiet=True).run_dir
    listed, evaluated, _ = nip_ray(["list", tmp_path, "--json"], ["evaluate", folder, "--json"], ["report", folder])
    assert json.loads(listed)["runs"]
    assert "eval/verifier/accuracy" in json.loads(evaluated)


def test_language_agents_play_and_are_evaluated(tmp_path: Path) -> None:
    config = {
        "iterations": 1,
        "protocol": {"name": "adp"},
        "providers": {"nobody": {"name": "dummy"}},
        "scenario": {
            "name": "code_validation",
            "data": {"num_train": 4, "num_test": 2},
            "agents": {"_default": {"provider": "nobody", "model": "none"}},
        },
        "algorithm": {
            "name": "expert_iteration",
            "rollouts_per_iteration": 4,
            "num_test_items": 2,
            "fine_tuning": {"min_examples": 1},
        },
    }
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config))
    run = tmp_path / "run"
    [evaluated] = nip_ray(["train", tmp_path / "config.yaml", "--run-dir", run, "--quiet"], ["evaluate", run, "--json"])
    assert json.loads(evaluated)


def test_the_loop_on_one_page_trains() -> None:
    sizes = ["iterations=2", "play.num_copies=16", "algorithm.minibatch_size=64", "runtime.num_threads=1"]
    words = [word for size in sizes for word in ("--set", size)]
    done = python(SCRIPT, "examples/ppo_loop.py", "tune_configs/message_game.yaml", *words)
    assert done.returncode == 0, done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["1", "2"]


@pytest.mark.parametrize(
    "words",
    [
        ("train", "tune_configs/message_game.yaml", "--run-dir", "RUN"),
        ("train", "tune_configs/ei_offline.yaml", "--run-dir", "RUN"),
        ("run", "tune_configs/runner_message_game.yaml", "--run-dir", "RUN"),
        ("sweep", "tune_configs/sweep_tiny.yaml", "--storage", "RUN"),
    ],
    ids=lambda words: " ".join(words[:2]),
)
def test_what_needs_ray_says_so_before_all_else(words: tuple[str, ...], tmp_path: Path) -> None:
    run = tmp_path / "run"
    done = python(CLI, "nip-ray", *(str(run) if word == "RUN" else word for word in words))
    assert (done.returncode, done.stderr) == (2, MISSING)
    assert not run.exists()
