"""The routes of the test provider: what `provider` starts, and what `provider_state` keeps."""

import asyncio
import importlib
import json
import re
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass, field
from email.utils import formatdate
from pathlib import Path
from typing import Any

from aiohttp import web

from tests.text.provider_faults import Faults, check_names
from tests.text.provider_state import Job, Prices, State, pusd
from tests.text.provider_tables import BadData, Rates, Role, digest, draw, probabilities, role_of, tokens

API_KEY = "sk-canary-7d2c41f0a9b84e55"
CHAT_FIELDS = {
    "model",
    "messages",
    "max_tokens",
    "max_completion_tokens",
    "temperature",
    "top_p",
    "seed",
    "user",
    "n",
    "response_format",
}
JOB_FIELDS = {"model", "training_file", "method", "seed", "suffix", "metadata"}
AGAIN = web.RequestKey("again", bool)
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass
class Options:
    """What a provider is like.

    situation: `module:function` that maps the chat before a reply to a row of the tables. job_s: how long a job takes.
    skew_s: how wrong its clock is. fault_seed, and the fields of `Faults` by their names in `fault_details`: see there.
    has_fine_tuning, methods, ignores_filter, drops_metadata, left_out (fields of answers that stay away): how services
    differ.
    """

    roles: list[dict[str, Any]] = field(
        default_factory=lambda: [{"name": "any", "marker": "", "replies": ["yes", "no"]}]
    )
    situation: str = "tests.text.provider_tables:default_situation"
    base_models: list[str] = field(default_factory=lambda: ["base", "gpt-4o-mini"])
    tables: dict[str, dict[str, dict[str, list[float]]]] = field(default_factory=dict)
    api_key: str = API_KEY
    seed: int = 0
    rates: dict[str, float] = field(default_factory=dict)
    prices: dict[str, float] = field(default_factory=dict)
    job_s: float = 0.05
    faults: dict[str, float] = field(default_factory=dict)
    fault_seed: int = 0
    fault_details: dict[str, float] = field(default_factory=dict)
    skew_s: float = 0.0
    latency_s: float = 0.0
    has_fine_tuning: bool = True
    methods: list[str] = field(default_factory=lambda: ["supervised", "dpo"])
    ignores_filter: bool = False
    drops_metadata: bool = False
    honours_job_keys: bool = False
    left_out: list[str] = field(default_factory=list)
    finish_reason: str = "stop"

    def make_roles(self) -> list[Role]:
        def role(given: dict[str, Any]) -> Role:
            prior = tuple(given["prior"]) if given.get("prior") else None
            return Role(given["name"], given["marker"], tuple(given["replies"]), prior)

        return [role(given) for given in self.roles]


class Refused(Exception):
    """A request that is not done."""

    def __init__(self, status: int, message: str, code: str | None = None) -> None:
        super().__init__(message)
        self.status, self.code = status, code

    def response(self) -> web.Response:
        return web.json_response(
            {"error": {"message": str(self), "type": "invalid_request_error", "code": self.code}}, status=self.status
        )


