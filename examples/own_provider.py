"""A custom provider: models that Ollama serves, by its own protocol (https://docs.ollama.com/api). It answers; it
does not fine-tune.

`examples/own_provider.yaml` measures with it: nip-ray train examples/own_provider.yaml
"""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

import aiohttp

from nip_ray.errors import TrainingError, UserError
from nip_ray.plugins import register_provider
from nip_ray.settings.options import option
from nip_ray.settings.providers import ProviderSettings
from nip_ray.text.providers.interface import ChatReply, ChatRequest, backoff_s


@dataclass(frozen=True)
class OllamaSettings(ProviderSettings):
    """Its settings."""

    holds_schemas = True  # its abilities, see ProviderSettings

    name: Literal["ollama"] = option("ollama", "Models served by Ollama.")
    base_url: str = option("http://127.0.0.1:11434", "Address of the server.")
    timeout_s: float = option(300.0, "Seconds after which a call counts as lost.", gt=0)
    max_retries: int = option(4, "Attempts more for a call that failed by no fault of ours.", ge=0)


class OllamaChat:
    """A `ChatClient`. Budget and records are applied around it."""

    def __init__(self, settings: OllamaSettings) -> None:
        self.settings, self.where = settings, settings.base_url
        self.session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=settings.timeout_s))

    async def complete(self, request: ChatRequest) -> ChatReply:
        """The reply to one call."""
        options = {
            "num_predict": request.max_tokens,
            "temperature": request.temperature,
            "top_p": request.top_p,
            "seed": request.seed,
        }
        body: dict[str, Any] = {"model": request.model, "messages": list(request.messages), "stream": False}
        body["options"] = {key: value for key, value in options.items() if value is not None}
        if request.schema is not None:
            body["format"] = request.schema
        found = await self.post("/api/chat", body, request.key)
        message, finish = found["message"], "length" if found.get("done_reason") == "length" else "stop"
        counts = (found.get("prompt_eval_count", 0), found.get("eval_count", 0))
        return ChatReply(message.get("content"), finish, *counts, reasoning=message.get("thinking") or "")

    async def check_models(self, names: Iterable[str]) -> None:
        """Raise UserError, before a run begins, for a model that the server does not have."""
        for name in names:
            await self.post("/api/show", {"model": name}, name)

    async def post(self, path: str, body: dict[str, Any], key: str) -> Any:
        """The server's answer. Raises UserError if it refuses, TrainingError if it fails to answer."""
        said = ""
        for attempt in range(self.settings.max_retries + 1):
            try:
                async with self.session.post(f"{self.where}{path}", json=body) as answer:
                    if answer.status == 200:
                        return await answer.json()
                    said = f"{self.where} answered {answer.status}: {(await answer.text())[:200]}"
                    if answer.status < 500 and answer.status != 429:
                        raise UserError(said)
            except (aiohttp.ClientError, TimeoutError) as error:
                said = f"{self.where} did not answer ({type(error).__name__})"
            await asyncio.sleep(backoff_s(0, key, attempt))
        raise TrainingError(f"{said}; resume the run when it does")

    async def close(self) -> None:
        """Close connections."""
        await self.session.close()


register_provider(OllamaSettings, chat=lambda given: OllamaChat(given.settings))
