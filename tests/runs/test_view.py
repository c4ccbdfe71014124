"""Pages over many runs and over one that goes on: their data, what they do not give away, and when they are drawn
again."""

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import quote

import pytest

from nip_ray.errors import UserError
from nip_ray.runs.pages import PageServer
from nip_ray.runs.view import LivePage, RunsPage
from nip_ray.storage.folder import lock


def make_run(path: Path, accuracy: float, verdict: str = "accept", seed: int = 0) -> Path:
    (path / "transcripts").mkdir(parents=True)
    (path / "config.yaml").write_text(
        f"name: n\nseed: {seed}\niterations: 3\nscenario:\n  name: message_game\n  numbers: [1, 2]\n"
    )
    rows = [
        {"iteration": i, "version": 1, "time/iteration_s": 60, "train/verifier/accuracy": accuracy * i}
        for i in (1, 2, 3)
    ]
    (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    told = [
        {
            "instance": i,
            "label": 1,
            "length": 1,
            "verdict": verdict if i == 7 else "accept",
            "correct": i != 7 or verdict == "accept",
        }
        | {
            "rounds": [{"round": 0, "turns": [{"agent": "verifier", "channel": "m", "message": f"said <b>{i}</b>"}]}],
            "version": 1,
        }
        for i in (5, 6, 7)
    ]
    (path / "transcripts" / "000003.jsonl").write_text("".join(json.dumps(record) + "\n" for record in told))
    return path


@pytest.fixture
def page(tmp_path: Path) -> RunsPage:
    make_run(tmp_path / "runs/a", 0.1)
    make_run(tmp_path / "runs/deep/b", 0.2, "reject", seed=1)
    return RunsPage(tmp_path / "runs")


def ask(page: RunsPage, path: str) -> str:
    answer = page.answer(path)
    assert answer is not None
    return answer.body.decode()


def test_the_data_of_the_page(page: RunsPage) -> None:
    listing = json.loads(ask(page, "/runs"))
    assert {run["place"]: (run["done"], run["total"], run["state"]) for run in listing["runs"]} == {
        "a": (3, 3, "interrupted"),
        "deep/b": (3, 3, "interrupted"),
    }
    again = page.answer(f"/runs?since={listing['mark']}")
    assert again is not None
    assert (again.code, again.body) == (204, b"")
    assert json.loads(ask(page, "/settings")) == {"a": {"seed": "0"}, "deep/b": {"seed": "1"}}
    curves = json.loads(ask(page, "/curves?run=a&run=deep/b&metric=train/verifier/accuracy&x=minutes"))
    assert curves["keys"] == ["time/iteration_s", "train/verifier/accuracy"]
    assert curves["curves"]["train/verifier/accuracy"]["deep/b"] == [[1, 2, 3], pytest.approx([0.2, 0.4, 0.6])]


def test_transcripts_side_by_side(page: RunsPage) -> None:
    """The instance on which verdicts differ comes first, and is the one that is shown; texts are escaped."""
    shown = ask(page, "/episodes?run=a&run=deep/b")
    assert shown.index('data-instance="7"') < shown.index('data-instance="5"')
    assert "3 instances played by both runs; on 1 the verdicts differ" in shown
    assert shown.count("said &lt;b&gt;7&lt;/b&gt;") == 2
    assert "said &lt;b&gt;5&lt;/b&gt;" in ask(page, "/episodes?run=a&run=deep/b&instance=5&file=000003")
    assert "000009.jsonl is missing" in ask(page, "/episodes?run=a&file=000009")


@pytest.mark.parametrize(
    "place", ["..", "../secret", "/etc", "a/../../secret", "link", "leaks", "a/transcripts", "%2e%2e/secret", "x\0"]
)
def test_nothing_outside_of_the_folder_can_be_asked_for(tmp_path: Path, place: str) -> None:
    """Whatever is named, and whatever links a run holds."""
    make_run(tmp_path / "runs/a", 0.1)
    secret = make_run(tmp_path / "secret", 0.9)
    (tmp_path / "runs/link").symlink_to(secret)
    leaks = make_run(tmp_path / "runs/leaks", 0.1)
    (leaks / "transcripts/000003.jsonl").unlink()
    (leaks / "transcripts/000003.jsonl").symlink_to(secret / "transcripts/000003.jsonl")
    page = RunsPage(tmp_path / "runs")
    for path in (f"/curves?run={quote(place)}&metric=train/verifier/accuracy", f"/run/{quote(place, safe='')}/"):
        with pytest.raises(UserError, match=r"no such run|leads out"):
            page.answer(path)
    assert "said" not in ask(page, f"/episodes?run={quote(place)}")
    assert page.answer(f"/{place}") is None
    assert [page.answer(path) for path in ("/run/a/metrics.jsonl", "//[", f"/curves?{'run=a&' * 300}")] == [None] * 3


@pytest.mark.parametrize("name", ["config.yaml", "metrics.jsonl", "pretraining.json"])
def test_a_run_with_a_link_that_leads_out_is_in_no_list(name: str, tmp_path: Path) -> None:
    make_run(tmp_path / "runs/a", 0.1)
    leaks = make_run(tmp_path / "runs/leaks", 0.1)
    (tmp_path / "secret").write_text('{"password": "hunter2"}\n')
    (leaks / name).unlink(missing_ok=True)
    (leaks / name).symlink_to(tmp_path / "secret")
    page = RunsPage(tmp_path / "runs")
    for path in ("/runs", "/settings"):
        assert "leaks" not in ask(page, path)
        assert "hunter2" not in ask(page, path)
    with pytest.raises(UserError, match="leads out"):
        page.answer("/run/leaks/")


@pytest.mark.parametrize(
    "listens, host, own",
    [
        ("127.0.0.1", "127.0.0.1", True),
        ("127.0.0.1", "localhost", True),
        ("127.0.0.1", "10.0.0.1", False),
        ("0.0.0.0", "10.0.0.1", True),
        ("0.0.0.0", "[fe80::1]", True),
        ("0.0.0.0", "evil.example", False),
    ],
)
def test_by_which_names_it_can_be_asked(page: RunsPage, listens: str, host: str, own: bool) -> None:
    """A name that others could let point here is none of them."""
    with PageServer(page, host=listens) as server:
        assert server.is_own(f"{host}:{server.server_port}") is own
        assert not server.is_own(host)


def test_many_readers_at_once_wait_their_turn(page: RunsPage) -> None:
    with PageServer(page) as server, ExitStack() as waiting:
        for _ in range(200):  # nobody is served yet
            waiting.enter_context(socket.create_connection(("127.0.0.1", server.server_port), timeout=5))


def line_of(iteration: int) -> str:
    return (
        json.dumps({"iteration": iteration, "version": 1, "train/verifier/accuracy": 0.5, "train/verifier/return": 0.1})
        + "\n"
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "config.yaml").write_text("name: watched\niterations: 5\n")
    (tmp_path / "metrics.jsonl").write_text(line_of(1))
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


def get(server: PageServer, path: str = "/", method: str = "GET", **headers: str) -> tuple[int, str, dict[str, str]]:
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
    status, page, headers = get(server)
    assert (status, page.split()[1]) == (200, "1")
    assert headers["Cache-Control"] == "no-store"
    assert headers["X-Content-Type-Options"] == "nosniff"
    mark = get(server, "/mark")[1]
    assert page.endswith(mark)
    assert get(server)[1] == page
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(line_of(2))
    assert get(server, "/mark")[1] != mark
    assert get(server)[1].split()[1] == "2"


def test_a_run_goes_on_as_long_as_its_lock_is_held(folder: Path) -> None:
    live = LivePage(folder, every_s=0.0, render=lambda path, mark: "page")

    def mark() -> bytes | None:
        answer = live.answer("/mark")
        return answer and answer.body

    ended = mark()
    with lock(folder):
        assert mark() != ended
    assert mark() == ended


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1", "127.0.0.1:1", "", "localhost.evil.example:{port}", "127.0.0.1:{port}@evil"]
)
def test_another_name_for_this_address_is_refused(server: PageServer, host: str) -> None:
    status, body, _ = get(server, Host=host.format(port=server.server_port))
    assert status == 421
    assert "drawing" not in body


@pytest.mark.parametrize(
    "path", ["/secret.txt", "/../secret.txt", "/metrics.jsonl", "/mark/", "/?x", "/%2e%2e/secret.txt"]
)
def test_no_file_can_be_named_from_outside(server: PageServer, path: str) -> None:
    status, body, _ = get(server, path)
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
