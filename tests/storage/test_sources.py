"""Starting from other runs: by their folders, and by what they left at Weights & Biases.

The service itself is not there to be asked. `Shelf` stands in for the one function that asks it, and hands out real
files of real runs.
"""

import shutil
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from nip_ray.cli import app
from nip_ray.config.experiment import ExperimentConfig
from nip_ray.config.load import config_to_yaml, load_config
from nip_ray.errors import UserError
from nip_ray.runs.experiment import resume_experiment, run_experiment
from nip_ray.runs.initial_weights import initial_weights
from nip_ray.storage.checkpoint import load_checkpoint
from nip_ray.storage.folder import RunFolder
from nip_ray.storage.sources import FETCHED, run_folder
from tests.runs.small import MESSAGES, small
from tests.storage.mirrored import refusal

NAME = "wandb:team/proofs/checkpoint-r1:v3"
LATEST = "wandb:team/proofs/checkpoint-r1:latest"
CONFIG_OF = "wandb:team/proofs/config-r1:v0"


class Shelf:
    """Artifacts in folders. asked: what was fetched, in order."""

    def __init__(self, root: Path) -> None:
        self.root, self.asked = root, list[str]()

    def put(self, source: str, *parts: tuple[Path, str]) -> Path:
        """An artifact of copies of files and folders, each with its name in it."""
        made = self.root / source.replace("/", "_")
        made.mkdir(parents=True)
        for path, name in parts:
            (made / name).parent.mkdir(parents=True, exist_ok=True)
            (shutil.copytree if path.is_dir() else shutil.copy)(path, made / name)
        return made

    def fetch(self, source: str, into: Path) -> Path:
        """As `nip_ray.storage.wandb_source.fetch`."""
        self.asked.append(source)
        held = self.root / source.replace("/", "_")
        if not held.is_dir():
            raise UserError(f"there is no artifact {source}")
        return Path(shutil.copytree(held, into / "run"))


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shelf:
    made = Shelf(tmp_path / "shelf")
    monkeypatch.setitem(sys.modules, "nip_ray.storage.wandb_source", SimpleNamespace(fetch=made.fetch))  # type: ignore[arg-type]
    return made


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = small("iterations=2", "seed=5", "checkpoint.interval=1", base=MESSAGES)
    return run_experiment(config, tmp_path_factory.mktemp("source") / "run", quiet=True).run_dir


def keep(shelf: Shelf, run: Path, name: str, iteration: int = 2) -> Path:
    """A checkpoint of `run` as the tracker leaves it."""
    place = f"checkpoints/{iteration:06d}"
    return shelf.put(name, (run / "config.yaml", "config.yaml"), (run / place, place))


def taking(run_dir: str, *agents: str) -> ExperimentConfig:
    return small(
        "iterations=1",
        *(f"initial_weights.{agent}.run_dir={run_dir}" for agent in agents or ("prover",)),
        base=MESSAGES,
    )


def given(config: ExperimentConfig, beside: Path | None = None) -> dict[str, Any]:
    weights, notes = initial_weights(config, beside)
    assert notes == []
    return weights


def weights_of(run: Path, agent: str, iteration: int = 2) -> dict[str, torch.Tensor]:
    return load_checkpoint(run / "checkpoints", iteration).tensors["training"]["modules"][agent]


