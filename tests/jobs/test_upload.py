"""What `--working-dir .` uploads: configs and scripts, by Ray's own packing and its own reading of .rayignore."""

import subprocess
import zipfile
from pathlib import Path, PurePosixPath

import pytest
from ray._private.runtime_env.packaging import create_package

from tests.jobs.head import ROOT

MAX_BYTES = 500_000  # Ray's package is not compressed


def packed(folder: Path, target: Path, include_gitignore: bool) -> list[str]:
    """The files of the package that Ray makes of `folder`."""
    create_package(str(folder), target, include_gitignore=include_gitignore, logger=None)
    with zipfile.ZipFile(target) as package:
        return [name for name in package.namelist() if not name.endswith("/")]


@pytest.fixture(scope="module", params=[True, False], ids=["with .gitignore", "by .rayignore alone"])
def upload(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[list[str], int]:
    target = tmp_path_factory.mktemp("upload") / "package.zip"
    return packed(ROOT, target, request.param), target.stat().st_size


def test_the_upload_is_small(upload: tuple[list[str], int]) -> None:
    assert upload[1] < MAX_BYTES


def test_the_upload_has_all_that_a_job_needs(upload: tuple[list[str], int]) -> None:
    listed = subprocess.run(
        ["git", "ls-files", "tune_configs", "scripts", "pyproject.toml"], cwd=ROOT, capture_output=True, text=True
    )
    wanted = (
        {name for name in listed.stdout.splitlines() if (ROOT / name).is_file()} if listed.returncode == 0 else set()
    )
    wanted |= {"tune_configs/quickstart.yaml", "scripts/ppo_gi.py", "pyproject.toml"}
    assert not wanted - set(upload[0])


def test_the_upload_has_nothing_else(upload: tuple[list[str], int]) -> None:
    folders = {PurePosixPath(name).parts[0] for name in upload[0]}
    away = ".git .venv .hypothesis .pytest_cache .ruff_cache tests docs benchmarks runs data served"
    assert not folders & {*away.split(), "nip_ray"}, "the package is installed on the nodes"
    assert not [name for name in upload[0] if "__pycache__" in name or name.endswith((".pyc", ".pem", ".env"))]


def test_the_package_itself_can_be_sent_without_what_python_made_of_it(tmp_path: Path) -> None:
    """By `py_modules`, for which only the .rayignore in the package counts."""
    files = packed(ROOT / "nip_ray", tmp_path / "package.zip", include_gitignore=False)
    assert "cli/__main__.py" in files
    assert not [name for name in files if name.endswith(".pyc")]


def test_results_data_and_keys_stay_at_home(tmp_path: Path) -> None:
    """A folder with this repository's .rayignore and everything that a user's may hold."""
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / ".rayignore").write_text((ROOT / ".rayignore").read_text())
    mine = ["words/words.txt", "tune_configs/mine.yaml", "my_protocol.py"]
    others = (
        ".git/HEAD .venv/bin/python runs/a/metrics.jsonl data/gi.npz gi.npz tests/test_x.py nip_ray/__pycache__/x.pyc"
        " .env key.pem"
    )
    others += " auth_token wandb/x served/model.safetensors benchmarks/out/x.log .hypothesis/x .ruff_cache/x"
    for name in mine + others.split():
        file = tmp_path / "work" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("x")
    files = packed(tmp_path / "work", tmp_path / "package.zip", include_gitignore=False)
    assert set(files) - {".rayignore"} == set(mine)
