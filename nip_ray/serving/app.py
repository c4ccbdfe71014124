"""A server for local models with the OpenAI protocol: chat completions, models, files, fine-tuning jobs; on Ray Serve.

Decisions that matter here:
- one replica holds the engines, and one actor fine-tunes (`nip_ray.serving.host`): a job slows replies down only by its
  CPUs;
- a client's model name is looked up among the models of this server, never as a path;
- the server listens on 127.0.0.1 by default. With a key, only its SHA-256 sum is sent to Ray. Without one, requests
  that a web page elsewhere could make a local browser send are refused (`nip_ray.cluster.own_address`);
- all state is in the folder: a server restarted there has its models, files and jobs, and continues unfinished ones.
"""

import asyncio
import os
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from nip_ray.cluster.interrupts import interruptible, kept
from nip_ray.cluster.own_address import refusal
from nip_ray.errors import UserError, refuse_missing
from nip_ray.secrets import secret
from nip_ray.serving.shelf import DEFAULT, ModelFolders, Shelf
from nip_ray.settings.providers import LocalProvider
from nip_ray.storage.model_files import gguf_in, model_fault

APP_NAME = "nip-ray-models"


@dataclass(frozen=True)
class ServerSettings:
    """Settings of a replica. key_digest: hexadecimal SHA-256 sum of the bearer token (None: no token is required).
    host, port: where the server listens."""

    folders: ModelFolders
    max_batch_size: int = 32
    key_digest: str | None = None
    host: str = "127.0.0.1"
    port: int = 0


def build_app(settings: ServerSettings, training: Any) -> Any:
    """The FastAPI application. training: handle of a `TrainingHost` actor on the same folder."""
    from fastapi import FastAPI, Request
    from fastapi.responses import JSONResponse, Response, StreamingResponse

    from nip_ray.serving import chat_api, jobs_api
    from nip_ray.serving.jobs import JobStore
    from nip_ray.serving.protocol import MAX_BODY, ApiError, Replays, multipart, page, read_body

    folders, replays = settings.folders, Replays()
    shelf = Shelf(settings.max_batch_size)
    uploads = jobs_api.Uploads(folders.folder / "uploads")
    jobs = jobs_api.Jobs(JobStore(folders.folder), uploads, training)
    app = FastAPI(title="nip_ray models", docs_url=None, redoc_url=None, openapi_url=None)

    def locate(name: str) -> Path:
        try:
            return folders.locate(name)
        except UserError as error:
            raise ApiError(404, str(error), "model", "model_not_found") from None

    @app.exception_handler(ApiError)
    async def on_error(request: Request, error: ApiError) -> JSONResponse:
        return JSONResponse(error.body(), error.status)

    @app.exception_handler(404)
    @app.exception_handler(405)
    async def on_unknown(request: Request, error: Exception) -> JSONResponse:
        unknown = ApiError(404, f"there is no {request.method} {request.url.path} here", code="unknown_url")
        return JSONResponse(unknown.body(), unknown.status)

    @app.middleware("http")
    async def guard(request: Request, call_next: Callable[[Request], Any]) -> Response:
        kind, _, token = request.headers.get("authorization", "").partition(" ")
        is_known = kind.lower() == "bearer" and sha256(token.encode()).hexdigest() == settings.key_digest
        if settings.key_digest and not is_known:
            refused = ApiError(401, "the API key is missing or wrong", code="invalid_api_key")
            return JSONResponse(refused.body(), refused.status)
        if not settings.key_digest:
            has_body = request.headers.get("content-length", "0") != "0" or "transfer-encoding" in request.headers
            hosts = request.headers.getlist("host")
            if found := refusal(hosts, request.headers, has_body, settings.host, settings.port):
                return JSONResponse(ApiError(found[0], found[1], code="refused_request").body(), found[0])
        size = request.headers.get("content-length", "0")
        if not size.isdecimal() or int(size) > MAX_BODY:
            return JSONResponse(ApiError(413, f"a request has at most {MAX_BODY} bytes").body(), 413)
        return await call_next(request)

    @app.post("/v1/chat/completions")
    async def chat(request: Request) -> Response:
        body = read_body(chat_api.ChatBody, await request.body())
        folder = await asyncio.to_thread(locate, body.model)
        if body.stream:
            return StreamingResponse(await chat_api.stream(shelf, folder, body), media_type="text/event-stream")
        key = request.headers.get("idempotency-key")
        return JSONResponse(await replays.once(key, body.model_dump(), lambda: chat_api.complete(shelf, folder, body)))

    def about(name: str) -> dict[str, Any]:
        return {"id": name, "object": "model", "created": 0, "owned_by": "local"}

    @app.get("/v1/models")
    async def models() -> Any:
        return page([about(name) for name in await asyncio.to_thread(folders.names)], None, "100")

    @app.get("/v1/models/{name}")
    async def model(name: str) -> Any:
        await asyncio.to_thread(locate, name)
        return about(name)

    @app.post("/v1/files")
    async def upload(request: Request) -> Any:
        fields = multipart(await request.body(), request.headers.get("content-type", ""))
        return await asyncio.to_thread(uploads.create, fields)

    @app.get("/v1/files")
    async def files(request: Request) -> Any:
        return await asyncio.to_thread(uploads.list, dict(request.query_params))

    @app.get("/v1/files/{file_id}")
    async def file(file_id: str) -> Any:
        return await asyncio.to_thread(uploads.get, file_id)

    @app.get("/v1/files/{file_id}/content")
    async def content(file_id: str) -> Response:
        return Response(await asyncio.to_thread(uploads.content, file_id), media_type="application/octet-stream")

    @app.delete("/v1/files/{file_id}")
    async def delete(file_id: str) -> Any:
        return await asyncio.to_thread(uploads.delete, file_id)

    @app.post("/v1/fine_tuning/jobs")
    async def create_job(request: Request) -> Any:
        body = read_body(jobs_api.JobBody, await request.body())
        await asyncio.to_thread(locate, body.model)
        return await jobs.create(body, request.headers.get("idempotency-key"))

    @app.get("/v1/fine_tuning/jobs")
    async def list_jobs(request: Request) -> Any:
        return await asyncio.to_thread(jobs.list, dict(request.query_params))

    @app.get("/v1/fine_tuning/jobs/{job_id}")
    async def job(job_id: str) -> Any:
        return await asyncio.to_thread(jobs.get, job_id)

    @app.post("/v1/fine_tuning/jobs/{job_id}/cancel")
    async def cancel(job_id: str) -> Any:
        return await jobs.cancel(job_id)

    @app.get("/v1/fine_tuning/jobs/{job_id}/events")
    async def events(job_id: str, request: Request) -> Any:
        return await asyncio.to_thread(jobs.events, job_id, dict(request.query_params))

    return app


