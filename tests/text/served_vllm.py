"""A strict loopback server with the answers of `vllm serve`: the forms and wordings of its OpenAI server, version 0.20.

It differs from OpenAI's service in what a client may stumble over: codes are numbers, `/files` and `/fine_tuning/jobs` are unknown to its
web framework, a wrong key is answered by an `error` that is text, replies have more fields, and unknown request fields are let through.
"""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from aiohttp import web

from tests.text.loopback import serving
from tests.text.provider_service import check_messages

MODEL, CONTEXT, KEY = "qwen", 8192, "none"
TYPES = {400: "BadRequestError", 404: "NotFoundError", 401: "Unauthorized"}


def fault(status: int, message: str, param: str | None = None) -> web.Response:
    return web.json_response({"error": {"message": message, "type": TYPES[status], "param": param, "code": status}}, status=status)


def text_for(body: dict[str, Any]) -> str:
    """By the schema where there is one, as guided decoding would; else a sentence."""
    schema = (body.get("response_format") or {}).get("json_schema", {}).get("schema")
    if schema is None:
        return "I have looked at it. Decision: accept"
    made = {}
    for name, field in schema["properties"].items():  # a decision where one may be made, and nothing besides
        kinds = field.get("anyOf", [field])
        values = next((kind["enum"] for kind in kinds if "enum" in kind), None)
        made[name] = values[0] if values else None if {"type": "null"} in kinds else "text"
    return json.dumps(made)


def answer(body: dict[str, Any]) -> web.Response:
    if body.get("model") != MODEL:
        return fault(404, f"The model `{body.get('model')}` does not exist.", "model")
    check_messages(body["messages"])
    prompt = sum(len(str(message["content"]).encode()) for message in body["messages"]) // 4
    limit = body.get("max_completion_tokens") or body.get("max_tokens") or CONTEXT - prompt
    if prompt + limit > CONTEXT:
        return fault(
            400,
            f"This model's maximum context length is {CONTEXT} tokens. However, you requested {prompt + limit} tokens ({prompt} in the "
            f"messages, {limit} in the completion). Please reduce the length of the messages or completion.",
        )
    words = text_for(body).split()
    message = {"role": "assistant", "content": " ".join(words[:limit]), "refusal": None, "annotations": None, "audio": None}
    message |= {"function_call": None, "tool_calls": [], "reasoning": None, "reasoning_content": None}
    ended = "length" if limit < len(words) else "stop"
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": ended, "stop_reason": None, "token_ids": None}
    said = min(len(words), limit)
    usage = {"prompt_tokens": prompt, "total_tokens": prompt + said, "completion_tokens": said, "prompt_tokens_details": None}
    made = {"id": "chatcmpl-1", "object": "chat.completion", "created": int(time.time()), "model": MODEL, "choices": [choice]}
    more = {"service_tier": None, "system_fingerprint": None, "prompt_logprobs": None, "kv_transfer_params": None}
    return web.json_response({**made, **more, "usage": usage})


@contextmanager
def served_vllm(requests: list[dict[str, Any]]) -> Iterator[str]:
    """Its base URL, while it runs. requests: bodies of chats, are appended."""

    @web.middleware
    async def guard(request: web.Request, handler: Any) -> web.StreamResponse:
        if request.headers.get("Authorization") != f"Bearer {KEY}":
            return web.json_response({"error": "Unauthorized"}, status=401)
        try:
            return await handler(request)
        except web.HTTPException as error:  # as its web framework says it
            return web.json_response({"detail": error.reason}, status=error.status)

    async def models(_: web.Request) -> web.Response:
        card = {"id": MODEL, "object": "model", "created": 1, "owned_by": "vllm", "root": "/models/q", "parent": None}
        return web.json_response({"object": "list", "data": [{**card, "max_model_len": CONTEXT, "permission": []}]})

    async def chat(request: web.Request) -> web.Response:
        body = await request.json()
        requests.append(body)
        return answer(body)

    app = web.Application(middlewares=[guard])
    app.add_routes([web.get("/v1/models", models), web.post("/v1/chat/completions", chat)])
    with serving(app) as port:
        yield f"http://127.0.0.1:{port}/v1"
