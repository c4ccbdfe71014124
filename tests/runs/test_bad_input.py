"""Bad input through the command line: one clear line that names the file or key, the right exit status, and nothing
lost."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from typer.testing import CliRunner, Result

from nip_ray.cli import app
from nip_ray.config.load import load_config
from nip_ray.runs.experiment import run_experiment
from nip_ray.scenarios.graph_isomorphism.dataset import save_pairs, to_raw
from nip_ray.scenarios.graph_isomorphism.generate import GeneratorSettings, generate_pairs
from nip_ray.storage.checkpoint import load_checkpoint
from nip_ray.storage.folder import RunFolder
from tests.runs.small import MESSAGES, environment, files, small, untimed, write_small

BREAKDOWN = ("iterations=6", "checkpoint.interval=1", "evaluation.interval=2", "play.num_copies=24")


def call(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def error_of(result: Result, code: int = 2) -> str:
    """The one line that a failed call printed, after what it may have said of its progress."""
    assert result.exit_code == code, result.output
    assert result.stdout == ""
    *told, line = result.stderr.splitlines()
    assert all(one.startswith(("run ", "iteration ", "warning: ")) for one in told), result.stderr
    assert line.startswith("error: ")
    return line


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_experiment(small("iterations=2"), tmp_path_factory.mktemp("finished") / "run", quiet=True).run_dir


@pytest.fixture(scope="module")
def bad_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of data files, each with something wrong: see DATA_FAULTS."""
    folder = tmp_path_factory.mktemp("data")
    pairs = generate_pairs(20, 1, GeneratorSettings(graph_sizes=(7,)))
    raw = to_raw(pairs)
    save_pairs(pairs, folder / "good.npz")
    whole = (folder / "good.npz").read_bytes()
    (folder / "truncated.npz").write_bytes(whole[: len(whole) // 2])
    np.savez(folder / "shape.npz", **{**raw, "sizes_b": raw["sizes_b"][:-1]})
    torch.save([1, 2], folder / "list.pt")
    return folder


DATA_FAULTS = {"truncated.npz": "", "shape.npz": "sizes_b", "list.pt": "a dict of tensors"}


@pytest.mark.parametrize(("name", "said"), DATA_FAULTS.items())
@pytest.mark.parametrize("split", ["train", "test"])
def test_training_on_a_bad_data_file(bad_files: Path, tmp_path: Path, split: str, name: str, said: str) -> None:
    config = write_small(tmp_path / "small.yaml", f"scenario.data.{split}={bad_files / name}")
    line = error_of(call("train", config, "--run-dir", tmp_path / "run"))
    assert str(bad_files / name) in line
    assert said in line
    assert "expected" in line, "it says what would be right"
    assert not (tmp_path / "run").exists(), "nothing stands in the way of the next attempt"


def test_evaluating_what_is_not_there(finished: Path, tmp_path: Path) -> None:
    nowhere = tmp_path / "nowhere.npz"
    assert f"{nowhere}: no such file" in error_of(call("evaluate", finished, "--dataset", nowhere))
    assert "data.pt" in error_of(call("evaluate", finished, "--dataset", tmp_path)), "a folder without one"
    line = error_of(call("evaluate", finished, "--checkpoint", "1"))
    assert "no checkpoint of iteration 1" in line
    assert "2" in line
    assert "no such folder" in error_of(call("evaluate", tmp_path / "nowhere"))
    assert "not a run folder" in error_of(call("evaluate", tmp_path))
    RunFolder.create(tmp_path / "fresh", (finished / "config.yaml").read_text(encoding="utf-8")).close()
    assert "no checkpoint to examine" in error_of(call("evaluate", tmp_path / "fresh", "--json"))


def test_a_scenario_without_data_sets(bad_files: Path, tmp_path: Path) -> None:
    run = run_experiment(small("iterations=1", base=MESSAGES), tmp_path / "run", quiet=True).run_dir
    assert "has no data sets" in error_of(call("evaluate", run, "--dataset", bad_files / "good.npz"))


def test_resuming_when_the_data_file_is_gone(bad_files: Path, tmp_path: Path) -> None:
    data = Path(shutil.copy(bad_files / "good.npz", tmp_path / "pairs.npz"))
    run = run_experiment(small(f"scenario.data.train={data}", "iterations=1"), tmp_path / "run", quiet=True).run_dir
    moved = data.rename(tmp_path / "moved.npz")
    before = files(run)
    assert error_of(call("resume", run, "--iterations", "2")).startswith(
        f"error: scenario.data.train: {data}: no such file, put it there"
    )
    after = files(run)
    assert {**after, "config.yaml": b""} == {**before, "config.yaml": b""}
    moved.rename(data)
    assert call("resume", run, "--iterations", "2", "--quiet").exit_code == 0


CONFIG_FAULTS: dict[str, tuple[list[str], str]] = {
    "typo": (
        ["--set", "algorithm.minibach_size=4"],
        "algorithm.minibach_size: unknown key, did you mean minibatch_size",
    ),
    "protocol": (["--set", "protocol.name=nipp"], "protocol.name: unknown protocol 'nipp', did you mean nip"),
    "data": (["--set", "scenario.data.train=nowhere.npz"], "scenario.data.train: nowhere.npz: no such file"),
    "plugin": (["--set", "plugins=[nowhere.py]"], "plugins.0: nowhere.py: no such file"),
    "agent": (["--set", "scenario.agents.provr={}"], "scenario.agents.provr: not an agent of nip, did you mean prover"),
    "type": (["--set", "algorithm.lr=fast"], "algorithm.lr: got 'fast', expected number > 0"),
    "yaml": (["--set", "algorithm.lr=[1"], "no valid YAML"),
    "run": (["--run-dir", "RUN"], "`nip-ray resume"),
    "full": (["--run-dir", "FULL"], "is not empty"),
    "file": (["--run-dir", "FULL/something"], "is a file"),
}


def test_configs_are_refused_at_once(finished: Path, tmp_path: Path) -> None:
    """Each within a second, and without torch or Ray: in one process, so that its start counts once."""
    config = write_small(tmp_path / "small.yaml")
    full = tmp_path / "full"
    full.mkdir()
    (full / "something").write_text("", encoding="utf-8")
    words = {"RUN": str(finished), "FULL": str(full), "FULL/something": str(full / "something")}
    calls = {
        name: ["train", str(config), *(words.get(word, word) for word in more)]
        for name, (more, _) in CONFIG_FAULTS.items()
    }
    source = """
import json, sys, time
from typer.testing import CliRunner
from nip_ray.cli import app
found = {}
for name, arguments in json.loads(sys.argv[1]).items():
    start = time.process_time()
    result = CliRunner().invoke(app, arguments)
    found[name] = [result.exit_code, result.stdout, result.stderr, time.process_time() - start]
print(json.dumps([found, sorted({"torch", "ray", "numpy", "matplotlib"} & set(sys.modules))]))
"""
    command = [sys.executable, "-c", source, json.dumps(calls)]
    before = files(finished)
    done = subprocess.run(
        command, env=environment(), cwd=tmp_path, capture_output=True, text=True, check=True, timeout=60
    )
    found, heavy = json.loads(done.stdout)
    assert heavy == []
    for name, (_, said) in CONFIG_FAULTS.items():
        code, out, err, seconds = found[name]
        assert (code, out, len(err.splitlines())) == (2, "", 1), (name, err)
        assert said in err
        assert seconds < 1, name
    assert files(finished) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["full", "small.yaml"], "no folder was made"


def test_a_bad_plugin(tmp_path: Path) -> None:
    plugin = tmp_path / "plugin.py"
    plugin.write_text(
        "from dataclasses import replace\n"
        "from nip_ray.protocols import build, register\n"
        "register('own', lambda params: replace(build('nip'), max_rounds=0))\n"
    )
    base: dict[str, Any] = {**yaml.safe_load(write_small(tmp_path / "small.yaml").read_text(encoding="utf-8"))}
    base |= {"plugins": [str(plugin)], "protocol": {"name": "own"}}
    (tmp_path / "small.yaml").write_text(yaml.safe_dump(base), encoding="utf-8")
    assert "max_rounds" in error_of(call("train", tmp_path / "small.yaml", "--run-dir", tmp_path / "run"))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "is empty"),
        ("- a\n", "at its top level"),
        ("nme: a\n", "nme: unknown key"),
        ("a: [", "YAML"),
    ],
)
@pytest.mark.parametrize("verb", ["resume", "evaluate"])
def test_a_run_with_a_damaged_config(finished: Path, tmp_path: Path, verb: str, content: str, said: str) -> None:
    run = Path(shutil.copytree(finished, tmp_path / "run"))
    (run / "config.yaml").write_text(content, encoding="utf-8")
    before = files(run)
    line = error_of(call(verb, run))
    assert str(run / "config.yaml") in line
    assert said in line
    assert files(run) == before


