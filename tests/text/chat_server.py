"""A strict loopback server of chat completions for tests: faults on demand, idempotency, and a billing ledger of its
own.

    python -m tests.text.chat_server --latency-ms 50    # prints its address as JSON, serves until its input is closed

Decisions that matter here:
- strict: an unknown field, a wrong type, a missing key or model is refused as the real service does it, so that a
  sloppy client fails;
- what happens to an attempt is told by `plan(attempt) -> fault`, a function of the call's key and the number of the
  attempt, so that a test says exactly which attempt fails, and how;
- a call is billed when its reply is made, whether or not the reply gets through; with `honours_keys` a key is billed
  once, and later attempts get the first one's reply.
"""

import argparse
import asyncio
import hashlib
import json
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from email.utils import formatdate
from typing import Any

from aiohttp import web

from tests.text.loopback import serving
from tests.text.provider_service import Refused, check_messages, cut, model_row

API_KEY = "sk-canary-5f1d0c2b9a7e4e6d8c3b"
MODELS = ("gpt-4o-mini", "gpt-4o", "o4-mini", "ft:gpt-4o-mini:org:prover:abc123")
FIELDS = {"model", "messages", "max_tokens", "max_completion_tokens", "temperature", "top_p", "seed"}
FIELDS |= {"reasoning_effort", "top_k", "response_format"}


@dataclass(frozen=True)
class Attempt:
    """One request as it arrived. key: its Idempotency-Key. number: from 0, of this key. arrival: from 0, of all. body:
    as parsed."""

    key: str
    number: int
    arrival: int
    body: dict[str, Any]


@dataclass(frozen=True)
class Bill:
    """One billed reply."""

    key: str
    model: str
    prompt_tokens: int
    completion_tokens: int


Plan = Callable[[Attempt], str]


def ok(attempt: Attempt) -> str:
    """The plan under which nothing fails."""
    return "ok"


