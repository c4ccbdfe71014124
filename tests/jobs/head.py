"""A Ray head of the tests' own, as `ray start --head` makes it: with a token, a dashboard on the loopback, ports chosen
at run time."""

import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent
START_SECONDS = 90.0


@dataclass(frozen=True)
class Head:
    """gcs: HOST:PORT to join. dashboard: its URL. token_file: of the cluster, mode 0600. pid: of the process above all
    others."""

    gcs: str
    dashboard: str
    dashboard_port: int
    token_file: Path
    pid: int

    @property
    def token(self) -> str:
        """What must never be seen in an output."""
        return self.token_file.read_text()

    def environment(self, **changes: str | None) -> dict[str, str]:
        """Of a process that holds the token; None takes a variable out."""
        return environment({"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(self.token_file), **changes})

    def get(self, path: str, token: str | None = None, method: str = "GET") -> tuple[int, str]:
        """Status and body of a request to the dashboard."""
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        request = urllib.request.Request(
            self.dashboard + path, headers=headers, method=method, data=b"{}" if method == "POST" else None
        )
        try:
            with urllib.request.urlopen(request, timeout=20) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()


def environment(changes: Mapping[str, str | None]) -> dict[str, str]:
    """The tests' environment without a cluster or a token, and with these changes."""
    known = {key: value for key, value in os.environ.items() if not key.startswith(("RAY_AUTH", "RAY_ADDRESS"))}
    # `python` and `nip-ray` of a job are those of the tests
    known["PATH"] = f"{BIN}{os.pathsep}{known.get('PATH', os.defpath)}"
    return known | {key: value for key, value in changes.items() if value is not None}


def free_port() -> int:
    """A port that nothing listens on right now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextmanager
def ray_head(num_cpus: int = 2) -> Iterator[Head]:
    """A running head; it and all its descendants are ended afterwards, and its folder is removed."""
    folder = Path(tempfile.mkdtemp(prefix="nj", dir="/tmp"))  # short: Unix sockets go below it
    token_file = folder / "token"
    with open(os.open(token_file, os.O_WRONLY | os.O_CREAT, 0o600), "w") as file:
        file.write(secrets.token_hex(32))
    gcs_port, dashboard_port = free_port(), free_port()
    command = [
        BIN / "ray",
        "start",
        "--head",
        "--block",
        "--disable-usage-stats",
        "--include-dashboard=true",
        "--dashboard-host=127.0.0.1",
    ]
    command += [f"--port={gcs_port}", f"--dashboard-port={dashboard_port}", f"--ray-client-server-port={free_port()}"]
    command += ["--dashboard-agent-listen-port=0", f"--num-cpus={num_cpus}", "--num-gpus=0"]
    command += [f"--object-store-memory={128 << 20}", f"--temp-dir={folder / 'ray'}"]
    log = folder / "log"
    process = None
    try:
        with open(log, "w") as output:
            held = environment({"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token_file)})
            process = subprocess.Popen(
                [*map(str, command)], env=held, cwd=folder, stdout=output, stderr=output, start_new_session=True
            )
        head = Head(
            f"127.0.0.1:{gcs_port}", f"http://127.0.0.1:{dashboard_port}", dashboard_port, token_file, process.pid
        )
        _wait(head, process, log)
        yield head
    finally:
        if process is not None:
            _end(process)
        shutil.rmtree(folder, ignore_errors=True)


def _wait(head: Head, process: subprocess.Popen[bytes], log: Path) -> None:
    """Until the job server answers."""
    until = time.monotonic() + START_SECONDS
    while time.monotonic() < until:
        if process.poll() is not None:
            raise RuntimeError(f"ray start ended with {process.returncode}: {log.read_text()[-2000:]}")
        with suppress(urllib.error.URLError, OSError):
            if head.get("/api/jobs/", head.token)[0] == 200:
                return
        time.sleep(0.3)
    raise RuntimeError(f"no answer from the dashboard within {START_SECONDS:g} s: {log.read_text()[-2000:]}")


def _end(process: subprocess.Popen[bytes]) -> None:
    """The head and exactly its descendants: politely, then not."""
    with suppress(psutil.NoSuchProcess):
        family = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGTERM)
        _, alive = psutil.wait_procs(family, timeout=10)
        for one in alive:
            with suppress(psutil.NoSuchProcess):
                one.kill()
        psutil.wait_procs(alive, timeout=10)
    if process.poll() is None:
        process.kill()
    process.wait(timeout=20)
