"""Wheel and sdist have what an installation needs, and the wheel works outside the repository."""

import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest
from packaging.metadata import Metadata

ROOT = Path(__file__).resolve().parents[1]


def run(*words: str | Path, cwd: Path) -> str:
    done = subprocess.run([str(word) for word in words], cwd=cwd, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_what_is_built_works_in_an_environment_of_its_own(tmp_path: Path) -> None:
    """The sdist is made from the repository, the wheel from the sdist. Dependencies come from this environment."""
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", tmp_path, cwd=ROOT)
    (wheel,), (sdist,) = tmp_path.glob("*.whl"), tmp_path.glob("*.tar.gz")
    with tarfile.open(sdist) as packed:
        source = {name.partition("/")[2] for name in packed.getnames()}
    assert {"README.md", "CONTRIBUTING.md", "tests/test_packaging.py", "tune_configs/config.schema.json", "docs/start.md"} <= source
    with zipfile.ZipFile(wheel) as packed:
        names = set(packed.namelist())
        (about,) = (name for name in names if name.endswith(".dist-info/METADATA"))
        Metadata.from_email(packed.read(about))  # raises for what an index would refuse
    shipped = {f"{path.relative_to(ROOT)}" for path in (ROOT / "nip_ray").rglob("*") if path.is_file() and "__pycache__" not in path.parts}
    examples = {f"nip_ray/{path.relative_to(ROOT)}" for path in (ROOT / "examples").glob("*.*")}
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
