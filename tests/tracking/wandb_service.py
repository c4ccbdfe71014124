"""A small Weights & Biases on loopback: what the installed client asks of the service, kept in memory.

It speaks the queries that wandb 0.31 sends when a run is tracked online, when `wandb sync` uploads offline files, and
when an artifact is fetched: uploads are stored by what the client sent and served again byte by byte. A query that it
does not know, a run or artifact that is used before it was made, and a request without the key are errors, and are kept
in `refused`.
"""

import base64
import gzip
import hashlib
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from tests.text.loopback import serving

KEY = "canary" + "5" * 40
ENTITY, PROJECT = "team", "proofs"


@dataclass
class Run:
    """history: lines as they stand on the service, by their place. exit_code: None while it runs."""

    name: str
    bucket: dict[str, Any] = field(default_factory=dict)
    history: dict[int, str] = field(default_factory=dict)
    summary: dict[str, Any] = field(default_factory=dict)
    exit_code: int | None = None

    def steps(self) -> list[int]:
        return [json.loads(self.history[place])["_step"] for place in sorted(self.history)]

    def values(self, step: int) -> dict[str, Any]:
        """What was logged at `step`, without what the library adds."""
        (line,) = [row for row in map(json.loads, self.history.values()) if row["_step"] == step]
        return {key: value for key, value in line.items() if not key.startswith("_")}

    def config(self) -> dict[str, Any]:
        return {key: entry["value"] for key, entry in json.loads(self.bucket["config"]).items() if key != "_wandb"}


@dataclass
class Stored:
    """One version of an artifact. files: path -> key of its bytes."""

    id: str
    kind: str
    collection: str
    version: int
    digest: str
    aliases: set[str]
    metadata: str | None
    manifest: str = ""
    files: dict[str, str] = field(default_factory=dict)
    committed: bool = False


class Service:
    """url: its address."""

    def __init__(self) -> None:
        self.runs: dict[str, Run] = {}
        self.artifacts: list[Stored] = []
        self.blobs: dict[str, bytes] = {}
        self.refused: list[str] = []
        self.url = ""

    def artifact(self, name: str) -> Stored | None:
        """COLLECTION:ALIAS, the newest first."""
        collection, _, alias = name.partition(":")
        for stored in reversed(self.artifacts):
            if (
                stored.committed
                and stored.collection == collection
                and alias in {*stored.aliases, f"v{stored.version}"}
            ):
                return stored
        return None

    def content(self, name: str) -> dict[str, bytes]:
        """The bytes of every file of COLLECTION:ALIAS."""
        stored = self.artifact(name)
        assert stored is not None, f"no {name}"
        return {path: self.blobs[key] for path, key in stored.files.items()}

    def add(
        self, name: str, kind: str, files: dict[str, bytes], aliases: set[str], **changes: dict[str, Any]
    ) -> Stored:
        """An artifact that some client uploaded. changes: path -> what its entry in the manifest says otherwise."""
        entries = {}
        for path, data in files.items():
            md5 = base64.b64encode(hashlib.md5(data).digest()).decode()
            entries[path] = {"digest": md5, "size": len(data), "birthArtifactID": "x", **changes.get(path, {})}
        manifest = {
            "version": 1,
            "storagePolicy": "wandb-storage-policy-v1",
            "storagePolicyConfig": {"storageLayout": "V2"},
            "contents": entries,
        }
        made = Stored(f"artifact-{len(self.artifacts)}", kind, name, 0, "d" * 32, aliases, "{}", committed=True)
        made.manifest = self.keep(json.dumps(manifest).encode())
        made.files = {path: self.keep(data) for path, data in files.items()}
        self.artifacts.append(made)
        return made

    def keep(self, data: bytes) -> str:
        key = f"b{len(self.blobs)}"
        self.blobs[key] = data
        return key

    def link(self, key: str) -> str:
        return f"{self.url}/blob/{key}"

    def answer(self, query: str, given: dict[str, Any]) -> dict[str, Any]:
        operation = re.search(r"\b(?:query|mutation)\s+(\w+)", query)
        name = operation[1] if operation else "?"
        if name not in _ANSWERS:
            raise KeyError(f"unknown operation {name}: {query} {given}")
        return _ANSWERS[name](self, given)


