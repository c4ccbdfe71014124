"""The chat client of services that speak the OpenAI protocol, over the unmodified `openai` SDK.

Decisions that matter here:
- one attempt per SDK call; retries are ours, so that they keep to the budget, the rate limits and one idempotency key per call;
- the SDK's own `post` is used, with its aiohttp transport, instead of its typed methods: the same request at
  about a third of the processor time. What comes back is checked here;
- an attempt has a total time limit. One without a readable answer may have been billed: its worst case is booked as uncertain and
  set aside again before the next attempt. So is that of a reply without a count of tokens;
- services have words of their own for why a reply ended. One with text counts as whole unless its word says that it was cut or filtered.
"""

import asyncio
import difflib
import hashlib
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from nip_ray.errors import TrainingError, UserError
from nip_ray.settings.providers import OpenAIProvider
from nip_ray.text.costs.budget import BudgetLike, Reservation, Throttle
from nip_ray.text.costs.prices import (
    NOTHING,
    Amount,
    BudgetExhausted,
    MeteredReply,
    Price,
    PriceList,
    Spending,
    call_cost,
    estimated_prompt_tokens,
    with_uncertain,
    worst_call_cost,
    worst_prompt_tokens,
)
from nip_ray.text.providers.interface import ChatReply, ChatRequest, Failure, FinishReason, KeyMayNot, NotThere, lost
from nip_ray.text.providers.openai.service import OpenAIService
from nip_ray.tracking import traces

FINISH_REASONS: dict[str, FinishReason] = {
    **dict.fromkeys(("length", "max_tokens", "model_length"), "length"),
    **dict.fromkeys(("content_filter", "safety", "recitation", "blocklist", "prohibited_content"), "content_filter"),
    **dict.fromkeys(("error", "abort", "insufficient_system_resource"), "unknown"),
}
"""What services say of a reply that is not whole; all other words (stop, eos, tool_calls, none at all) are taken for "stop"."""
REASONING = ("reasoning_content", "reasoning")
"""Where services put reasoning beside a message's content."""

_PLAIN_KEY = re.compile(r"[\x21-\x7e]{1,200}")


def idempotency_key(key: str) -> str:
    """`key` as a header may carry it: as it is, or hashed where it is long or not plain ASCII."""
    return key if _PLAIN_KEY.fullmatch(key) else hashlib.blake2b(key.encode(), digest_size=32).hexdigest()


@dataclass
class _Call:
    """A call on its way. worst: of one attempt. estimate: of its tokens. attempts: that failed. renamed: its limit of tokens was
    sent by its other name. uncertain: what failed attempts may have cost.
    """

    request: ChatRequest
    price: Price
    worst: Amount
    estimate: int
    attempts: int = 0
    renamed: bool = False
    uncertain: Amount = NOTHING


