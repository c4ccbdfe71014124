"""POST /v1/chat/completions: from OpenAI's request to a generation, and back, whole or as a stream of events."""

import asyncio
import json
import secrets
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from nip_ray.errors import TrainingError, UserError
from nip_ray.serving.generation import Generation, GenerationRequest, TooLong
from nip_ray.serving.grammar import parts_of
from nip_ray.serving.protocol import ApiError, Strict
from nip_ray.serving.shelf import Shelf


class TextPart(Strict):
    """A text part of a content."""

    type: Literal["text"]
    text: str


class MessageBody(Strict):
    """A message of the chat."""

    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[TextPart]
    name: str | None = None

    def plain(self) -> dict[str, str]:
        """The message in the form of templates."""
        content = self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)
        made = {"role": "system" if self.role == "developer" else self.role, "content": content}
        return {**made, "name": self.name} if self.name else made


class StreamOptions(Strict):
    """Options of a stream."""

    include_usage: bool = False
    include_obfuscation: bool = False


class TextFormat(Strict):
    """Any text."""

    type: Literal["text"]


class NamedSchema(Strict):
    """A schema of the kind in `nip_ray.serving.grammar`; it is always enforced, strict or not."""

    name: str
    description: str | None = None
    strict: bool | None = None
    schema_: dict[str, Any] = Field(alias="schema")

    @field_validator("schema_")
    @classmethod
    def _known(cls, schema: dict[str, Any]) -> dict[str, Any]:
        parts_of(schema)
        return schema


class JsonFormat(Strict):
    """JSON by a schema."""

    type: Literal["json_schema"]
    json_schema: NamedSchema


class ChatBody(Strict):
    """The request. The last group is accepted only at its default, the one before it is ignored."""

    model: str
    messages: list[MessageBody] = Field(min_length=1)
    max_tokens: int | None = Field(None, ge=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, gt=0, le=1)
    seed: int | None = None
    stop: str | Annotated[list[str], Field(max_length=4)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None

    user: str | None = None
    store: bool | None = None
    metadata: dict[str, str] | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None

    n: Literal[1] | None = None
    frequency_penalty: Literal[0] | None = None
    presence_penalty: Literal[0] | None = None
    logprobs: Literal[False] | None = None
    response_format: Annotated[TextFormat | JsonFormat, Field(discriminator="type")] | None = None

    def generation(self) -> GenerationRequest:
        """All but the prompt. Without a seed the reply gets a random one."""
        stops = [self.stop] if isinstance(self.stop, str) else self.stop or []
        return GenerationRequest(
            prompt=[],
            max_tokens=self.max_completion_tokens or self.max_tokens or 0,
            temperature=1.0 if self.temperature is None else self.temperature,
            top_p=1.0 if self.top_p is None else self.top_p,
            seed=secrets.randbits(62) if self.seed is None else self.seed,
            stop=tuple(stop for stop in stops if stop),
            schema=self.response_format.json_schema.schema_ if isinstance(self.response_format, JsonFormat) else None,
        )


async def complete(shelf: Shelf, folder: Path, body: ChatBody) -> dict[str, Any]:
    """The chat completion. Raises ApiError for a request that the model cannot meet, or when generation fails."""
    try:
        made = await shelf.generate(folder, [message.plain() for message in body.messages], body.generation(), "refuse")
    except (UserError, TrainingError) as error:
        raise refusal(error) from None
    choice = {"index": 0, "message": {"role": "assistant", "content": made.text, "refusal": None}, "logprobs": None}
    return {
        **_head(body, "chat.completion"),
        "choices": [{**choice, "finish_reason": made.finish_reason}],
        "usage": _usage(made),
    }


async def stream(shelf: Shelf, folder: Path, body: ChatBody) -> AsyncIterator[str]:
    """The chat completion as server-sent events; the first is awaited here, so that an error is a response and not a
    broken stream.

    Raises as `complete` does. Closing the iterator stops the generation.
    """
    loop, pieces = asyncio.get_running_loop(), asyncio.Queue[str | None]()
    messages, request = [message.plain() for message in body.messages], body.generation()

    def tell(piece: str) -> None:  # from the engine's thread
        loop.call_soon_threadsafe(pieces.put_nowait, piece)

    work = shelf.generate(folder, messages, request, "refuse", tell)
    task = asyncio.ensure_future(work)
    task.add_done_callback(lambda task: task.cancelled() or task.exception())  # the reader may be gone
    task.add_done_callback(lambda _: loop.call_soon(pieces.put_nowait, None))
    first = await pieces.get()
    if first is None and task.done():
        try:
            task.result()
        except (UserError, TrainingError) as error:
            raise refusal(error) from None
    return _events(body, task, pieces, first)


async def _events(
    body: ChatBody, task: "asyncio.Task[Generation]", pieces: "asyncio.Queue[str | None]", first: str | None
) -> AsyncIterator[str]:
    head = _head(body, "chat.completion.chunk")

    def event(delta: dict[str, Any], finish: str | None = None) -> str:
        return _event({**head, "choices": [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}]})

    try:
        yield event({"role": "assistant", "content": ""})
        piece = first
        while piece is not None:
            yield event({"content": piece})
            piece = await pieces.get()
        try:
            made = await task
        except Exception as error:  # the status is already sent: the error is an event
            yield _event(ApiError(500, str(error)).body())
            return
        yield event({}, made.finish_reason)
        if body.stream_options and body.stream_options.include_usage:
            yield _event({**head, "choices": [], "usage": _usage(made)})
        yield "data: [DONE]\n\n"
    finally:
        task.cancel()


def refusal(error: UserError | TrainingError) -> ApiError:
    """The response to a request that cannot be met, or that failed."""
    if not isinstance(error, UserError):
        return ApiError(500, str(error))
    return ApiError(400, str(error), "messages", "context_length_exceeded" if isinstance(error, TooLong) else None)


def _head(body: ChatBody, kind: str) -> dict[str, Any]:
    return {"id": f"chatcmpl-{secrets.token_hex(12)}", "object": kind, "created": int(time.time()), "model": body.model}


def _usage(made: Generation) -> dict[str, int]:
    prompt, completion = made.prompt_tokens, made.completion_tokens
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


def _event(content: dict[str, Any]) -> str:
    return f"data: {json.dumps(content)}\n\n"
