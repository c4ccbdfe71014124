"""Calls to the language model on this cluster: `ChatClient` over `nip_ray.serving.host`.

Decisions that matter here: it costs nothing, so only tokens are counted. A call without a seed gets one from its key, so that the same
call has the same reply in every run. A call whose task is cancelled stops being generated.
"""

import asyncio
from typing import Any

import ray
from ray.exceptions import RayError

from nip_ray.seeding import stable_seed
from nip_ray.serving.host import LocalHost, as_ours
from nip_ray.text.providers.chat import ChatReply, ChatRequest


class LocalChat:
    """Answers by the host's chat actor, all models of its folder."""

    def __init__(self, host: LocalHost) -> None:
        """The host stays whoever started it's to stop."""
        self._actor = host.chat

    async def complete(self, request: ChatRequest) -> ChatReply:
        """See `ChatClient.complete`. Raises UserError for a model that is not here."""
        from nip_ray.serving.engine import GenerationRequest

        seed = stable_seed(0, "reply", request.key) if request.seed is None else request.seed
        temperature = 1.0 if request.temperature is None else request.temperature
        top_p = 1.0 if request.top_p is None else request.top_p
        wanted = GenerationRequest([], request.max_tokens, temperature, top_p, seed, schema=request.schema)
        made = await self._generate(request.model, request.messages, wanted)
        return ChatReply(made.text, made.finish_reason, made.prompt_tokens, made.completion_tokens)

    async def close(self) -> None:
        """Nothing to give back."""

    async def _generate(self, *arguments: Any) -> Any:
        reference = self._actor.generate.remote(*arguments)
        try:
            return await reference
        except RayError as error:
            raise as_ours(error) from None
        except asyncio.CancelledError:
            ray.cancel(reference)
            raise
