"""Wheel and sdist have what an installation needs, the wheel works outside the repository, and `make` installs from
nothing."""

import os
import re
import shutil
import socket
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest
import yaml
from packaging.metadata import Metadata
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from nip_ray.version import __version__

ROOT = Path(__file__).resolve().parents[1]


TORCH_INDEX = "https://download.pytorch.org/whl/cpu"
HOSTS = {"pypi.org", "files.pythonhosted.org", "download.pytorch.org"}


def run(*words: str | Path, cwd: Path, env: dict[str, str] | None = None) -> str:
    done = subprocess.run([str(word) for word in words], cwd=cwd, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_what_is_built_works_in_an_environment_of_its_own(tmp_path: Path) -> None:
    """The sdist is made from the repository, the wheel from the sdist. Dependencies come from this environment."""
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", tmp_path, cwd=ROOT)
    (wheel,), (sdist,) = tmp_path.glob("*.whl"), tmp_path.glob("*.tar.gz")
    with tarfile.open(sdist) as packed:
        source = {name.partition("/")[2] for name in packed.getnames()}
    assert {
        "README.md",
        "CONTRIBUTING.md",
        "tests/test_packaging.py",
        "tune_configs/config.schema.json",
        "docs/start.md",
    } <= source
    with zipfile.ZipFile(wheel) as packed:
        names = set(packed.namelist())
        (about,) = (name for name in names if name.endswith(".dist-info/METADATA"))
        Metadata.from_email(packed.read(about))  # raises for what an index would refuse
    shipped = {
        f"{path.relative_to(ROOT)}"
        for path in (ROOT / "nip_ray").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    examples = {f"nip_ray/{path.relative_to(ROOT)}" for path in (ROOT / "examples").glob("own_*")}
    assert {name for name in names if ".dist-info/" not in name} == shipped | examples
    assert "nip_ray/py.typed" in names

    venv.create(tmp_path / "env", with_pip=True)
    python = tmp_path / "env" / "bin" / "python"
    run(python, "-m", "pip", "install", "--no-deps", "--no-index", wheel, cwd=tmp_path)
    site = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=tmp_path).strip())
    others = {sysconfig.get_path("purelib"), *(path for path in sys.path if path.endswith("site-packages"))}
    (site / "others.pth").write_text("\n".join(sorted(others)))
    where = run(python, "-c", "import nip_ray; print(nip_ray.__file__)", cwd=tmp_path)
    assert where.startswith(str(site))
    command = tmp_path / "env" / "bin" / "nip-ray"
    run(command, "new", "scenario", "coins", cwd=tmp_path)
    run(command, "train", "coins.yaml", "--iterations", "1", "--run-dir", "run", cwd=tmp_path)
    assert (tmp_path / "run" / "report.html").is_file()


def test_the_lock_file_names_public_hosts_and_a_hash_for_every_file() -> None:
    lines = (ROOT / "uv.lock").read_text(encoding="utf-8").splitlines()
    assert {host for line in lines for host in re.findall(r"://([^/\"]+)", line)} == HOSTS
    files = [line for line in lines if "{ url = " in line]
    assert files
    assert not [line for line in files if not re.search(r'hash = "sha256:[0-9a-f]{64}"', line)]


def test_the_lock_file_is_of_these_dependencies() -> None:
    """A stale one would stop `uv sync --locked`, and `make` where there is uv."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lock = tomllib.loads((ROOT / "uv.lock").read_text(encoding="utf-8"))
    (own,) = (package for package in lock["package"] if package["name"] == "nip-ray")
    texts = {"": project["dependencies"], **project["optional-dependencies"]}

    def named(extra: str) -> set[tuple[str, SpecifierSet]]:
        """An extra may name others of this project's."""
        parts = [Requirement(text) for text in texts[extra]]
        inner = [named(other) for one in parts if one.name == "nip_ray" for other in one.extras]
        return {(canonicalize_name(one.name), one.specifier) for one in parts if one.name != "nip_ray"}.union(*inner)

    found: dict[str, set[tuple[str, SpecifierSet]]] = {extra: set() for extra in texts}
    for one in own["metadata"]["requires-dist"]:
        extra = re.search(r"extra == '([^']+)'", one.get("marker", ""))
        found[extra[1] if extra else ""] |= {(one["name"], SpecifierSet(one.get("specifier", "")))} - {
            ("nip-ray", SpecifierSet())
        }
    assert found == {extra: named(extra) for extra in texts}
    assert set(own["metadata"]["provides-extras"]) == set(project["optional-dependencies"])


def reachable(host: str) -> bool:
    try:
        socket.create_connection((host, 443), timeout=5).close()
    except OSError:
        return False
    return True


@pytest.mark.slow
@pytest.mark.parametrize("tool", ["uv", "pip"])
def test_make_installs_from_nothing(tool: str, tmp_path: Path) -> None:
    """NIP_RAY_TORCH_INDEX: a mirror of torch's index, where that is out of reach."""
    index = os.environ.get("NIP_RAY_TORCH_INDEX", "")
    if tool == "uv" and shutil.which("uv") is None:
        pytest.skip("uv is not installed")
    for host in ["pypi.org"] if tool == "pip" or index else sorted(HOSTS):
        if not reachable(host):
            pytest.skip(f"{host} is out of reach")
    copy = tmp_path / "copy"
    shutil.copytree(ROOT / "nip_ray", copy / "nip_ray")
    for name in ("pyproject.toml", "uv.lock", "Makefile", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    for name in ("pyproject.toml", "uv.lock") if index else ():
        (copy / name).write_text(
            (copy / name).read_text(encoding="utf-8").replace(TORCH_INDEX, index), encoding="utf-8"
        )
    env = {key: value for key, value in os.environ.items() if key not in ("VIRTUAL_ENV", "UV_NO_DEFAULT_GROUPS")}
    run(
        "make",
        ".venv/.installed",
        f"PYTHON={sys.base_exec_prefix}/bin/python3",
        *(["UV="] if tool == "pip" else []),
        cwd=copy,
        env=env,
    )
    command = copy / ".venv" / "bin" / "nip-ray"
    config = ROOT / "tune_configs" / "message_game.yaml"
    run(command, "train", config, "--iterations", "1", "--run-dir", "run", cwd=tmp_path, env=env)
    assert (tmp_path / "run" / "report.html").is_file()
    if tool == "uv":
        assert "+cpu" in run(
            copy / ".venv" / "bin" / "python", "-c", "import torch; print(torch.__version__)", cwd=tmp_path, env=env
        )


def test_citations_name_this_version() -> None:
    text = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert yaml.safe_load(text)["version"] == __version__
    assert f"version = {{{__version__}}}" in (ROOT / "docs/how-to/cite.md").read_text(encoding="utf-8")


def test_every_range_of_a_dependency_has_an_upper_bound() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    parts = [project["project"]["dependencies"], *project["project"]["optional-dependencies"].values()]
    found = [Requirement(text) for part in (*parts, project["build-system"]["requires"]) for text in part]
    bounded = {"<", "<=", "==", "~="}
    open_ = [one.name for one in found if one.name != "nip_ray" and not bounded & {x.operator for x in one.specifier}]
    assert not open_
