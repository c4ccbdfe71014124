"""`nip-ray new`: what it writes is a config that loads and a test that passes."""

import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from nip_ray.cli import app
from tests.text.ollama import ollama

NAMES = {"protocol": "wary", "scenario": "coins", "algorithm": "weighted", "provider": "my_service"}


@pytest.mark.usefixtures("no_plugins")
@pytest.mark.parametrize("kind", NAMES)
def test_what_is_written_is_a_config_of_its_own(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    name = NAMES[kind]
    done = CliRunner().invoke(app, ["new", kind, name, "--out", "my own"])
    assert done.stdout.splitlines() == [f"my own/{name}.py", f"my own/{name}.yaml", f"my own/test_{name}.py"]
    again = CliRunner().invoke(app, ["new", kind, name, "--out", "my own"])
    assert (again.exit_code, again.stderr) == (
        2,
        f"error: my own/{name}.py: is there already, choose another name or --out\n",
    )
    shown = CliRunner().invoke(app, ["train", f"my own/{name}.yaml", "--dry-run", "--diff"])
    assert shown.exit_code == 0, shown.output
    assert f"name: {name}\n" in shown.stdout
    assert "examples/" not in "".join(path.read_text() for path in Path("my own").glob("*.*"))


@pytest.mark.slow
def test_what_is_written_passes_its_tests(tmp_path: Path) -> None:
    for kind, name in NAMES.items():
        assert CliRunner().invoke(app, ["new", kind, name, "--out", str(tmp_path)]).exit_code == 0
    with ollama([]) as address, (tmp_path / "my_service.yaml").open("a") as file:
        file.write(f"    base_url: {address}\n")
        file.flush()
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", str(tmp_path)], cwd=tmp_path, capture_output=True, text=True
        )
    assert "8 passed" in done.stdout, done.stdout


@pytest.mark.parametrize(
    "kind, name, said",
    [
        (
            "protocol",
            "my-protocol",
            "cannot be a name, use lower-case letters, digits and single underscores, as in my_protocol",
        ),
        ("scenario", "class", "cannot be a name"),
        ("protocol", "nip", "is a protocol that ships with nip_ray, choose another name"),
        ("algorithm", "malt", "is an algorithm that ships"),
        ("provider", "local", "is a provider that ships"),
        ("scenario", "json", "is a Python module that is installed, which json.py would hide"),
        ("algorithm", "protocol", "ProtocolLearner means something else in the file to be written"),
    ],
)
def test_a_name_that_cannot_be_one_is_refused(kind: str, name: str, said: str, tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["new", kind, name, "--out", str(tmp_path)])
    assert (done.exit_code, list(tmp_path.iterdir()), len(done.stderr.splitlines())) == (2, [], 1)
    assert done.stderr.startswith(f"error: {name}: {said}")