def free_port(host: str = "127.0.0.1") -> int:
    """A free port."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        return probe.getsockname()[1]


def start_server(
    settings: ServerSettings,
    provider: LocalProvider,
    host: str = "127.0.0.1",
    port: int = 0,
    num_cpus: float = 1,
    num_gpus: float = 0,
) -> tuple[str, Any]:
    """Start training actor and server, of one replica, on the running Ray; returns (base URL, training actor). port 0:
    a free one.

    Raises UserError without the extra `serve`.
    """
    from nip_ray.serving.host import start_training

    try:
        from ray import serve
    except ImportError as error:
        raise UserError(f"the server needs an extra ({error}): pip install 'nip_ray[serve]'") from None
    settings = replace(settings, host=host, port=port or free_port(host))
    training = start_training(provider, settings.folders)
    serve.start(proxy_location="HeadOnly", http_options={"host": host, "port": settings.port})

    def build() -> Any:
        import torch

        from nip_ray.serving.compat import replica_on_loopback

        torch.set_num_threads(max(1, int(num_cpus)))
        replica_on_loopback()
        return build_app(settings, training)

    options = {"num_cpus": num_cpus, "num_gpus": num_gpus}
    models = serve.deployment(name="models", num_replicas=1, max_ongoing_requests=1000, ray_actor_options=options)
    serve.run(models(serve.ingress(build)()).bind(), name=APP_NAME, route_prefix="/")
    return f"http://{host}:{settings.port}/v1", training


def serve_model(
    model_dir: Path | None,
    port: int,
    host: str = "127.0.0.1",
    num_gpus: float = 0,
    max_batch_size: int = 32,
    folder: Path = Path("served"),
    api_key_variable: str | None = None,
) -> None:
    """Serve until interrupted. model_dir: the initial model (None: the default model). folder: for fine-tuned models,
    files and jobs. api_key_variable: the environment variable with the bearer token that clients must send (None: no
    token).

    Raises UserError for a folder without a model, an unset variable, a port in use, a missing extra.
    """
    refuse_missing("ray", "serve")
    settings = server_settings(model_dir, folder, max_batch_size, api_key_variable)
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise UserError(f"port {port} on {host} cannot be used ({error.strerror}); choose another") from None
    import ray

    from nip_ray.cluster.ray_session import start_local_ray

    provider = LocalProvider(num_gpus=num_gpus, max_batch_size=max_batch_size)
    with interruptible():  # SIGTERM too: Ray's own handler would abort before the server is down
        try:
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
            if not ray.is_initialized():  # this server's own Ray, with ports on the loopback
                start_local_ray(include_dashboard=False, num_cpus=max(4, len(os.sched_getaffinity(0))))
            with kept():  # Ray Serve connects actors, which installs Ray's handlers again
                url, _ = start_server(settings, provider, host, port, num_gpus=num_gpus)
            print(f"serving {', '.join(settings.folders.names())} at {url} (Ctrl-C ends it)", flush=True)
            while True:
                time.sleep(3600)
        finally:
            if ray.is_initialized():
                # with all of Serve; Serve's own shutdown makes Ray complain of a lost controller
                ray.shutdown()


def server_settings(
    model_dir: Path | None, folder: Path, max_batch_size: int = 32, api_key_variable: str | None = None
) -> ServerSettings:
    """The settings from a command line. Raises UserError; see `serve_model`."""
    named: tuple[tuple[str, Path], ...] = ()
    if model_dir is not None:
        if (fault := model_fault(model_dir)) is not None:
            raise UserError(f"{model_dir}: {fault}")
        file = gguf_in(model_dir)
        served = model_dir.resolve() if file is None else ModelFolders(folder.resolve()).convert(file)
        named = ((served.name, served),)
    digest = None
    if api_key_variable is not None:
        digest = sha256(secret(api_key_variable, "this server, which clients must send").encode()).hexdigest()
    folders = ModelFolders(folder.resolve(), named=named, any_path=False)
    folders.locate(named[0][0] if named else DEFAULT)
    return ServerSettings(folders, max_batch_size, digest)