@contextmanager
def running() -> Iterator[Service]:
    service = Service()
    with serving(_application(service)) as port:
        service.url = f"http://127.0.0.1:{port}"
        yield service


def _viewer(service: Service, given: dict[str, Any]) -> dict[str, Any]:
    return {
        "viewer": {"id": "u", "entity": ENTITY, "username": "me", "email": "", "flags": "{}", "teams": {"edges": []}}
    }


def _features(service: Service, given: dict[str, Any]) -> dict[str, Any]:
    return {"serverInfo": {"features": []}}


def _project() -> dict[str, Any]:
    return {"id": "p", "internalId": "7", "name": PROJECT, "entity": {"id": "e", "name": ENTITY}}


def _resume_status(service: Service, given: dict[str, Any]) -> dict[str, Any]:
    run = service.runs.get(given["name"])
    bucket = None
    if run is not None:
        last = [run.history[place] for place in sorted(run.history)][-1:]
        bucket = {
            "id": run.name,
            "name": run.name,
            "summaryMetrics": json.dumps(run.summary),
            "displayName": run.bucket["displayName"],
            "logLineCount": 0,
            "historyLineCount": len(run.history),
            "eventsLineCount": 0,
            "historyTail": json.dumps(last),
            "eventsTail": "[]",
            "config": run.bucket["config"],
            "tags": run.bucket.get("tags") or [],
            "notes": None,
            "wandbConfig": json.dumps(
                {"t": json.loads(run.bucket["config"])["_wandb"]["value"]["t"]}
            ),  # the client resumes only what began
        }
    return {"model": {**_project(), "bucket": bucket}}


def _upsert_bucket(service: Service, given: dict[str, Any]) -> dict[str, Any]:
    inserted = given["name"] not in service.runs
    run = service.runs.setdefault(given["name"], Run(given["name"]))
    run.bucket |= {key: value for key, value in given.items() if value is not None}
    bucket = {
        "id": run.name,
        "name": run.name,
        "displayName": run.bucket.get("displayName"),
        "description": None,
        "config": run.bucket["config"],
        "sweepName": None,
        "project": _project(),
        "historyLineCount": len(run.history),
    }
    return {"upsertBucket": {"bucket": bucket, "inserted": inserted}}


def _artifact_type(service: Service, given: dict[str, Any]) -> dict[str, Any]:
    stored = service.artifact(given["name"])
    return {"project": {"artifact": stored and {"artifactType": {"name": stored.kind}}}}


def _run_files(service: Service, given: dict[str, Any]) -> dict[str, Any]:
    files = [{"name": name, "uploadUrl": service.link(service.keep(b""))} for name in given["files"]]
    return {"createRunFiles": {"runID": service.runs[given["run"]].name, "uploadHeaders": [], "files": files}}


def _create_artifact(service: Service, given: dict[str, Any]) -> dict[str, Any]:
    asked = given["input"]
    if asked["runName"] not in service.runs:
        raise KeyError(asked["runName"])
    older = [stored for stored in service.artifacts if stored.collection == asked["artifactCollectionName"]]
    same = [stored for stored in older if stored.digest == asked["digest"] and stored.committed]
    aliases = {entry["alias"] for entry in asked["aliases"]}
    if same:
        made = same[-1]
    else:
        number = len(service.artifacts)
        made = Stored(
            f"artifact-{number}",
            asked["artifactTypeName"],
            asked["artifactCollectionName"],
            len(older),
            asked["digest"],
            set(),
            asked["metadata"],
        )
        service.artifacts.append(made)
    for stored in older:
        stored.aliases -= aliases
    made.aliases |= aliases
    latest = {"id": older[-1].id} if older else None
    state = "COMMITTED" if made.committed else "PENDING"
    return {
        "createArtifact": {"artifact": {"id": made.id, "state": state, "artifactSequence": {"latestArtifact": latest}}}
    }


