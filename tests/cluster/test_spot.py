"""Spot notices, from stand-ins of the clouds' metadata services on the loopback: what is understood, and what a run makes of it."""

import json
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.error import HTTPError

import pytest

from nip_ray.cluster.spot import notice, spot_notices
from nip_ray.errors import UserError
from nip_ray.storage.folder import RunFolder
from tests.runs.small import ROOT, command, environment, nip_ray, small, untimed


class Cloud:
    """What a metadata service says; planned: whether this machine, or another one, is taken back. torn: its first answers instead."""

    planned: str | None = None
    broken = False
    asked = 0
    torn: Sequence[bytes] = ()

    def answer(self, method: str, path: str, headers: dict[str, str]) -> tuple[int, str]:
        self.asked += 1
        if self.broken:
            return 500, "out of order"
        if path == "/latest/api/token":
            return (200, "secret") if method == "PUT" and "x-aws-ec2-metadata-token-ttl-seconds" in headers else (400, "")
        if path == "/latest/meta-data/spot/instance-action":
            if headers.get("x-aws-ec2-metadata-token") != "secret":
                return 401, ""
            return (404, "") if self.planned is None else (200, json.dumps({"action": "terminate", "time": "2026-01-02T03:04:05Z"}))
        if path == "/computeMetadata/v1/instance/preempted":
            return (403, "") if headers.get("metadata-flavor") != "Google" else (200, "FALSE" if self.planned is None else "TRUE")
        if headers.get("metadata") != "true":
            return 400, ""
        if path.startswith("/metadata/instance/compute/name?"):
            return 200, "own"
        if path.startswith("/metadata/scheduledevents?"):
            event = {"EventId": "1", "EventType": "Preempt", "Resources": [self.planned], "NotBefore": "Mon, 19 Sep 2026 18:29:47 GMT"}
            reboot = {"EventId": "2", "EventType": "Reboot", "Resources": ["own"], "NotBefore": ""}
            return 200, json.dumps({"DocumentIncarnation": 1, "Events": [reboot] if self.planned is None else [reboot, event]})
        return 404, ""


@contextmanager
def served(cloud: Cloud) -> Iterator[str]:
    """The address at which it answers."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if cloud.torn:
                self.wfile.write(cloud.torn[0])
                cloud.torn = cloud.torn[1:]
                return
            status, text = cloud.answer(self.command, self.path, {name.lower(): value for name, value in self.headers.items()})
            self.send_response(status)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text.encode())

        do_PUT = do_GET

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize(
    ("name", "said"),
    [("aws", "terminate at 2026-01-02T03:04:05Z"), ("gcp", "preempted"), ("azure", "Preempt, not before Mon, 19 Sep 2026 18:29:47 GMT")],
)
def test_each_clouds_notice_is_understood(name: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")  # a metadata service is never asked through one
    cloud = Cloud()
    with served(cloud) as address:
        assert notice(name, address) is None
        cloud.planned = "own"
        assert notice(name, address) == said
        cloud.planned = "another"
        assert notice("azure", address) is None
        cloud.broken = True
        with pytest.raises(HTTPError):
            notice(name, address)
    with pytest.raises(OSError, match="refused"):
        notice(name, address)


TORN = {
    "no status line": b"garbage\r\n\r\n",
    "a short body": b"HTTP/1.0 200 OK\r\nContent-Length: 500\r\n\r\n{}",
    "no list": b'HTTP/1.0 200 OK\r\n\r\n{"Events": null}',
    "no resources": b'HTTP/1.0 200 OK\r\n\r\n{"Events": [{"EventType": "Preempt", "Resources": null}]}',
    "no text": b"HTTP/1.0 200 OK\r\n\r\n\xff",
    "deep": b"HTTP/1.0 200 OK\r\n\r\n" + b"[" * 100_000,
}


@pytest.mark.parametrize("kind", TORN)
def test_an_answer_that_makes_no_sense_is_told_once_and_asked_again(kind: str, capfd: pytest.CaptureFixture[str]) -> None:
    cloud, heard = Cloud(), []
    cloud.planned, cloud.torn = "own", [TORN[kind]] * (1 if kind == "no resources" else 2)  # the second is then asked for the name
    before = signal.signal(signal.SIGTERM, lambda signum, frame: heard.append(signum))
    try:
        with served(cloud) as address:
            settings = [f"runtime.spot_{key}" for key in ("notices=azure", f"address={address}", "interval_s=0.1")]
            with spot_notices(small(*settings).runtime):
                until = time.monotonic() + 20
                while not heard and time.monotonic() < until:
                    time.sleep(0.02)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert heard == [signal.SIGTERM]
    said = capfd.readouterr().err
    assert said.count("warning: runtime.spot_notices: azure does not answer") == 1
    assert "this machine is taken back (Preempt, not before" in said


def test_an_address_without_a_scheme_is_refused() -> None:
    with pytest.raises(UserError, match=r"runtime\.spot_address"):
        small("runtime.spot_address=169.254.169.254")


TEXT = ("--set=providers={random: {name: dummy}}", "--set=scenario.agents._default.provider=random", "--set=scenario.data.num_train=8",
        "--set=scenario.data.num_test=4", "--set=algorithm.format_warmup=0", "--set=algorithm.rollouts_per_iteration=8")  # fmt: skip
KINDS = {
    "networks": ("train", "message_game.yaml", "--set=play.num_copies=32", "--set=algorithm.minibatch_size=32"),
    "text": ("train", "ei_cv_offline.yaml", *TEXT),
    "sweep": ("sweep", "sweep_tiny.yaml"),
}


@pytest.mark.crash
@pytest.mark.parametrize("kind", KINDS)
def test_what_gets_a_notice_is_saved_and_resumed(tmp_path: Path, kind: str) -> None:
    verb, file, *settings = KINDS[kind]
    first, cloud = [verb, str(ROOT / "tune_configs" / file), *settings], Cloud()
    where = ["--storage=."] if kind == "sweep" else ["--run-dir=run"]
    with served(cloud) as address:
        spot = [f"--set=runtime.spot_{key}" for key in ("notices=aws", f"address={address}", "interval_s=0.1")]
        arguments = command([*first, "--set=iterations=100000", *spot, *where])
        process = subprocess.Popen(arguments, cwd=tmp_path, env=environment(), stderr=subprocess.PIPE, text=True)
        while process.poll() is None and not (any(tmp_path.rglob("metrics.jsonl")) and cloud.asked > 4):
            time.sleep(0.05)
        cloud.planned, began = "own", time.monotonic()
        _, said = process.communicate(timeout=60)
        assert process.returncode == 143, said
        assert time.monotonic() - began < 25, "within the shortest notice"
        assert "this machine is taken back (terminate at 2026-01-02T03:04:05Z): the run is saved and ended" in said
        assert "stopped by SIGTERM, `nip-ray" in said.splitlines()[-1]
        if kind == "sweep":
            return  # what it resumes with is what any SIGTERM leaves
        cloud.planned = None
        last = RunFolder.open(tmp_path / "run").metrics()[-1]["iteration"]
        nip_ray("resume", "run", f"--iterations={last + 3}", cwd=tmp_path, check=0)
    nip_ray(*first, f"--set=iterations={last + 3}", "--run-dir=calm", cwd=tmp_path, check=0)
    rows, expected = ([untimed(row) for row in RunFolder.open(tmp_path / name).metrics()] for name in ("run", "calm"))
    assert len(rows) == last + 3
    assert rows == expected