class OpenAIChat:
    """See `nip_ray.text.providers.interface.ChatClient`. All tasks of one event loop may use it at once."""

    def __init__(self, provider: OpenAIProvider, limiter: Throttle, budget: BudgetLike, *, max_in_flight: int = 64, seed: int = 0) -> None:
        """max_in_flight: requests at once, further ones wait. seed: of the retries' jitter.

        Raises UserError when the key or the SDK is missing.
        """
        self._provider, self._limiter, self._budget = provider, limiter, budget
        self._service = OpenAIService(provider, max_in_flight, seed)
        self.where = self._service.where
        self._slots = asyncio.Semaphore(max_in_flight)
        self._renamed: set[str] = set()
        self.prices = PriceList(provider.prices, needed=budget.in_usd)

    async def complete(self, request: ChatRequest) -> ChatReply:
        """The reply to one call; a refusal for its content is a reply with the finish reason content_filter and no content.

        Raises UserError for a key, model or request that the service does not accept, BudgetExhausted, and TrainingError when
        `max_retries` more attempts did not help.
        """
        price, prompt = self.prices.of(request.model), worst_prompt_tokens(request.messages)
        worst = Amount(worst_call_cost(price, prompt, request.max_tokens), prompt + request.max_tokens)
        call = _Call(request, price, worst, estimated_prompt_tokens(request.messages) + request.max_tokens)
        while True:
            outcome = await self._attempt(call)
            if isinstance(outcome, ChatReply):
                return outcome
            await self._react(call, outcome)

    async def check_models(self, names: Iterable[str]) -> None:
        """Raises UserError for a name that the service does not know, with those that are near; TrainingError when it does not answer.

        A service that cannot be asked is trusted.
        """
        known = _ids(await self._get("/models"))
        if known is None:
            return
        for name in dict.fromkeys(names):
            if name in known or await self._get(f"/models/{quote(name, safe='')}") is not None:
                continue
            near = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
            hint = f"; near it: {', '.join(near)}" if near else ""
            raise UserError(f"{self.where} has no model {name!r}{hint}")

    async def close(self) -> None:
        """Gives connections back."""
        await self._service.close()

    async def _attempt(self, call: _Call) -> ChatReply | Failure:
        """One request, with its money set aside before and settled after."""
        try:
            reservation = await self._budget.reserve(call.worst)
        except BudgetExhausted as error:
            raise with_uncertain(error, call.uncertain) from None
        sent = False
        try:
            async with self._slots:
                await self._limiter.acquire(call.estimate)
                sent = True
                outcome = await self._send(call.request)
        except BaseException:
            reservation.lose() if sent else reservation.release()
            raise
        return self._settle(call, reservation, outcome)

    async def _send(self, request: ChatRequest) -> Any:
        """The parsed body of a success, or a Failure."""
        options: Any = {"headers": {"Idempotency-Key": idempotency_key(request.key)}}
        sdk = self._service.sdk
        try:
            async with asyncio.timeout(self._provider.timeout_s):
                response = await sdk.post("/chat/completions", cast_to=self._service.raw, body=self._body(request), options=options)
                return json.loads(response.content)
        except self._service.errors as error:
            return self._service.failure(error, request.model)

    def _body(self, request: ChatRequest) -> dict[str, Any]:
        limit = "max_completion_tokens" if request.model in self._renamed else "max_tokens"
        body: dict[str, Any] = {"model": request.model, "messages": request.messages, limit: request.max_tokens}
        optional: dict[str, Any] = {"temperature": request.temperature, "top_p": request.top_p, "seed": request.seed}
        if request.schema is not None:
            named = {"name": "reply", "strict": True, "schema": request.schema}
            optional["response_format"] = {"type": "json_schema", "json_schema": named}
        return {**body, **{name: value for name, value in optional.items() if value is not None}, **request.extra}

    def _settle(self, call: _Call, reservation: Reservation, outcome: Any) -> ChatReply | Failure:
        """Book an attempt."""
        reply = outcome if isinstance(outcome, Failure) else _read_reply(outcome, call)
        if reply is None:
            reply = lost(f"{self.where} sent something that is not a chat completion")
        if not isinstance(reply, Failure):
            spending = Spending.of_reply(call.request.model, reply)
            if counted := reply.prompt_tokens + reply.completion_tokens:
                self._limiter.correct(call.estimate, counted)
            else:
                spending.uncertain += call.worst
            reservation.settle(spending)
            return reply
        if reply.lost:
            reservation.lose()
            call.uncertain += call.worst
        else:
            reservation.release()
        if reply.reaction == "refused":
            return MeteredReply(None, "content_filter", 0, 0, uncertain=call.uncertain)
        return reply

    async def _react(self, call: _Call, failure: Failure) -> None:
        """Get ready for the next attempt, or raise what ends the call."""
        if failure.reaction == "rename_limit" and not call.renamed:  # the model may be renamed already: others were in flight
            call.renamed = True
            self._renamed.add(call.request.model)
            return
        if failure.reaction not in ("retry", "pause"):
            raise with_uncertain(failure.error(), call.uncertain)
        if call.attempts >= self._provider.max_retries:
            message = f"a call failed {call.attempts + 1} times, last: {failure.message}; resume the run when the service is well"
            raise with_uncertain(TrainingError(message), call.uncertain)
        wait_s = self._service.wait_s(failure, call.request.key, call.attempts)
        call.attempts += 1
        if failure.reaction == "pause":
            self._limiter.pause(wait_s if failure.wait_s is None else failure.wait_s)
        traces.event("retry", nip_ray__reason=failure.message, nip_ray__wait_s=wait_s)
        await asyncio.sleep(wait_s)

    async def _get(self, path: str) -> Any:
        """The body of an answer, None where the service has no such thing. Raises UserError or TrainingError."""

        async def get() -> Any:
            async with asyncio.timeout(self._provider.timeout_s):
                return (await self._service.sdk.get(path, cast_to=self._service.raw)).content

        try:
            return json.loads(await self._service.patiently(get, path))
        except (NotThere, KeyMayNot, ValueError, RecursionError):
            return None