def _by_id(service: Service, given: str) -> Stored:
    return next(stored for stored in service.artifacts if stored.id == given)


def _manifest_upload(service: Service, stored: Stored, asked: dict[str, Any]) -> dict[str, Any]:
    file: dict[str, Any] = {"id": "f"}
    if asked["includeUpload"]:
        stored.manifest = service.keep(b"")
        file |= {"uploadUrl": service.link(stored.manifest), "uploadHeaders": []}
    return {"artifactManifest": {"id": f"manifest-{stored.id}", "file": file}}


def _create_manifest(service: Service, given: dict[str, Any]) -> dict[str, Any]:
    return {"createArtifactManifest": _manifest_upload(service, _by_id(service, given["artifactID"]), given)}


def _update_manifest(service: Service, given: dict[str, Any]) -> dict[str, Any]:
    stored = _by_id(service, given["artifactManifestID"].removeprefix("manifest-"))
    return {"updateArtifactManifest": _manifest_upload(service, stored, given)}


def _create_files(service: Service, given: dict[str, Any]) -> dict[str, Any]:
    edges = []
    for spec in given["input"]["artifactFiles"]:
        stored = _by_id(service, spec["artifactID"])
        stored.files[spec["name"]] = key = service.keep(b"")
        node = {
            "storagePath": f"wandb_artifacts/{key}",
            "uploadUrl": service.link(key),
            "uploadHeaders": [],
            "uploadMultipartUrls": None,
        }
        edges.append({"node": {**node, "artifact": {"id": stored.id}}})
    return {"createArtifactFiles": {"files": {"edges": edges}}}


def _commit(service: Service, given: dict[str, Any]) -> dict[str, Any]:
    stored = _by_id(service, given["artifactID"])
    contents = json.loads(service.blobs[stored.manifest])["contents"]
    for path, entry in contents.items():
        if base64.b64encode(hashlib.md5(service.blobs[stored.files[path]]).digest()).decode() != entry["digest"]:
            raise ValueError(f"{path} is not what the manifest says")
    stored.committed = True
    return {"commitArtifact": {"artifact": {"id": stored.id, "digest": stored.digest}}}


def _membership(service: Service, given: dict[str, Any]) -> dict[str, Any]:
    if (given["entity"], given["project"]) != (ENTITY, PROJECT):
        return {"project": None}
    stored = service.artifact(given["name"])
    if stored is None:
        return {"project": {"artifactCollectionMembership": None}}
    collection = {"__typename": "ArtifactSequence", "name": stored.collection, "project": _project()}
    when = "2026-01-01T00:00:00Z"
    artifact = {
        "__typename": "Artifact",
        "id": stored.id,
        "artifactSequence": collection,
        "versionIndex": stored.version,
        "artifactType": {"name": stored.kind},
        "description": None,
        "metadata": stored.metadata,
        "ttlDurationSeconds": -2,
        "ttlIsInherited": False,
        "tags": [],
        "historyStep": None,
        "state": "COMMITTED",
        "size": sum(len(service.blobs[key]) for key in stored.files.values()),
        "digest": stored.digest,
        "commitHash": None,
        "fileCount": len(stored.files),
        "createdAt": when,
        "updatedAt": when,
        "aliases": [],
    }
    aliases = [{"__typename": "ArtifactAlias", "id": alias, "alias": alias} for alias in stored.aliases]
    member = {
        "__typename": "ArtifactCollectionMembership",
        "id": "m",
        "versionIndex": stored.version,
        "createdAt": when,
        "aliases": aliases,
    }
    return {
        "project": {"artifactCollectionMembership": {**member, "artifactCollection": collection, "artifact": artifact}}
    }