def count_tokens(text: str) -> int:
    """The server's tokenizer: a token for every four bytes."""
    return -(-len(text.encode()) // 4)


@dataclass
class ChatServer:
    """The server, run by a thread of its own between `__enter__` and `__exit__`. url: its base URL. bills, attempts:
    what happened.

    latency_s: of every reply. late_s: of the fault "late". wait_s: what the faults 429... ask to wait. unlisted: models
    that answer and stand in no list. list_fault: of the list of models, as of a reply.

    A fault "answer STATUS BODY" is answered so, word for word.
    """

    latency_s: float = 0.0
    late_s: float = 5.0
    wait_s: float = 0.05
    honours_keys: bool = True
    plan: Plan = ok
    unlisted: tuple[str, ...] = ()
    list_fault: str = ""
    url: str = ""
    bills: list[Bill] = field(default_factory=list)
    attempts: list[Attempt] = field(default_factory=list)
    arrived_s: list[float] = field(default_factory=list)
    authorizations: Counter[str] = field(default_factory=Counter)
    _answers: dict[str, dict[str, Any]] = field(default_factory=dict)
    _numbers: Counter[str] = field(default_factory=Counter)

    def __enter__(self) -> "ChatServer":
        app = web.Application(client_max_size=2**26)
        app.router.add_post("/v1/chat/completions", self._chat)
        app.router.add_get("/v1/ledger", self._ledger)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/v1/models/{name}", self._model)
        self._running = serving(app)
        self.url = f"http://127.0.0.1:{self._running.__enter__()}/v1"
        return self

    def __exit__(self, *error: Any) -> None:
        self._running.__exit__(*error)

    async def _models(self, request: web.Request) -> web.Response:
        if (refusal := self._authorize(request)) is not None:
            return refusal
        if self.list_fault:
            return _told(self.list_fault)
        return web.json_response({"object": "list", "data": [model_row(name) for name in MODELS]})

    async def _model(self, request: web.Request) -> web.Response:
        if (refusal := self._authorize(request)) is not None:
            return refusal
        name = request.match_info["name"]
        return (
            web.json_response(model_row(name))
            if name in MODELS
            else _error(404, f"The model '{name}' does not exist", "model_not_found")
        )

    async def _ledger(self, request: web.Request) -> web.Response:
        return web.json_response([asdict(bill) for bill in self.bills])

    def _authorize(self, request: web.Request) -> web.Response | None:
        sent = request.headers.get("Authorization", "")
        self.authorizations[sent] += 1
        if sent == f"Bearer {API_KEY}":
            return None
        return _error(401, f"Incorrect API key provided: {sent.removeprefix('Bearer ')}.", "invalid_api_key")

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        if (refusal := self._authorize(request)) is not None:
            return refusal
        body = await request.json()
        if (wrong := _check(body, (*MODELS, *self.unlisted))) is not None:
            return wrong
        key = request.headers.get("Idempotency-Key", "")
        attempt = Attempt(key, self._numbers[key], len(self.attempts), body)
        self._numbers[key] += 1
        self.attempts.append(attempt)
        self.arrived_s.append(time.monotonic())
        fault = self.plan(attempt)
        await asyncio.sleep(self.latency_s)
        return await self._respond(request, attempt, fault)

    async def _respond(self, request: web.Request, attempt: Attempt, fault: str) -> web.StreamResponse:
        if fault == "drop_before":
            return cut(request)
        if (refused := self._refuse(fault)) is not None:
            return refused
        reply = self._reply(attempt, fault)
        if fault == "drop_after":
            return cut(request)
        if fault == "malformed":
            return web.Response(body=json.dumps(reply)[:-9].encode(), content_type="application/json")
        if fault == "late":
            await asyncio.sleep(self.late_s)
        return web.json_response(reply)

    def _refuse(self, fault: str) -> web.Response | None:
        wait = self.wait_s
        if fault.startswith("answer "):
            return _told(fault)
        if fault.isdecimal() and fault != "429":
            return _error(int(fault), f"error {fault}", None)
        if fault == "429":
            return _error(429, "Rate limit reached", "rate_limit_exceeded", {"retry-after": f"{wait:g}"})
        if fault == "429-ms":
            return _error(
                429,
                "Rate limit reached",
                "rate_limit_exceeded",
                {"retry-after-ms": f"{wait * 1000:g}", "retry-after": "60"},
            )
        if fault == "429-date":
            return _error(
                429,
                "Rate limit reached",
                "rate_limit_exceeded",
                {"retry-after": formatdate(time.time() + wait, usegmt=True)},
            )
        if fault == "quota":
            return _error(429, "You exceeded your current quota", "insufficient_quota", {"retry-after": "1"})
        if fault == "policy":
            return _error(400, "Your request was rejected by our safety system", "content_policy_violation")
        return None

    def _reply(self, attempt: Attempt, fault: str) -> dict[str, Any]:
        if self.honours_keys and attempt.key and attempt.key in self._answers:
            return self._answers[attempt.key]
        reply = _completion(attempt.body, fault)
        usage = reply["usage"]
        self.bills.append(Bill(attempt.key, attempt.body["model"], usage["prompt_tokens"], usage["completion_tokens"]))
        if fault == "nulls":
            reply["choices"][0]["message"] |= {
                "reasoning": None,
                "reasoning_content": None,
                "function_call": None,
                "tool_calls": [],
            }
            usage["prompt_tokens_details"] = None
        if fault == "no_usage":
            del reply["usage"]
        if fault == "no_count":
            reply["usage"] = {"prompt_tokens": usage["prompt_tokens"], "completion_tokens": 0}
        if fault == "details":
            reply |= {"model": "gpt-4o-mini-2024-07-18", "system_fingerprint": "fp_1"}
            usage |= {
                "prompt_tokens_details": {"cached_tokens": 3},
                "completion_tokens_details": {"reasoning_tokens": 5},
            }
            usage["total_tokens"] += 10
        self._answers[attempt.key] = reply
        return reply


def _completion(body: dict[str, Any], fault: str) -> dict[str, Any]:
    """The reply to `body`: text that depends on the messages alone, cut at the limit of tokens."""
    digest = hashlib.blake2b(json.dumps(body["messages"]).encode(), digest_size=64).hexdigest()
    limit = body.get("max_tokens", body.get("max_completion_tokens", 16))
    content = digest[: 4 * limit]
    finish = (
        fault.removeprefix("finish ")
        if fault.startswith("finish ")
        else "stop"
        if len(content) == len(digest)
        else "length"
    )
    prompt = sum(count_tokens(message["content"]) + 4 for message in body["messages"])
    message = {"role": "assistant", "content": None if fault == "no_content" else content, "refusal": None}
    if fault == "parts":
        thinking = {"type": "thinking", "thinking": [{"type": "text", "text": "Decision: reject?"}]}
        message["content"] = [thinking, {"type": "text", "text": content}]
    if "reasoning_effort" in body:
        message["reasoning_content"] = "Well, well."
    return {
        "id": f"chatcmpl-{digest[:12]}",
        "object": "chat.completion",
        "created": 1_700_000_000,
        "model": body["model"],
        "choices": [
            {"index": 0, "message": message, "finish_reason": None if finish == "null" else finish, "logprobs": None}
        ],
        "usage": {
            "prompt_tokens": prompt,
            "completion_tokens": count_tokens(content),
            "total_tokens": prompt + count_tokens(content),
        },
    }


def _told(fault: str) -> web.Response:
    status, _, text = fault.removeprefix("answer ").partition(" ")
    return web.Response(
        status=int(status), text=text, content_type="text/html" if text.startswith("<") else "application/json"
    )


def _check(body: Any, models: tuple[str, ...]) -> web.Response | None:
    """The refusal of a request that is not one, else None."""
    if not isinstance(body, dict) or set(body) - FIELDS or not isinstance(body.get("model"), str):
        return _error(400, f"Unrecognized request arguments: {sorted(set(body) - FIELDS)}", None)
    if body["model"] not in models:
        return _error(
            404, f"The model `{body['model']}` does not exist or you do not have access to it.", "model_not_found"
        )
    if body["model"].startswith("o") and "max_tokens" in body:
        message = (
            "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead."
        )
        return _error(400, message, "unsupported_parameter", param="max_tokens")
    limits = [body[name] for name in ("max_tokens", "max_completion_tokens") if name in body]
    if len(limits) != 1 or type(limits[0]) is not int or limits[0] < 1:
        return _error(400, "max_tokens must be a whole number from 1", "invalid_value")
    try:
        check_messages(body.get("messages"))
    except Refused as refused:
        return _error(refused.status, str(refused), "invalid_value")
    return None


def _error(
    status: int, message: str, code: str | None, headers: dict[str, str] | None = None, param: str | None = None
) -> web.Response:
    kind = "insufficient_quota" if code == "insufficient_quota" else "invalid_request_error"
    error = {"message": message, "type": kind, "param": param, "code": code}
    return web.json_response({"error": error}, status=status, headers=headers)


def main() -> None:
    """Serve in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--latency-ms", type=float, default=0.0)
    server = ChatServer(latency_s=parser.parse_args().latency_ms / 1000)
    with server:
        print(json.dumps({"url": server.url}), flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