def same(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def test_a_run_folder_stands_for_its_config(source: Path) -> None:
    with RunFolder.open(source) as folder:
        assert config_to_yaml(load_config(source)) == folder.config_yaml()
    assert load_config(str(source), ["seed=9"]) == load_config(source / "config.yaml", ["seed=9"])


def test_the_parameters_of_an_artifact(shelf: Shelf, source: Path) -> None:
    shelf.put(CONFIG_OF, (source / "config.yaml", "config.yaml"))
    assert load_config(CONFIG_OF, ["seed=9"]) == load_config(source, ["seed=9"])
    result = CliRunner().invoke(app, ["train", CONFIG_OF, "--seed", "9", "--dry-run"])
    assert result.exit_code == 0, result.output
    assert result.stdout == config_to_yaml(load_config(source, ["seed=9"]))


def test_what_is_wrong_with_fetched_parameters(shelf: Shelf, source: Path, tmp_path: Path) -> None:
    assert "there is no artifact wandb:a/b/c:v1" in refusal(lambda: load_config("wandb:a/b/c:v1"))
    shelf.put("wandb:a/b/pictures:v1", (source / "report.html", "report.html"))
    assert refusal(lambda: load_config("wandb:a/b/pictures:v1")).startswith(
        "wandb:a/b/pictures:v1: holds no config.yaml"
    )
    (wrong := tmp_path / "wrong.yaml").write_text("sed: 3\n")
    shelf.put("wandb:a/b/wrong:v1", (wrong, "config.yaml"))
    assert refusal(lambda: load_config("wandb:a/b/wrong:v1")).startswith("wandb:a/b/wrong:v1: sed: unknown key")


def test_fetched_parameters_import_no_code_unless_it_is_named(shelf: Shelf, tmp_path: Path) -> None:
    (plugin := tmp_path / "plugin.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    (config := tmp_path / "plugged.yaml").write_text(f"plugins: [{plugin}]\n")
    shelf.put(CONFIG_OF, (config, "config.yaml"))
    assert "are code; name those to import by --set plugins=[...]" in refusal(
        lambda: load_config(CONFIG_OF, ["seed=1"])
    )
    assert load_config(CONFIG_OF, ["plugins=[]"]).plugins == ()
    assert load_config(CONFIG_OF, [f"plugins=[{plugin}]"]).plugins == (str(plugin),)
    assert load_config(config).plugins == (str(plugin),), "a file of one's own is trusted"
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("name", [NAME, LATEST])
def test_an_agent_of_an_artifact(shelf: Shelf, source: Path, tmp_path: Path, name: str) -> None:
    keep(shelf, source, name)
    weights = given(taking(name, "prover", "verifier"), tmp_path / "runs" / "new")
    assert all(same(weights[agent], weights_of(source, agent)) for agent in ("prover", "verifier"))
    assert shelf.asked == [name], "both agents come from one"


def test_a_numbered_version_is_fetched_once(shelf: Shelf, source: Path, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    held = keep(shelf, source, NAME)
    given(taking(NAME), runs / "first")
    shutil.rmtree(held)
    assert same(given(taking(NAME), runs / "second")["prover"], weights_of(source, "prover"))
    assert shelf.asked == [NAME]
    assert [path.name for path in runs.iterdir()] == [FETCHED], "beside the run's folder, and nothing else"
    assert len(list((runs / FETCHED).iterdir())) == 1


def test_what_latest_means_is_asked_anew(shelf: Shelf, source: Path, tmp_path: Path) -> None:
    held = keep(shelf, source, LATEST, 1)
    assert same(given(taking(LATEST), tmp_path / "runs" / "new")["prover"], weights_of(source, "prover", 1))
    shutil.rmtree(held)
    keep(shelf, source, LATEST, 2)
    assert same(given(taking(LATEST), tmp_path / "runs" / "new")["prover"], weights_of(source, "prover", 2))
    assert not (tmp_path / "runs").exists(), "nothing is kept"


def test_a_kept_copy_that_was_damaged_is_fetched_anew(shelf: Shelf, source: Path, tmp_path: Path) -> None:
    keep(shelf, source, NAME)
    given(taking(NAME), tmp_path / "runs" / "new")
    (file,) = (tmp_path / "runs" / FETCHED).rglob("training.pt")
    file.write_bytes(file.read_bytes()[:-1])
    assert same(given(taking(NAME), tmp_path / "runs" / "new")["prover"], weights_of(source, "prover"))
    assert shelf.asked == [NAME, NAME]
    assert len(list((tmp_path / "runs" / FETCHED).iterdir())) == 1


@pytest.mark.parametrize("name", [NAME, LATEST])
def test_damaged_artifacts_are_not_used(shelf: Shelf, source: Path, tmp_path: Path, name: str) -> None:
    file = keep(shelf, source, name) / "checkpoints" / "000002" / "training.pt"
    content = file.read_bytes()
    file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    said = refusal(lambda: given(taking(name), tmp_path / "runs" / "new"))
    assert said.startswith(f"initial_weights.prover: {name}: ")
    assert "training.pt does not match its checksum" in said
    assert str(tmp_path) not in said, "no folder that is gone again"
    assert not list((tmp_path / "runs").rglob("training.pt")), "and not kept"


def test_artifacts_that_hold_no_checkpoint(shelf: Shelf, source: Path) -> None:
    shelf.put(CONFIG_OF, (source / "config.yaml", "config.yaml"))
    assert "there is no checkpoint" in refusal(lambda: given(taking(CONFIG_OF)))
    keep(shelf, source, NAME)
    config = small(f"initial_weights.prover={{run_dir: '{NAME}', checkpoint: 1}}", base=MESSAGES)
    assert "there is no checkpoint of iteration 1 (there is: 2)" in refusal(lambda: given(config))
    assert "does not fit" in refusal(lambda: given(small(f"initial_weights.prover.run_dir={NAME}")))


def test_a_checkpoint_of_another_config_is_refused(shelf: Shelf, source: Path, tmp_path: Path) -> None:
    """Whoever puts together files of two runs."""
    (other := tmp_path / "other.yaml").write_text(config_to_yaml(small("seed=6", base=MESSAGES)))
    shelf.put(NAME, (other, "config.yaml"), (source / "checkpoints" / "000002", "checkpoints/000002"))
    assert "is a checkpoint of another config" in refusal(lambda: given(taking(NAME)))


@pytest.mark.parametrize("name", [NAME, LATEST])
def test_a_run_starts_from_an_artifact_and_goes_on_without_it(
    shelf: Shelf, source: Path, tmp_path: Path, name: str
) -> None:
    held = keep(shelf, source, name)
    rule = small("algorithm.lr=1e-30", base=MESSAGES).algorithm
    run = run_experiment(
        taking(name).model_copy(update={"algorithm": rule}), tmp_path / "runs" / "new", quiet=True
    ).run_dir
    ours, theirs = weights_of(run, "prover", 1), weights_of(source, "prover")
    assert all(torch.allclose(ours[key], theirs[key], rtol=0, atol=1e-20) for key in theirs)
    assert load_config(run).initial_weights["prover"].run_dir == name
    shutil.rmtree(held)
    shutil.rmtree(tmp_path / "runs" / FETCHED, ignore_errors=True)
    assert resume_experiment(run, iterations=2, quiet=True).iterations == 2


def test_an_artifact_is_a_run_folder(shelf: Shelf, source: Path, tmp_path: Path) -> None:
    """Fetched by hand, it can be named wherever a run folder can."""
    keep(shelf, source, NAME)
    with run_folder(NAME, tmp_path / "new") as path:
        assert load_config(path) == load_config(source)
        result = CliRunner().invoke(app, ["evaluate", str(path), "--json"])
        assert result.exit_code == 0, result.output
    with run_folder(str(source)) as path:
        assert path == source
