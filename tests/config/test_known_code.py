"""What a run folder names for import is imported only if it is known or trusted."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from nip_ray.cli import app
from nip_ray.config import plugins
from nip_ray.config.load import config_to_yaml, load_config, read_mapping
from nip_ray.config.plugins import TRUST, code_in, know, refuse_unknown
from nip_ray.drivers.runner import run_runner
from nip_ray.drivers.spec import load_runner
from nip_ray.errors import UserError
from nip_ray.evaluation.report.findings import _can_search
from nip_ray.exports.hub import export_hf
from nip_ray.runs.experiment import resume_experiment
from nip_ray.storage.folder import RunFolder
from tests.runs.small import MESSAGES, small


@pytest.fixture(autouse=True)
def strange(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user who has run nothing yet."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv(TRUST, raising=False)
    monkeypatch.setattr(plugins, "_known", set())


def hostile(path: Path, unknown_scenario: bool = False, plain: bool = True) -> tuple[Path, Path]:
    """(a run folder that names a plugin, what that leaves when it is run). plain: without the run's own first line and
    checksum."""
    path.mkdir()
    ran = path / "ran"
    (path / "pwn.py").write_text(f"open({str(ran)!r}, 'w')\n")
    text = config_to_yaml(small(f"plugins=[{path / 'pwn.py'}]", base=MESSAGES))
    if unknown_scenario:
        text = text.replace("name: message_game", "name: unheard_of")
    if plain:
        (path / "config.yaml").write_text(text)
    else:
        (path / "config.yaml").unlink(missing_ok=True)
        (path / "pwn.py").rename(path.with_suffix(".py"))
        with RunFolder.create(path, text.replace(str(path / "pwn.py"), str(path.with_suffix(".py")))):
            pass
    return path, ran


@pytest.mark.parametrize("unknown_scenario", [False, True])
@pytest.mark.parametrize(
    "verb",
    [
        ["evaluate"],
        ["resume"],
        ["export", "hf", "--out", "out"],
        ["export", "inspect"],
        ["judge"],
        ["train", "--dry-run"],
        ["cross-play"],
    ],
    ids=lambda verb: verb[0] if len(verb) == 1 else verb[1],
)
def test_no_verb_imports_what_a_copied_folder_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: list[str], unknown_scenario: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    folder, ran = hostile(tmp_path / "copied", unknown_scenario)
    words = verb[:1] if verb[0] != "export" else verb[:2]
    others = [str(shutil.copytree(folder, tmp_path / "other"))] if verb == ["cross-play"] else []
    made = CliRunner().invoke(app, [*words, str(folder), *others, *verb[len(words) :]])
    assert made.exit_code == 2
    assert "names code to import" in made.output
    assert "nip-ray --trust" in made.output
    assert not ran.exists()


def test_export_hf_imports_nothing_before_the_folder_is_known_to_be_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, ran = hostile(tmp_path / "copied")
    monkeypatch.setenv(TRUST, "1")
    with pytest.raises(UserError, match="no checkpoint to export"):
        export_hf(folder, tmp_path / "out")
    assert not ran.exists()


def test_no_page_and_no_resumed_sweep_imports_what_a_copied_folder_names(tmp_path: Path) -> None:
    folder, ran = hostile(tmp_path / "copied", unknown_scenario=True)
    config = yaml.safe_load((folder / "config.yaml").read_text())
    assert not _can_search(config)
    (folder / "config.yaml").unlink()
    (folder / "sweep.yaml").write_text(yaml.safe_dump({**config, "sweep": {"seeds": [0, 1]}}))
    made = CliRunner().invoke(app, ["sweep", "--resume", str(folder)])
    assert "nip-ray --trust" in made.output
    assert not ran.exists()


@pytest.mark.parametrize(
    "more",
    [
        {"sweep": {"cases": {"a": {"plugins": ["pwn.py"], "protocol.name": "nosuch"}}}},
        {"plugins": {"choice": [["pwn.py"]]}},
        {"plugins.0": "pwn.py", "sweep": {"seeds": [0]}},
        {"environment": {"name": "experiment", "config": "x", "changes": ["a=1", "plugins=[pwn.py]"]}},
        {"learners": [{"algorithm": {"changes": ["plugins.0=pwn.py"]}}]},
    ],
)
def test_plugins_are_found_wherever_they_are_named(more: dict[str, Any], tmp_path: Path) -> None:
    assert code_in(more) == ["pwn.py"]
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(more))
    with pytest.raises(UserError, match=r"names code to import \(pwn.py\)"):
        read_mapping(tmp_path)


def test_a_runner_folder_imports_nothing_by_the_experiment_that_it_names(tmp_path: Path) -> None:
    """A file of the user's own names it, too, and may."""
    copied, ran = hostile(tmp_path / "copied", unknown_scenario=True)
    (copied / "config.yaml").rename(tmp_path / "experiment.yaml")
    runner = {"environment": {"name": "experiment", "config": str(tmp_path / "experiment.yaml")}}
    (copied / "config.yaml").write_text(yaml.safe_dump(runner))
    with pytest.raises(UserError, match="names code"):
        run_runner(copied, tmp_path / "run")
    assert not ran.exists()
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(runner))
    with pytest.raises(UserError, match="unheard_of"):
        run_runner(tmp_path / "mine.yaml", tmp_path / "run")
    assert ran.exists()


