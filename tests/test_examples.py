"""The examples do what they say."""

import importlib.util
import json
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from typer.testing import CliRunner

from nip_ray.cli import app
from nip_ray.protocols import PROTOCOLS, build, check
from nip_ray.runs.folder import RunFolder

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
TINY = ("iterations=2", "scenario.data.num_train=40", "scenario.data.num_test=20", "play.num_copies=32", "runtime.num_threads=1")


@pytest.fixture
def registry() -> Iterator[None]:
    """What a plugin registers is forgotten again."""
    before = dict(PROTOCOLS)
    yield
    PROTOCOLS.clear()
    PROTOCOLS.update(before)


def imported(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"example_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(("name", "most"), [("own_protocol.py", 40), ("train_in_python.py", 30)])
def test_examples_are_short(name: str, most: int) -> None:
    assert len((EXAMPLES / name).read_text(encoding="utf-8").splitlines()) <= most


@pytest.mark.usefixtures("registry")
def test_own_protocol_passes_the_check() -> None:
    imported(EXAMPLES / "own_protocol.py")
    protocol = build("criticised")
    check(protocol)
    assert protocol.provers == ("prover", "critic")
    assert build("criticised", max_rounds=5, verifier_reward=2.0).payment.verifier_reward == 2.0


def test_own_protocol_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the top of the repository, as its config says; afterwards the run works from anywhere."""
    monkeypatch.chdir(EXAMPLES.parent)
    run = tmp_path / "run"
    settings = [word for setting in TINY for word in ("--set", setting)]
    done = CliRunner().invoke(app, ["train", "examples/own_protocol.yaml", "--run-dir", str(run), *settings])
    assert done.exit_code == 0, done.output
    assert "eval/verifier/accuracy" in done.stdout
    with RunFolder.open(run) as folder:
        rows = folder.metrics()
        assert len(rows) == 2
        assert {"train/critic/return", "learn/critic/entropy", "eval/prover/return"} <= rows[-1].keys()
        assert len(folder.read_transcripts("000002")) == 20
    monkeypatch.chdir(tmp_path)
    figures = CliRunner().invoke(app, ["evaluate", "run", "--json"])
    assert figures.exit_code == 0, figures.output
    assert json.loads(figures.stdout)["eval/critic/return"] == rows[-1]["eval/critic/return"]
    assert CliRunner().invoke(app, ["resume", "run", "--iterations", "3", "--quiet"]).exit_code == 0


def test_training_in_python(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    example = imported(EXAMPLES / "train_in_python.py")
    example.CONFIG.update(iterations=2, runtime={"num_threads": 1})
    example.main(str(tmp_path / "run"))
    said = capsys.readouterr().out
    assert "after 2 iterations" in said
    assert f"everything is in {tmp_path / 'run'}" in said
    assert (tmp_path / "run" / "report.html").is_file()