@pytest.mark.parametrize("verb", ["resume", "evaluate"])
def test_a_config_that_lost_its_end_or_a_digit_is_not_another_one(finished: Path, tmp_path: Path, verb: str) -> None:
    run = Path(shutil.copytree(finished, tmp_path / "run"))
    whole = (run / "config.yaml").read_text(encoding="utf-8")
    lines = whole.splitlines(keepends=True)
    damaged = ["".join(lines[:count]) for count in range(1, len(lines), 9)]
    damaged += [whole[:-1], whole.replace("iterations: 2", "iterations: 3", 1)]
    for content in damaged if verb == "resume" else damaged[-1:]:
        assert content != whole
        (run / "config.yaml").write_text(content, encoding="utf-8")
        before = files(run)
        assert "is damaged: it is not as the run wrote it" in error_of(call(verb, run))
        assert files(run) == before
    (run / "config.yaml").write_text("".join(lines[1:-1]), encoding="utf-8")
    assert load_config(run) == load_config(finished), "what an earlier version wrote, or a user changed"


def test_a_nan_in_training_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A NaN that comes in iteration 5 of 6: exit status 1, all that was saved can be used, and without its cause the
    run continues."""
    from nip_ray.rllib.ppo import PPOLearner

    update = PPOLearner.update

    def poisoned(self: Any, *args: Any, **kwargs: Any) -> Any:
        if kwargs["iteration"] == 4:  # counted from 0
            parameter = next(iter(self.networks["verifier"].parameters()))
            parameter.data.fill_(float("nan"))
        return update(self, *args, **kwargs)

    config, run = write_small(tmp_path / "small.yaml", *BREAKDOWN), tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(PPOLearner, "update", poisoned)
        line = error_of(call("train", config, "--run-dir", run), 1)
        assert "not finite" in line
        assert "'verifier'" in line
        assert "algorithm.lr" in line
        assert load_checkpoint(run / "checkpoints").iteration == 4
        with RunFolder.open(run) as folder:
            assert [row["iteration"] for row in folder.metrics()] == [1, 2, 3, 4]
            last = folder.metrics()[-1]
        figures = json.loads(call("evaluate", run, "--json").stdout)
        assert figures["iteration"] == 4
        assert figures["eval/verifier/accuracy"] == last["eval/verifier/accuracy"]
        assert call("report", run).exit_code == 0
        before = files(run)
        assert "not finite" in error_of(call("resume", run), 1)
        after = files(run)
        assert {name: after[name] for name in before if name.startswith("checkpoints")} == {
            name: content for name, content in before.items() if name.startswith("checkpoints")
        }
    assert call("resume", run, "--quiet").exit_code == 0
    whole = run_experiment(small(*BREAKDOWN), tmp_path / "whole", quiet=True).run_dir
    with RunFolder.open(run) as ours, RunFolder.open(whole) as theirs:
        assert [untimed(row) for row in ours.metrics()] == [untimed(row) for row in theirs.metrics()]
