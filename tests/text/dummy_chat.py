"""Replies from a function instead of a model."""

from collections.abc import Callable

from nip_ray.text.costs.prices import BYTES_PER_TOKEN, estimated_prompt_tokens, utf8_length
from nip_ray.text.providers.interface import ChatReply, ChatRequest


class DummyChat:
    """Answers at once and for free what `reply(request)` says; the same request should get the same reply."""

    def __init__(self, reply: Callable[[ChatRequest], str]) -> None:
        """reply: a pure function; its draws come from `stable_seed(..., request.key)`."""
        self._reply = reply

    async def complete(self, request: ChatRequest) -> ChatReply:
        """The function's reply, cut off at `max_tokens` tokens of four bytes."""
        text = self._reply(request)
        prompt, tokens = estimated_prompt_tokens(request.messages), -(-utf8_length(text) // BYTES_PER_TOKEN)
        if tokens <= request.max_tokens:
            return ChatReply(text, "stop", prompt, tokens)
        cut = text.encode()[: BYTES_PER_TOKEN * request.max_tokens].decode("utf-8", "ignore")
        return ChatReply(cut, "length", prompt, request.max_tokens)

    async def close(self) -> None:
        """There is nothing to give back."""