def _fetch_manifest(service: Service, given: dict[str, Any]) -> dict[str, Any]:
    return {
        "artifact": {"currentManifest": {"file": {"directUrl": service.link(_by_id(service, given["id"]).manifest)}}}
    }


def _file_urls(service: Service, given: dict[str, Any]) -> dict[str, Any]:
    stored = service.artifact(f"{given['collection']}:{given['alias']}")
    assert stored is not None
    edges = [
        {"node": {"__typename": "File", "name": path, "directUrl": service.link(key)}}
        for path, key in stored.files.items()
    ]
    page = {"pageInfo": {"__typename": "PageInfo", "endCursor": None, "hasNextPage": False}, "edges": edges}
    return {
        "project": {"artifactCollection": {"__typename": "ArtifactSequence", "artifactMembership": {"files": page}}}
    }


_ANSWERS = {
    "CreateArtifact": _create_artifact,
    "CreateArtifactManifest": _create_manifest,
    "UpdateArtifactManifest": _update_manifest,
    "CreateArtifactFiles": _create_files,
    "CommitArtifact": _commit,
    "ArtifactMembershipByName": _membership,
    "FetchArtifactManifest": _fetch_manifest,
    "GetArtifactMembershipFileUrls": _file_urls,
    "Viewer": _viewer,
    "GetDefaultEntity": _viewer,
    "ServerFeaturesQuery": _features,
    "RunResumeStatus": _resume_status,
    "UpsertBucket": _upsert_bucket,
    "ArtifactType": _artifact_type,
    "CreateRunFiles": _run_files,
}


def _application(service: Service) -> web.Application:
    async def body(request: web.Request) -> bytes:
        data = await request.read()
        return gzip.decompress(data) if request.headers.get("Content-Encoding") == "gzip" else data

    def refused(status: int, what: str) -> web.Response:
        service.refused.append(what)
        return web.json_response({"errors": [{"message": what}]}, status=status)

    async def post(request: web.Request) -> web.Response:
        if request.headers.get("Authorization") != f"Basic {base64.b64encode(f'api:{KEY}'.encode()).decode()}":
            return web.json_response({"errors": [{"message": "invalid key"}]}, status=401)
        try:
            asked = json.loads(await body(request))
            if request.path == "/graphql":
                return web.json_response({"data": service.answer(asked["query"], asked.get("variables") or {})})
            return web.json_response(_stream(service, request.path, asked))
        except Exception as error:
            return refused(400, f"{request.path}: {error!r}")

    async def put(request: web.Request) -> web.Response:
        key = request.match_info["key"]
        if key not in service.blobs:
            return refused(404, f"PUT {request.path}")
        service.blobs[key] = await body(request)
        return web.json_response({})

    async def get(request: web.Request) -> web.Response:
        data = service.blobs.get(request.match_info.get("key", ""))
        return refused(404, f"GET {request.path}") if data is None else web.Response(body=data)

    app = web.Application(client_max_size=2**26)
    app.router.add_get("/blob/{key}", get)
    app.router.add_put("/blob/{key}", put)
    app.router.add_post("/{path:.*}", post)
    return app


def _stream(service: Service, path: str, said: dict[str, Any]) -> dict[str, Any]:
    """The file stream of a run: lines, each with its place."""
    match = re.fullmatch(rf"/files/{ENTITY}/{PROJECT}/([\w-]+)/file_stream", path)
    if match is None:
        raise KeyError(path)
    run = service.runs[match[1]]
    for name, part in (said.get("files") or {}).items():
        lines = part["content"]
        if name == "wandb-history.jsonl":
            run.history |= {part["offset"] + number: line for number, line in enumerate(lines)}
        elif name == "wandb-summary.json":
            run.summary |= json.loads(lines[-1])
    if said.get("complete"):
        run.exit_code = said["exitcode"]
    return {"exitcode": None, "limits": {}}
