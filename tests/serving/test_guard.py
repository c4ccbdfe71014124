"""What a server without a key answers to: its own address, and nothing that a web page from elsewhere can make a
browser send."""

import asyncio
import json
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from nip_ray.serving.app import ServerSettings, build_app
from nip_ray.serving.shelf import ModelFolders

OWN = "127.0.0.1:8000"
JSON = {"content-type": "application/json"}


def status(app: Any, method: str, path: str, headers: dict[str, str], body: bytes = b"") -> int:
    """Of the answer of the application, asked without a network."""
    sent: list[dict[str, Any]] = []
    length = {"content-length": str(len(body))} if body else {}
    raw = [(name.encode(), value.encode()) for name, value in {**headers, **length}.items()]
    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": raw,
    }

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    asyncio.run(app({**scope, "asgi": {"version": "3.0"}, "http_version": "1.1", "scheme": "http"}, receive, send))
    assert "error" in json.loads(sent[1]["body"]) or sent[0]["status"] == 200
    return sent[0]["status"]


def app(folder: Path, **settings: Any) -> Any:
    pytest.importorskip("fastapi")
    return build_app(ServerSettings(ModelFolders(folder, any_path=False), **{"port": 8000, **settings}), None)


@pytest.mark.parametrize(
    ("headers", "answered"),
    [
        ({"host": OWN}, 200),
        ({"host": "localhost:8000"}, 200),
        ({"host": OWN, "origin": f"http://{OWN}", "sec-fetch-site": "same-origin"}, 200),
        ({"host": "evil.example"}, 421),
        ({"host": "evil.example:8000"}, 421),
        ({"host": "127.0.0.1:8001"}, 421),
        ({}, 421),
        ({"host": OWN, "origin": "http://evil.example"}, 403),
        ({"host": OWN, "origin": "null"}, 403),
        ({"host": OWN, "origin": "http://127.0.0.1:9000"}, 403),
        ({"host": OWN, "sec-fetch-site": "cross-site"}, 403),
        ({"host": OWN, "sec-fetch-site": "same-site"}, 403),
    ],
)
def test_who_may_ask(tmp_path: Path, headers: dict[str, str], answered: int) -> None:
    made = app(tmp_path)
    for path in ("/v1/models", "/v1/files", "/v1/fine_tuning/jobs"):
        assert status(made, "GET", path, headers) == answered
    if answered != 200:
        assert status(made, "POST", "/v1/fine_tuning/jobs", {**headers, **JSON}, b"{}") == answered


@pytest.mark.parametrize(
    ("kind", "answered"),
    [
        ("application/json", 400),
        ("text/plain;charset=UTF-8", 415),
        ("application/x-www-form-urlencoded", 415),
        ("", 415),
    ],
)
def test_bodies_that_a_browser_sends_unasked_are_refused(tmp_path: Path, kind: str, answered: int) -> None:
    headers = {"host": OWN, **({"content-type": kind} if kind else {})}
    assert status(app(tmp_path), "POST", "/v1/fine_tuning/jobs", headers, b"{}") == answered


def test_on_every_address_of_the_machine(tmp_path: Path) -> None:
    made = app(tmp_path, host="0.0.0.0")
    assert [status(made, "GET", "/v1/models", {"host": host}) for host in ("10.1.2.3:8000", "evil.example:8000")] == [
        200,
        421,
    ]


def test_a_key_is_enough_under_any_name(tmp_path: Path) -> None:
    """No page elsewhere has it."""
    made = app(tmp_path, key_digest=sha256(b"key").hexdigest())
    headers = {"host": "models.example", "origin": "https://notebook.example"}
    assert status(made, "GET", "/v1/models", headers) == 401
    assert status(made, "GET", "/v1/models", {**headers, "authorization": "Bearer key"}) == 200
