"""A loopback server with the two places of Ollama's own protocol that `examples/own_provider.py` asks."""

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from aiohttp import web

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
    loop, ready, ports = asyncio.new_event_loop(), threading.Event(), []

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

    async def serve() -> web.AppRunner:
        app = web.Application()
        app.add_routes([web.post("/api/chat", answer), web.post("/api/show", answer)])
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        ports.append(runner.addresses[0][1])
        return runner

    def run() -> None:
        runner = loop.run_until_complete(serve())
        ready.set()
        loop.run_forever()
        loop.run_until_complete(runner.cleanup())
        loop.close()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert ready.wait(30)
    try:
        yield f"http://127.0.0.1:{ports[0]}"
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
