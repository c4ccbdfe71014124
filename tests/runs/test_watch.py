"""A live page over real HTTP: what is served, to whom, and when it is drawn again."""

import http.client
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from nip_ray.errors import UserError
from nip_ray.runs.pages import PageServer
from nip_ray.runs.view import LivePage
from nip_ray.storage.folder import lock


def row(iteration: int) -> str:
    return json.dumps({"iteration": iteration, "version": 1, "train/verifier/accuracy": 0.5, "train/verifier/return": 0.1}) + "\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "config.yaml").write_text("name: watched\niterations: 5\n")
    (tmp_path / "metrics.jsonl").write_text(row(1))
    (tmp_path / "secret.txt").write_text("not to be served")
    return tmp_path


@pytest.fixture
def server(folder: Path) -> Iterator[PageServer]:
    """With a drawing that is quick: what it draws is the report's matter."""
    drawn = iter(range(1, 100))
    live = LivePage(folder, every_s=0.0, render=lambda path, mark: f"drawing {next(drawn)} of {path.name} {mark}")
    with PageServer(live) as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def ask(server: PageServer, path: str = "/", method: str = "GET", **headers: str) -> tuple[int, str, dict[str, str]]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=120)
    connection.request(method, path, headers=headers)
    answer = connection.getresponse()
    body = answer.read().decode()
    connection.close()
    return answer.status, body, dict(answer.getheaders())


def test_it_listens_on_this_machine_alone(server: PageServer) -> None:
    assert server.socket.getsockname()[0] == "127.0.0.1"
    assert server.url == f"http://127.0.0.1:{server.server_port}/"


def test_the_page_is_drawn_once_and_anew_when_the_run_goes_on(server: PageServer, folder: Path) -> None:
    status, page, headers = ask(server)
    assert (status, page.split()[1]) == (200, "1")
    assert headers["Cache-Control"] == "no-store"
    assert headers["X-Content-Type-Options"] == "nosniff"
    mark = ask(server, "/mark")[1]
    assert page.endswith(mark)
    assert ask(server)[1] == page
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(row(2))
    assert ask(server, "/mark")[1] != mark
    assert ask(server)[1].split()[1] == "2"


def test_a_run_goes_on_as_long_as_its_lock_is_held(folder: Path) -> None:
    live = LivePage(folder, every_s=0.0, render=lambda path, mark: "page")

    def mark() -> bytes | None:
        answer = live.answer("/mark")
        return answer and answer.body

    ended = mark()
    with lock(folder):
        assert mark() != ended
    assert mark() == ended


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1", "127.0.0.1:1", "", "localhost.evil.example:{port}", "127.0.0.1:{port}@evil"])
def test_another_name_for_this_address_is_refused(server: PageServer, host: str) -> None:
    status, body, _ = ask(server, Host=host.format(port=server.server_port))
    assert status == 421
    assert "drawing" not in body


@pytest.mark.parametrize("path", ["/secret.txt", "/../secret.txt", "/metrics.jsonl", "/mark/", "/?x", "/%2e%2e/secret.txt"])
def test_no_file_can_be_named_from_outside(server: PageServer, path: str) -> None:
    status, body, _ = ask(server, path)
    assert status == 404
    assert "not to be served" not in body


def test_nothing_is_written_into_the_run(folder: Path) -> None:
    before = sorted(path.name for path in folder.iterdir())
    answer = LivePage(folder).answer("/")
    assert answer is not None
    page = answer.body.decode()
    assert sorted(path.name for path in folder.iterdir()) == before
    assert "In training the verifier decided 50.0" in page
    assert "connect-src 'self'" in page


def test_a_port_that_is_taken_is_the_users_mistake(server: PageServer, folder: Path) -> None:
    with pytest.raises(UserError, match=f"--port {server.server_port}: cannot be listened on"):
        PageServer(LivePage(folder), server.server_port)


def test_the_verb_prints_the_address_and_ends_on_ctrl_c(folder: Path) -> None:
    command = [sys.executable, "-m", "nip_ray.cli", "watch", str(folder)]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"}
    )
    try:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        found = re.fullmatch(r"http://127\.0\.0\.1:(\d+)/", url)
        assert found, url
        connection = http.client.HTTPConnection("127.0.0.1", int(found[1]), timeout=120)
        connection.request("GET", "/")
        assert "watched" in connection.getresponse().read().decode()
        connection.close()
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=120)
        assert (process.returncode, errors) == (0, "")
    finally:
        process.kill()
        process.wait()