def test_trusted_folders_and_those_of_this_user_are_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, _ = hostile(tmp_path / "copied")
    plugin = str(folder / "pwn.py")
    with pytest.raises(UserError, match="names code"):
        load_config(folder / "config.yaml", checked=False)
    made = CliRunner().invoke(app, ["--trust", "train", str(folder), "--dry-run"])
    assert (made.exit_code, f"- {plugin}" in made.output or f"[{plugin}]" in made.output) == (0, True)
    with pytest.raises(UserError, match="names code"):
        read_mapping(folder)
    know([plugin], keep=True)
    monkeypatch.setattr(plugins, "_known", set())  # another process
    assert load_config(folder / "config.yaml", checked=False).plugins == (plugin,)


def test_a_file_on_the_command_line_names_its_plugins(tmp_path: Path) -> None:
    """For the folder of its run, too, where no list can be kept."""
    (tmp_path / "state").write_text("a file where a folder must be")
    folder, _ = hostile(tmp_path / "copied")
    shutil.copy(folder / "config.yaml", tmp_path / "mine.yaml")
    assert load_config(tmp_path / "mine.yaml").plugins
    know(load_config(tmp_path / "mine.yaml").plugins, keep=True)
    assert load_config(folder / "config.yaml", checked=False).plugins


def test_a_stored_config_is_a_runs_whatever_it_is_called(tmp_path: Path) -> None:
    folder, _ = hostile(tmp_path / "copied", plain=False)
    (folder / "config.yaml").rename(tmp_path / "renamed.yaml")
    with pytest.raises(UserError, match="names code"):
        load_config(tmp_path / "renamed.yaml")


def test_environments_of_runner_files_are_code(tmp_path: Path) -> None:
    runner: dict[str, Any] = {
        "environment": {"name": "gymnasium", "id": "pwn:Env-v0"},
        "learners": [{"algorithm": {"name": "ppo"}}],
    }
    assert code_in(runner) == ["pwn"]
    folder = tmp_path / "copied"
    folder.mkdir()
    (folder / "config.yaml").write_text(
        "environment: {name: gymnasium, id: 'pwn:Env-v0'}\nlearners: [{algorithm: {name: ppo}}]\n"
    )
    with pytest.raises(UserError, match=r"names code to import \(pwn\)"):
        load_runner(folder)
    with pytest.raises(UserError, match=r"names code to import \(pwn\)"):
        resume_experiment(folder)
    (mine := tmp_path / "mine.yaml").write_text((folder / "config.yaml").read_text())
    load_runner(mine)
    refuse_unknown(runner, "config.yaml")
