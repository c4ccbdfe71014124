"""A stand-in of the Hugging Face Hub on loopback: what `huggingface_hub` asks of it to make repositories, write and read them.

Strict: every request needs the token; large files must have the sum and the size that they were announced with before a commit may name
them; a commit is refused whole where anything in it is not what the Hub's API has.
"""

import base64
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import yaml

TOKEN = "hf_StandInTokenOfTests0123456789"
_LARGE = (".safetensors", ".parquet")
_SHA = re.compile(r"[0-9a-f]{64}")


class Hub:
    """repos: (kind, OWNER/NAME) -> path -> content. commits, refused: (status, path) of what was answered with an error."""

    def __init__(self) -> None:
        self.repos: dict[tuple[str, str], dict[str, bytes]] = {}
        self.private: dict[tuple[str, str], bool] = {}
        self.large: dict[str, bytes] = {}
        self.refused: list[tuple[int, str]] = []
        self.url = ""


class Refused(Exception):
    """(status, what was wrong, what else the answer has)."""


class Handler(BaseHTTPRequestHandler):
    """One request."""

    protocol_version = "HTTP/1.1"
    hub: Hub

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing is printed."""

    def do_POST(self) -> None:
        self._answer(self._post)

    def do_PUT(self) -> None:
        self._answer(self._put)

    def do_GET(self) -> None:
        self._answer(self._get)

    do_HEAD = do_GET

    def _answer(self, what: Any) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        try:
            signed = self.path.startswith("/upload/")  # the address itself is the permission
            if not signed and self.headers.get("Authorization") != f"Bearer {TOKEN}":
                raise Refused(401, "Invalid username or password.")
            status, headers, content = what(body)
        except Refused as refused:
            status, told, *more = refused.args
            self.hub.refused.append((status, self.path))
            headers, content = {"Content-Type": "application/json"}, json.dumps({"error": told, **dict(*more)}).encode()
        self.send_response(status)
        for name, value in {"Content-Length": str(len(content)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def _post(self, body: bytes) -> tuple[int, dict[str, str], bytes]:
        if self.path == "/api/repos/create":
            return self._json(self._create(json.loads(body)))
        if self.path == "/api/validate-yaml":
            asked = json.loads(body)
            if not isinstance(yaml.safe_load(re.match(r"---\n(.*?)\n---\n", asked["content"], re.S)[1]), dict):  # type: ignore[index]
                raise Refused(400, "bad front matter")
            return self._json({"errors": [], "warnings": []})
        if found := re.fullmatch(r"/api/(models|datasets)/([^/]+/[^/]+)/preupload/main", self.path):
            self._files(found)
            return self._json({"files": [self._mode(file) for file in json.loads(body)["files"]]})
        if found := re.fullmatch(r"/(?:(datasets)/)?([^/]+/[^/]+)\.git/info/lfs/objects/batch", self.path):
            return self._json(self._batch(json.loads(body)), "application/vnd.git-lfs+json")
        if found := re.fullmatch(r"/api/(models|datasets)/([^/]+/[^/]+)/commit/main", self.path):
            return self._json(self._commit(self._files(found), found, body))
        raise Refused(404, f"no such endpoint: {self.path}")

    def _put(self, body: bytes) -> tuple[int, dict[str, str], bytes]:
        sha = self.path.rpartition("/")[2]
        if hashlib.sha256(body).hexdigest() != sha:
            raise Refused(400, "this is not the content that was announced")
        self.hub.large[sha] = body
        return 200, {}, b""

    def _get(self, body: bytes) -> tuple[int, dict[str, str], bytes]:
        path = self.path.partition("?")[0]
        if found := re.fullmatch(r"/api/(models|datasets)/([^/]+/[^/]+)(?:/revision/[^/]+)?", path):
            files = self._files(found)
            return self._json({"id": found[2], "sha": "0" * 40, "private": True, "siblings": [{"rfilename": name} for name in files]})
        if found := re.fullmatch(r"/api/(models|datasets)/([^/]+/[^/]+)/tree/[^/]+", path):
            files = self._files(found)
            return self._json([{"type": "file", "path": n, "size": len(c), "oid": "0" * 40} for n, c in files.items()])
        if found := re.fullmatch(r"/(?:(datasets)/)?([^/]+/[^/]+)/resolve/[^/]+/(.+)", path):
            content = self._files(found).get(found[3])
            if content is None:
                raise Refused(404, "Entry not found")
            return 200, {"ETag": f'"{hashlib.sha256(content).hexdigest()}"', "X-Repo-Commit": "0" * 40}, content
        raise Refused(404, f"no such endpoint: {path}")

    def _create(self, asked: dict[str, Any]) -> dict[str, Any]:
        key = (asked.get("type") or "model", f"{asked['organization']}/{asked['name']}")
        if asked["organization"] == "another":
            raise Refused(403, "You don't have the rights to create a model under the namespace")
        where = {"url": f"{self.hub.url}/{'datasets/' if key[0] == 'dataset' else ''}{key[1]}", "name": key[1]}
        if key in self.hub.repos:
            raise Refused(409, "You already created this repo", where)
        self.hub.repos[key] = {}
        self.hub.private[key] = asked.get("visibility") == "private" or asked.get("private") is True
        return where

    def _files(self, found: re.Match[str]) -> dict[str, bytes]:
        key = ("dataset" if found[1] == "datasets" else "model", found[2])
        if key not in self.hub.repos:
            raise Refused(404, "Repository not found")
        return self.hub.repos[key]

    def _mode(self, file: dict[str, Any]) -> dict[str, Any]:
        if len(base64.b64decode(file["sample"])) != min(512, file["size"]):
            raise Refused(400, f"{file['path']}: the sample is not the file's beginning")
        large = file["path"].endswith(_LARGE)
        return {"path": file["path"], "uploadMode": "lfs" if large else "regular", "shouldIgnore": False, "oid": None}

    def _batch(self, asked: dict[str, Any]) -> dict[str, Any]:
        if asked["operation"] != "upload" or "basic" not in asked["transfers"] or asked["hash_algo"] != "sha256":
            raise Refused(422, "unknown transfer")
        made = []
        for one in asked["objects"]:
            if not _SHA.fullmatch(one["oid"]):
                raise Refused(422, "no SHA-256 sum")
            made.append({**one, "authenticated": True, "actions": {"upload": {"href": f"{self.hub.url}/upload/{one['oid']}"}}})
        return {"transfer": "basic", "objects": made}

    def _commit(self, files: dict[str, bytes], found: re.Match[str], body: bytes) -> dict[str, Any]:
        header, *lines = [json.loads(line) for line in body.splitlines() if line]
        if header["key"] != "header" or not header["value"]["summary"]:
            raise Refused(400, "a commit begins with its header")
        new = {}
        for line in lines:
            value = line["value"]
            if line["key"] == "file" and value["encoding"] == "base64" and not value["path"].endswith(_LARGE):
                new[value["path"]] = base64.b64decode(value["content"], validate=True)
            elif line["key"] == "lfsFile" and value["algo"] == "sha256" and value["path"].endswith(_LARGE):
                content = self.hub.large.get(value["oid"])
                if content is None or len(content) != value["size"]:
                    raise Refused(400, f"{value['path']}: was not uploaded")
                new[value["path"]] = content
            else:
                raise Refused(400, f"cannot be committed: {str(line)[:100]}")
        files |= new
        where = f"{self.hub.url}/{found[2]}/commit/{'0' * 40}"
        return {"success": True, "commitOid": "0" * 40, "commitUrl": where, "hookOutput": ""}

    def _json(self, content: Any, kind: str = "application/json") -> tuple[int, dict[str, str], bytes]:
        return 200, {"Content-Type": kind}, json.dumps(content).encode()


@contextmanager
def hub_thread() -> Iterator[Hub]:
    """The server, at `Hub.url`, while the block lasts."""
    hub = Hub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Bound", (Handler,), {"hub": hub}))
    hub.url = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