def _ids(body: Any) -> list[str] | None:
    """The names in a list of models, None when it is none."""
    rows = body.get("data") if isinstance(body, dict) else None
    if not isinstance(rows, list):
        return None
    return [row["id"] for row in rows if isinstance(row, dict) and isinstance(row.get("id"), str)]


def _read_reply(body: Any, call: _Call) -> MeteredReply | None:
    """The reply in a body, None when it is no chat completion."""
    try:
        choice = body["choices"][0]
        content, thought = _texts(choice["message"].get("content"))
        finish = choice.get("finish_reason")
    except (KeyError, IndexError, TypeError, AttributeError):
        return None
    prompt, completion, cached, reasoning = _usage(body.get("usage"), bool(content))
    return MeteredReply(
        content,
        FINISH_REASONS.get(str(finish).lower(), "stop"),
        prompt,
        completion,
        call_cost(call.price, prompt, completion, cached),
        next((text for text in map(choice["message"].get, REASONING) if isinstance(text, str)), thought),
        cached,
        reasoning,
        *(str(told)[:200] if (told := body.get(name)) else None for name in ("model", "system_fingerprint")),
        uncertain=call.uncertain if prompt + completion else call.uncertain + call.worst,
    )


def _texts(content: Any) -> tuple[str | None, str]:
    """Text and reasoning of a content, which some services send in parts. Raises KeyError or TypeError where it is neither."""
    if content is None or isinstance(content, str):
        return content, ""
    said = "".join(part["text"] for part in content if part["type"] == "text")
    thoughts = [_texts(part["thinking"])[0] or "" for part in content if part["type"] == "thinking"]
    return said, "\n".join(thoughts)


def _usage(usage: Any, has_text: bool) -> tuple[int, int, int, int]:
    """Tokens of prompt and completion, and how many of them were cached and of reasoning; only zeros where they are not told.

    Services that count reasoning apart from the completion add it in the total alone. has_text: so that no tokens cannot be the count.
    """
    prompt, completion, total = (_count(usage, name) for name in ("prompt_tokens", "completion_tokens", "total_tokens"))
    if prompt is None or completion is None:
        return 0, 0, 0, 0
    completion = max(completion, (total or 0) - prompt)
    if has_text and not completion:
        return 0, 0, 0, 0
    cached = _count(usage, "prompt_tokens_details", "cached_tokens") or _count(usage, "prompt_cache_hit_tokens") or 0
    reasoning = _count(usage, "completion_tokens_details", "reasoning_tokens") or _count(usage, "reasoning_tokens") or 0
    return prompt, completion, min(cached, prompt), min(reasoning, completion)


def _count(found: Any, *names: str) -> int | None:
    """The count at this place, None where there is none."""
    for name in names:
        found = found.get(name) if isinstance(found, dict) else None
    return found if type(found) is int and found >= 0 else None
