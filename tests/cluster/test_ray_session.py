"""A local Ray of ours: its token is nobody else's, and nothing of it can be reached from another machine."""

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from nip_ray.cluster.ray_session import secure_token
from nip_ray.errors import UserError

ROOT = Path(__file__).resolve().parents[2]
NAMES = ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")

LOCAL = """
import json, os, sys, time
import psutil, ray
from nip_ray.cluster.ray_session import start_ray
from nip_ray.settings.experiment import RuntimeSettings

start_ray(RuntimeSettings(ray_num_cpus=2), 1)

@ray.remote
class Worker:
    def where(self):
        return ray.util.get_node_ip_address()

worker = Worker.remote()
told = ray.get(worker.where.remote())
me = psutil.Process()
listening = {}
for process in [me, *me.children(recursive=True)]:
    for c in process.net_connections("tcp"):
        if c.status == psutil.CONN_LISTEN:
            listening.setdefault(c.laddr.ip, []).append(process.name())
print(json.dumps({"listening": listening, "told": told, "mode": os.environ.get("RAY_AUTH_MODE")}))
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home folder, and nothing said of authentication."""
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_the_token_is_made_for_its_owner_alone_whatever_the_umask(home: Path) -> None:
    before = os.umask(0)
    try:
        secure_token()
    finally:
        os.umask(before)
    [token] = (home / ".ray").iterdir()  # and nothing is left beside it
    assert token.name == "auth_token"
    assert (mode(token), mode(home / ".ray")) == (0o600, 0o700)
    assert len(bytes.fromhex(token.read_text())) == 32


def test_a_token_that_others_can_read_is_mended_and_stays_the_same(home: Path) -> None:
    (home / ".ray").mkdir()
    token = home / ".ray" / "auth_token"
    token.write_text("of-before")
    token.chmod(0o644)
    secure_token()
    assert (token.read_text(), mode(token)) == ("of-before", 0o600)


@pytest.mark.parametrize(
    ("name", "value"),
    [("RAY_AUTH_MODE", "disabled"), ("RAY_AUTH_TOKEN", "mine"), ("RAY_AUTH_TOKEN_PATH", "/somewhere/token")],
)
def test_who_says_how_to_authenticate_gets_no_file(
    home: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    secure_token()
    assert not list(home.iterdir())


def test_an_empty_token_is_none_as_for_ray(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.setenv("RAY_AUTH_TOKEN", " ")
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", "")
    secure_token()
    assert mode(home / ".ray" / "auth_token") == 0o600


def test_a_home_that_cannot_be_written_is_one_line(home: Path) -> None:
    (home / ".ray").write_text("a file where a folder must be")
    with pytest.raises(
        UserError,
        match=r"auth_token: Ray's token cannot be kept there .*; fix it, or give a token by RAY_AUTH_TOKEN_PATH",
    ):
        secure_token()


def test_many_processes_agree_on_one_token(home: Path) -> None:
    source = "import pathlib; from nip_ray.cluster.ray_session import secure_token; secure_token(); "
    source += "print((pathlib.Path.home() / '.ray' / 'auth_token').read_text())"
    started = [
        subprocess.Popen([sys.executable, "-c", source], cwd=ROOT, stdout=subprocess.PIPE, text=True) for _ in range(6)
    ]
    try:
        tokens = {process.communicate(timeout=240)[0].strip() for process in started}
    finally:
        for process in started:
            process.kill()
    assert len(tokens) == 1
    assert len(tokens.pop()) == 64
    assert len(list((home / ".ray").iterdir())) == 1


def local_ray(**changes: str) -> subprocess.CompletedProcess[str]:
    env = {key: value for key, value in os.environ.items() if not key.startswith("RAY_A")} | changes
    return subprocess.run(
        [sys.executable, "-c", LOCAL], cwd=ROOT, env=env, capture_output=True, text=True, timeout=120, check=False
    )


@pytest.mark.slow
def test_a_local_ray_asks_for_a_token_and_listens_on_the_loopback_alone(home: Path) -> None:
    done = local_ray()
    assert done.returncode == 0, done.stderr[-3000:]
    seen = json.loads(done.stdout.splitlines()[-1])
    assert {address.removeprefix("::ffff:") for address in seen["listening"]} == {"127.0.0.1"}
    assert {"gcs_server", "raylet"} <= {name for names in seen["listening"].values() for name in names}
    assert seen["told"] == "127.0.0.1"
    assert seen["mode"] == "token"  # by Ray itself, which found our file
    token = home / ".ray" / "auth_token"
    assert mode(token) == 0o600
    assert token.read_text() not in done.stdout + done.stderr


def test_a_token_file_that_cannot_be_read_is_one_line(home: Path) -> None:
    done = local_ray(RAY_AUTH_TOKEN_PATH=str(home / "missing"))
    assert done.returncode != 0
    assert "UserError: RAY_AUTH_TOKEN_PATH: no token can be read from that file" in done.stderr
