"""The container level: the command that is given to the engine, and what is made of the engine's answers."""

import os
from itertools import pairwise
from pathlib import Path

import pytest

from nip_ray.errors import TrainingError, UserError
from nip_ray.sandbox.container import container_command
from nip_ray.sandbox.run import run_program
from nip_ray.settings.sandbox import SandboxSettings

SETTINGS = SandboxSettings(isolation="container", wall_s=20.0, memory_mb=300, processes=5, file_mb=2, cpu_s=3, output_kb=10)


def test_the_command() -> None:
    command = container_command("docker", "box", "/tmp/folder", SETTINGS)
    assert command[:2] == ["docker", "run"]
    assert command[-6:] == [SETTINGS.container_image, "python", "-I", "-S", "-B", "/box/program.py"]
    options = command[2:-6]
    pairs = set(pairwise(options))
    assert {"--rm", "--interactive", "--read-only"} <= set(options)
    assert "--privileged" not in options
    assert pairs >= {
        ("--network", "none"),
        ("--cap-drop", "ALL"),
        ("--security-opt", "no-new-privileges"),
        ("--user", "65534:65534"),
        ("--memory", "300m"),
        ("--memory-swap", "300m"),
        ("--pids-limit", "5"),
        ("--ulimit", "cpu=3:4"),
        ("--ulimit", f"fsize={2 << 20}"),
        ("--ulimit", "core=0"),
        ("--volume", "/tmp/folder:/box:ro"),
        ("--pull", "never"),
    }


def test_without_an_engine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match="needs docker or podman"):
        run_program("", settings=SETTINGS)


def _engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """An engine that is a shell script: what it does with the command is what is tested, not an engine."""
    engine = tmp_path / "docker"
    engine.write_text(f"#!/bin/sh\necho \"$1\" >> '{tmp_path}/log'\n{script}\n")
    engine.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")


HERE = """
[ "$1" = kill ] && exit 0
while [ "$1" != --volume ]; do shift; done
folder=${2%:/box:ro}
exec python3 -I -S -B "$folder/program.py"
"""


def test_a_run_and_its_output(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    _engine(tmp_path, monkeypatch, HERE)
    result = run_program("print(input() * 2)\nraise SystemExit(3)", "ab\n", SETTINGS, {"data": b"1"})
    assert (result.status, result.exit_code, result.stdout, result.isolation) == ("error", 3, "abab\n", "container")
    assert run_program("print('x' * 20_000)", settings=SETTINGS).status == "output_limit"


def test_a_container_whose_time_is_up_is_killed_by_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    _engine(tmp_path, monkeypatch, HERE)
    result = run_program("while True: pass", settings=SandboxSettings(isolation="container", wall_s=1.5))
    assert result.status == "timeout"
    assert result.wall_s < 5
    assert (tmp_path / "log").read_text().split() == ["run", "kill"]


def test_an_engine_that_cannot_start_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    _engine(tmp_path, monkeypatch, "echo no such image >&2; exit 125")
    with pytest.raises(TrainingError, match="no such image"):
        run_program("", settings=SETTINGS)
