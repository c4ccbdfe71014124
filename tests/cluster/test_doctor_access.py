"""The doctor on who may use a Ray, and whom it listens to: tokens, clusters, ports. With real files, sockets and
processes."""

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from nip_ray.cluster.doctor import Finding
from nip_ray.cluster.doctor_access import mend_of_exposed
from tests.cluster.test_doctor import check, everything_below, told


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home, and Ray left to its own rules."""
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", "RAY_ADDRESS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def write_token(home: Path, mode: int) -> Path:
    path = home / ".ray" / "auth_token"
    path.parent.mkdir(exist_ok=True)
    path.write_text("canary-token-2f9a")
    path.chmod(mode)
    return path


def test_a_token_that_others_can_read_is_a_note_with_its_mend(home: Path) -> None:
    path = write_token(home, 0o644)
    [found] = check("token")
    assert found.status == "note"
    assert "644" in found.what
    assert found.mend == f"chmod 600 {path}"
    assert "canary" not in str(found)
    subprocess.run(found.mend, shell=True, check=True)
    assert [finding.status for finding in check("token")] == ["ok"]


def test_without_a_token_a_home_that_can_be_written_is_fine_and_stays_empty(home: Path) -> None:
    assert [finding.status for finding in check("token")] == ["ok"]
    assert not everything_below(home)


def test_a_home_that_takes_no_token_is_a_problem_unless_tokens_are_off(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "file").write_text("")
    monkeypatch.setenv("HOME", str(home / "file"))
    assert [finding.status for finding in check("token")] == ["problem"]
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    assert [finding.status for finding in check("token")] == ["note"]


@pytest.mark.parametrize("content", [None, ""])
def test_a_named_token_file_without_a_token_is_a_problem(
    home: Path, monkeypatch: pytest.MonkeyPatch, content: str | None
) -> None:
    path = home / "named"
    if content is not None:
        path.write_text(content)
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(path))
    assert [finding.status for finding in check("token")] == ["problem"]


@pytest.mark.parametrize(
    ("mode", "address", "without", "with_token"),
    [
        ("tokens", "", ["note"], ["note", "ok"]),  # misspelt: tokens are off
        ("Token", "", ["ok"], ["ok"]),  # as Ray reads it
        ("token", "127.0.0.1:6379", ["problem"], ["ok"]),
    ],
)
def test_modes(
    home: Path, monkeypatch: pytest.MonkeyPatch, mode: str, address: str, without: list[str], with_token: list[str]
) -> None:
    monkeypatch.setenv("RAY_AUTH_MODE", mode)
    monkeypatch.setenv("RAY_ADDRESS", address)
    assert [finding.status for finding in check("token")] == without
    write_token(home, 0o600)
    assert [finding.status for finding in check("token")] == with_token


@contextlib.contextmanager
def listening(host: str) -> Iterator[int]:
    with socket.create_server((host, 0)) as server:
        yield server.getsockname()[1]


def closed_port() -> int:
    with listening("127.0.0.1") as port:
        return port


def test_a_cluster_that_is_not_there_is_a_problem_and_one_that_answers_is_not(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{closed_port()}")
    [found] = check("cluster")
    assert found.status == "problem"
    assert "refused" in found.what
    with listening("127.0.0.1") as port:
        for address in (f"127.0.0.1:{port}", f"ray://localhost:{port}"):
            monkeypatch.setenv("RAY_ADDRESS", address)
            assert [finding.status for finding in check("cluster")] == ["ok"]


def test_a_cluster_elsewhere_without_tokens_is_a_problem(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with listening("0.0.0.0") as port:
        monkeypatch.setenv("RAY_ADDRESS", f"0.0.0.0:{port}")  # not the loopback by name, though it answers here
        answers, bare = check("cluster")
        assert (answers.status, bare.status) == ("ok", "problem")
        assert "RAY_AUTH_MODE=token" in bare.mend
        monkeypatch.setenv("RAY_AUTH_MODE", "token")
        assert [finding.status for finding in check("cluster")] == ["ok"]


@pytest.mark.parametrize(
    "address",
    ["http://127.0.0.1:8265", "nowhere", "host:", "host:port", "a:b:1", "me:pass@host:1", "pass@host:1", "host:99999"],
)
def test_an_address_of_another_form_is_a_problem_and_is_not_repeated(
    home: Path, monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", address)
    [found] = check("cluster")
    assert found.status == "problem"
    assert address not in found.what


def test_auto_looks_for_what_ray_start_left(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_TMPDIR", str(home))
    (home / "ray").mkdir()
    assert [finding.status for finding in check("cluster")] == ["ok"]
    monkeypatch.setenv("RAY_ADDRESS", "auto")
    assert [finding.status for finding in check("cluster")] == ["problem"]
    with listening("127.0.0.1") as port:
        (home / "ray" / "ray_current_cluster").write_text(f"127.0.0.1:{port}")
        assert [finding.status for finding in check("cluster")] == ["ok"]
        monkeypatch.delenv("RAY_ADDRESS")
        assert told(check("cluster"), "note")[0].count("answers") == 1
    assert told(check("cluster"), "note")[0].count("is not there any more") == 1


LISTEN = """
import socket, sys
with socket.create_server((sys.argv[1].removeprefix("--host="), 0)) as server:
    print(server.getsockname()[1], flush=True)
    sys.stdin.read()
