"""A loopback server with the two places of Ollama's own protocol that `examples/own_provider.py` asks."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from aiohttp import web

from tests.text.loopback import serving

MODEL = "llama3.2"


def reply(body: dict[str, Any]) -> dict[str, Any]:
    """What the model says: by the schema, or an acceptance."""
    text = json.dumps({"prime": "yes"}) if "format" in body else "Decision: accept"
    words = text.split()[: body["options"]["num_predict"]]
    count = {"prompt_eval_count": 20, "eval_count": len(words)}
    return {"message": {"role": "assistant", "content": " ".join(words)}, "done_reason": "stop", "done": True, **count}


@contextmanager
def ollama(requests: list[dict[str, Any]]) -> Iterator[str]:
    """Its address, while it runs. requests: of chats, are appended."""

    async def answer(request: web.Request) -> web.Response:
        body = await request.json()
        if body["model"] != MODEL:
            return web.json_response({"error": f"model '{body['model']}' not found"}, status=404)
        if request.path == "/api/show":
            return web.json_response({"details": {}})
        requests.append(body)
        if len(requests) == 1:
            return web.Response(status=503)
        return web.json_response(reply(body))

    app = web.Application()
    app.add_routes([web.post("/api/chat", answer), web.post("/api/show", answer)])
    with serving(app) as port:
        yield f"http://127.0.0.1:{port}"