class Service:
    """The routes."""

    def __init__(self, folder: Path, options: Options) -> None:
        module, name = options.situation.split(":")
        self.options, self.roles = options, options.make_roles()
        check_names(options.faults)
        self.faults = Faults(options.fault_seed, dict(options.faults), **options.fault_details)  # type: ignore[arg-type]
        self.state = State(
            folder,
            self.roles,
            getattr(importlib.import_module(module), name),
            Rates(**options.rates),  # type: ignore[arg-type]
            Prices(**options.prices),
            options.job_s,
            options.base_models,
            self.faults,
            options.tables,
        )
        self._calls: Counter[str] = Counter()
        self._requests: Counter[str] = Counter()
        self._later: set[asyncio.Task[Any]] = set()

    def app(self) -> web.Application:
        app = web.Application(middlewares=[self._door], client_max_size=2**28)
        add, jobs = app.router.add_route, "/v1/fine_tuning/jobs"
        add("POST", "/v1/chat/completions", self.chat)
        add("GET", "/v1/models", self.models)
        add("GET", "/v1/models/{id:.+}", self.model)
        if self.options.has_fine_tuning:
            add("POST", "/v1/files", self.upload)
            add("GET", "/v1/files", self.files)
            add("GET", "/v1/files/{id}", self.file)
            add("POST", jobs, self.create_job)
            add("GET", jobs, self.jobs)
            add("GET", jobs + "/{id}", self.job)
            add("POST", jobs + "/{id}/cancel", self.cancel)
        add("POST", "/test/faults", self.set_faults)
        add("GET", "/test/state", self.show)
        app.on_cleanup.append(self._close)
        return app

    async def _close(self, app: web.Application) -> None:
        for task in self._later:
            task.cancel()
        self.state.close()

    @web.middleware
    async def _door(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Checks the key, settles jobs, and lets faults happen."""
        body = await request.read()
        if request.path.startswith("/test/"):
            return await handler(request)
        if self.options.latency_s:
            await asyncio.sleep(self.options.latency_s)
        try:
            self._check_key(request)
            response = await self._with_faults(request, handler, body)
        except Refused as refused:
            response = refused.response()
        except web.HTTPException as error:
            response = Refused(error.status, error.reason).response()
        response.headers["Date"] = formatdate(time.time() + self.options.skew_s, usegmt=True)
        return response

    def _check_key(self, request: web.Request) -> None:
        given = request.headers.get("Authorization", "").removeprefix("Bearer ")
        if given != self.options.api_key:
            raise Refused(401, f"Incorrect API key provided: {given}", "invalid_api_key")
        self._requests[f"{request.method} {re.sub(r'/(ftjob|file)-[0-9]+', '/ID', request.path)}"] += 1

    async def _with_faults(self, request: web.Request, handler: Handler, body: bytes) -> web.StreamResponse:
        creates = request.method == "POST" and request.path.endswith("/fine_tuning/jobs")
        match = self.faults.of_request(request.method, _what(request, body), creates)
        if match == "storm":
            return self._storm()
        if match == "server_error":
            raise Refused(500 + 2 * (len(body) % 2), "the server had an error")
        if match == "drop_before":
            return cut(request)
        if match == "registered_late":
            self._do_later(handler, request)
            return cut(request)
        response = await handler(request)
        if match == "duplicate":
            request[AGAIN] = True
            await handler(request)
        if match == "late":
            await asyncio.sleep(self.faults.late_s)
        if match == "unsure":
            raise Refused(500, "the server had an error after it was done")
        return cut(request) if match == "drop_after" else response

    def _storm(self) -> web.Response:
        self._requests["429"] += 1
        wait_s = self.faults.retry_after_s
        after = {"retry-after": str(wait_s)} if self._requests["429"] % 2 else {"retry-after-ms": str(1000 * wait_s)}
        response = Refused(429, "Rate limit reached", "rate_limit_exceeded").response()
        response.headers.update(after)
        return response

    def _do_later(self, handler: Handler, request: web.Request) -> None:
        async def later() -> None:
            await asyncio.sleep(self.faults.registered_after_s)
            await handler(request)

        task = asyncio.ensure_future(later())
        self._later.add(task)
        task.add_done_callback(self._later.discard)

    async def chat(self, request: web.Request) -> web.Response:
        body = await _object(request, CHAT_FIELDS, ("model", "messages"))
        self.state.settle()
        table = self._table(body["model"])
        messages = check_messages(body["messages"])
        key, bill = self._call_key(request, body)
        prompt = sum(4 + tokens(str(message["content"])) for message in messages)
        if messages == [{"role": "user", "content": "Hello"}]:  # of no dialogue: is the model there?
            return self._answer(body, bill, prompt, "Hello", "stop", 1)
        try:
            role = role_of(self.roles, messages)
        except BadData as error:
            raise Refused(400, str(error)) from None
        if self.faults.of_thing("refusal", key):
            return self._answer(body, bill, prompt, None, "content_filter", 0)
        p = probabilities(
            table, role, self.state.situation(messages), body.get("temperature") or float("temperature" not in body)
        )
        words = role.replies[draw(p, self.options.seed, _dice(key, body))]
        limit = body.get("max_completion_tokens") or body.get("max_tokens") or 10**9
        if tokens(words) > limit:
            return self._answer(body, bill, prompt, " ".join(words.split()[:limit]), "length", limit)
        return self._answer(body, bill, prompt, words, self.options.finish_reason, tokens(words))

    def _call_key(self, request: web.Request, body: dict[str, Any]) -> tuple[str, str]:
        """What the reply depends on, and what is billed once: the same for a key, else for an arrival."""
        key = request.headers.get("Idempotency-Key")
        if key:
            return key, f"chat {key}"
        what = digest(json.dumps(body, sort_keys=True))
        self._calls[what] += 1
        return f"{what} {self._calls[what]}", f"chat {what} {self._calls[what]} {time.time_ns()}"

    def _answer(
        self, body: dict[str, Any], bill: str, prompt: int, words: str | None, reason: str, said: int
    ) -> web.Response:
        prices = self.state.prices
        amount = pusd(prompt, prices.input) + pusd(said, prices.output)
        self.state.bill("chat", bill, amount, model=body["model"], prompt_tokens=prompt, completion_tokens=said)
        choice = {
            "index": 0,
            "message": {"role": "assistant", "content": words},
            "finish_reason": reason,
            "logprobs": None,
        }
        usage = {"prompt_tokens": prompt, "completion_tokens": said, "total_tokens": prompt + said}
        told = {
            "id": f"chatcmpl-{digest(bill)}",
            "object": "chat.completion",
            "created": int(time.time() + self.options.skew_s),
            "model": body["model"],
            "choices": [choice],
            "usage": usage,
        }
        return web.json_response(told | dict.fromkeys(self.options.left_out))

    async def models(self, request: web.Request) -> web.Response:
        self.state.settle()
        names = [*self.options.base_models, *(job.model for job in self.state.jobs.values() if job.model)]
        return web.json_response({"object": "list", "data": [model_row(name) for name in dict.fromkeys(names)]})

    async def model(self, request: web.Request) -> web.Response:
        self.state.settle()
        self._table(request.match_info["id"])
        return web.json_response(model_row(request.match_info["id"]))

    async def upload(self, request: web.Request) -> web.Response:
        form = _form(request, await request.read())
        if form.get("purpose") != ("", b"fine-tune") or not form.get("file", ("", b""))[1]:
            raise Refused(400, "a file with the purpose fine-tune is expected")
        file_id = self.state.add_file(*form["file"], again=request.get(AGAIN, False))
        return web.json_response(self._file(self.state.files[file_id]))

    async def files(self, request: web.Request) -> web.Response:
        rows = [self._file(row) for row in reversed(list(self.state.files.values()))]
        return web.json_response(_page(rows, request, 10_000))

    async def file(self, request: web.Request) -> web.Response:
        if request.match_info["id"] not in self.state.files:
            raise Refused(404, f"No such File object: {request.match_info['id']}")
        return web.json_response(self._file(self.state.files[request.match_info["id"]]))

    async def create_job(self, request: web.Request) -> web.Response:
        body = await _object(request, JOB_FIELDS, ("model", "training_file", "method"))
        self.state.settle()
        self._table(body["model"])
        self._check_job(body)
        key = request.headers.get("Idempotency-Key")
        same = [job for job in self.state.jobs.values() if key and job.body.get("idempotency_key") == key]
        if self.options.drops_metadata:
            body.pop("metadata", None)
        job = (
            same[0] if same and self.options.honours_job_keys else self.state.add_job({**body, "idempotency_key": key})
        )
        return web.json_response(self._job(job))

    def _check_job(self, body: dict[str, Any]) -> None:
        kind = body["method"].get("type") if isinstance(body["method"], dict) else None
        if kind not in self.options.methods:
            raise Refused(400, f"method {kind!r} is not available for model {body['model']}", "invalid_method")
        if body["training_file"] not in self.state.files:
            raise Refused(400, f"invalid training_file: {body['training_file']}", "invalid_file")
        if set(body["method"]) - {"type", kind} or set(body["method"].get(kind, {})) - {"hyperparameters"}:
            raise Refused(400, "unknown fields in method")
        chosen = body["method"].get(kind, {}).get("hyperparameters", {})
        if set(chosen) - {"n_epochs", "batch_size", "learning_rate_multiplier", *(["beta"] if kind == "dpo" else [])}:
            raise Refused(400, f"unknown hyperparameters: {sorted(chosen)}")
        if not re.fullmatch(r"[A-Za-z0-9-]{0,64}", body.get("suffix") or ""):
            raise Refused(400, "suffix must be at most 64 letters, digits and dashes")
        metadata = body.get("metadata") or {}
        if len(metadata) > 16 or not all(
            isinstance(v, str) and len(k) <= 64 and len(v) <= 512 for k, v in metadata.items()
        ):
            raise Refused(400, "metadata must be at most 16 short texts")

    async def jobs(self, request: web.Request) -> web.Response:
        self.state.settle()
        wanted = {m[1]: value for key, value in request.query.items() if (m := re.fullmatch(r"metadata\[(.+)\]", key))}
        found = list(reversed(self.state.jobs.values()))
        if wanted and not self.options.ignores_filter:
            found = [
                job for job in found if all((job.body.get("metadata") or {}).get(k) == v for k, v in wanted.items())
            ]
        return web.json_response(_page([self._job(job) for job in found], request, 20))

    async def job(self, request: web.Request) -> web.Response:
        self.state.settle()
        return web.json_response(self._job(self._known(request)))

    async def cancel(self, request: web.Request) -> web.Response:
        job = self._known(request)
        if not self.state.cancel(job):
            raise Refused(400, f"Job {job.id} is over already: {job.status}")
        return web.json_response(self._job(job))

    async def set_faults(self, request: web.Request) -> web.Response:
        chances = await request.json()
        check_names(chances)
        self.faults.chances = chances
        self.faults.met.clear()
        return web.json_response(chances)

    async def show(self, request: web.Request) -> web.Response:
        self.state.settle()
        jobs = [{**asdict(job), "status": job.now()} for job in self.state.jobs.values()]
        files = list(self.state.files.values())
        return web.json_response({"jobs": jobs, "files": files, "requests": self._requests, "later": len(self._later)})

    def _known(self, request: web.Request) -> Job:
        job = self.state.jobs.get(request.match_info["id"])
        if job is None:
            raise Refused(404, f"Could not find fine tune: {request.match_info['id']}", "fine_tune_not_found")
        return job

    def _table(self, model: str) -> Any:
        table = self.state.table(model)
        if table is None:
            raise Refused(404, f"The model {model!r} does not exist or you do not have access to it", "model_not_found")
        return table

    def _time(self, true: float) -> int:
        return int(true + self.options.skew_s)

    def _file(self, row: dict[str, Any]) -> dict[str, Any]:
        about = {"id": row["id"], "object": "file", "bytes": row["size"], "created_at": self._time(row["at"])}
        return {**about, "filename": row["name"], "purpose": "fine-tune", "status": "processed"}

    def _job(self, job: Job) -> dict[str, Any]:
        told = {
            "id": job.id,
            "object": "fine_tuning.job",
            "created_at": self._time(job.begun),
            "model": job.body["model"],
            "training_file": job.body["training_file"],
            "method": job.body["method"],
            "hyperparameters": {},
            "metadata": job.body.get("metadata"),
            "user_provided_suffix": job.body.get("suffix"),
            "seed": job.body.get("seed") or 0,
            "status": job.now(),
            "fine_tuned_model": job.model,
            "trained_tokens": job.trained_tokens,
            "error": job.error,
            "organization_id": "org-test",
            "result_files": [],
        }
        return told | dict.fromkeys(self.options.left_out)


def _what(request: web.Request, body: bytes) -> str:
    """What tells a request from others and is the same for its repeats."""
    edge = re.search("boundary=(.+)", request.headers.get("Content-Type", ""))
    same = body.replace(edge[1].encode(), b"") if edge else body
    return " ".join(
        [request.method, request.path_qs, request.headers.get("Idempotency-Key") or digest(same.decode("latin1"))]
    )


def _dice(key: str, body: dict[str, Any]) -> str:
    """What a reply is drawn by: the seed that was asked for with the messages, so that a run can be repeated; without
    one, the key.

    Of the model only what it was tuned from: the names of tuned models differ between runs that are otherwise equal.
    """
    seed = body.get("seed")
    base = body["model"].split(":")[:2]
    return key if seed is None else f"{seed} {digest(json.dumps([base, body['messages']], sort_keys=True))}"


def cut(request: web.Request) -> web.Response:
    """Ends the connection without an answer."""
    if request.transport is not None:
        request.transport.abort()
    return web.Response()


async def _object(request: web.Request, allowed: set[str], needed: tuple[str, ...]) -> dict[str, Any]:
    try:
        body = json.loads(await request.read())
    except ValueError:
        raise Refused(400, "the body is not JSON") from None
    if not isinstance(body, dict) or set(body) - allowed or any(name not in body for name in needed):
        raise Refused(400, f"expected the fields {needed} and no other than {sorted(allowed)}")
    return body


def check_messages(given: Any) -> list[dict[str, Any]]:
    good = (
        isinstance(given, list)
        and given
        and all(isinstance(m, dict) and set(m) <= {"role", "content", "name"} for m in given)
    )
    if not good or any(
        m.get("role") not in ("system", "user", "assistant") or not isinstance(m.get("content"), str) for m in given
    ):
        raise Refused(400, "messages must be a list of {role, content}")
    return given


def _form(request: web.Request, body: bytes) -> dict[str, tuple[str, bytes]]:
    """Field -> (file name, content) of multipart form data."""
    edge = re.search("boundary=(.+)", request.headers.get("Content-Type", ""))
    fields = {}
    for part in body.split(b"--" + edge[1].encode())[1:-1] if edge else []:
        head, _, content = part.partition(b"\r\n\r\n")
        names = dict(re.findall(r'\b(name|filename)="([^"]*)"', head.decode()))
        fields[names["name"]] = (names.get("filename", ""), content.removesuffix(b"\r\n"))
    return fields


def _page(rows: list[dict[str, Any]], request: web.Request, default: int) -> dict[str, Any]:
    ids = [row["id"] for row in rows]
    after = request.query.get("after")
    start = ids.index(after) + 1 if after in ids else 0
    end = start + int(request.query.get("limit", default))
    return {"object": "list", "data": rows[start:end], "has_more": end < len(rows)}


def model_row(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "test"}