"""


@contextlib.contextmanager
def process_that_listens(script: Path, host: str, mode: str, name: str | None = None) -> Iterator[int]:
    """The port of a process called `name` (none: as Python is) that runs `script`."""
    script.parent.mkdir(parents=True, exist_ok=True)
    script.write_text(LISTEN)
    process = subprocess.Popen(
        [name or sys.executable, str(script), f"--host={host}"],
        executable=sys.executable,
        env={**os.environ, "RAY_AUTH_MODE": mode, "PYTHONHOME": sys.base_prefix},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        yield int(process.stdout.readline())
    finally:
        process.kill()
        process.communicate(timeout=120)


def on_port(port: int) -> list[Finding]:
    """What is told of a port: that somebody listens there, then what is wrong with it."""
    return [finding for finding in check("ports") if f":{port} " in finding.what]


def test_a_dashboard_that_other_machines_can_reach_is_noted_with_its_port(tmp_path: Path) -> None:
    script = tmp_path / "ray" / "dashboard" / "dashboard.py"
    for mode in ("disabled", "token"):
        with process_that_listens(script, "0.0.0.0", mode) as port:
            told, noted = on_port(port)
            assert (told.status, noted.status) == ("ok", "note")
            assert ("they can run programs as you" in noted.what) == (mode == "disabled")
            assert "127.0.0.1" in noted.mend
        assert not on_port(port)


def test_a_ray_without_tokens_that_other_machines_can_reach_is_noted(tmp_path: Path) -> None:
    with process_that_listens(tmp_path / "x.py", "0.0.0.0", "disabled", name="/opt/gcs_server") as port:
        assert "RAY_AUTH_MODE=token" in on_port(port)[1].mend
    with process_that_listens(tmp_path / "x.py", "0.0.0.0", "token", name="/opt/gcs_server") as port:
        assert [found.status for found in on_port(port)] == ["ok"]
    with process_that_listens(tmp_path / "server.py", "0.0.0.0", "disabled") as port:
        assert not on_port(port), "a server that is none of ours"


@pytest.mark.parametrize(
    ("role", "host", "asks", "is_exposed"),
    [
        ("dashboard", "0.0.0.0", "127.0.0.1", False),  # its figures for Prometheus
        ("dashboard", "::", "::", True),
        ("dashboard", "::ffff:127.0.0.1", "localhost", False),
        ("serve proxy", "0.0.0.0", "", True),
        ("serve proxy", "::", "", False),
        ("nip-ray", "0.0.0.0", "", False),
    ],
)
def test_which_servers_are_exposed(role: str, host: str, asks: str, is_exposed: bool) -> None:
    assert bool(mend_of_exposed(role, host, asks, tokens=False)) == is_exposed
