"""The provider `openai`: any service with the OpenAI protocol. Its chat client, over the unmodified `openai` SDK.

Decisions that matter here:
- one attempt per SDK call; retries are made here, within the budget, the rate limits and one idempotency key per call;
- the SDK's own `post` is used, with its aiohttp transport, instead of its typed methods: a third of the processor time.
  Responses are checked here;
- an attempt has a total time limit. One without a readable answer may have been billed: its worst case is booked as
  uncertain and set aside again before the next attempt. So is that of a reply without a count of tokens;
- services have their own words for why a reply ended. A reply with an unknown word is not used, with one warning;
- a call refused for its content or length is an unusable reply and does not end the run: the next call may be answered.
  If the service's words leave the cause open, the same call is made with other content: if that is answered, the
  content was refused. Only calls refused with any content are the user's mistake.
"""

import asyncio
import difflib
import hashlib
import json
import re
import warnings
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import quote

from nip_ray.errors import TrainingError, UserError
from nip_ray.settings.providers import OpenAIProvider
from nip_ray.text.costs.budget import BudgetLike, Reservation, Throttle
from nip_ray.text.costs.prices import (
    NOTHING,
    Amount,
    BudgetExhausted,
    Price,
    PriceList,
    call_cost,
    estimated_prompt_tokens,
    with_uncertain,
    worst_case,
)
from nip_ray.text.providers.interface import ChatReply, ChatRequest, FinishReason, Provider
from nip_ray.text.providers.openai_jobs import OpenAIJobs
from nip_ray.text.providers.openai_service import (
    MAY_BE_THE_CONTENT,
    Failure,
    KeyMayNot,
    NotThere,
    OpenAIService,
    Refused,
)
from nip_ray.tracking import traces

FINISH_REASONS: dict[str, FinishReason] = {
    **dict.fromkeys(
        ("stop", "none", "", "eos", "eos_token", "stop_sequence", "end_turn", "end", "complete", "completed"), "stop"
    ),
    **dict.fromkeys(("finished", "tool_calls", "tool_use", "function_call"), "stop"),
    **dict.fromkeys(("length", "max_tokens", "max_output_tokens", "token_limit", "model_length"), "length"),
    **dict.fromkeys(
        ("content_filter", "safety", "recitation", "blocklist", "prohibited_content", "spii"), "content_filter"
    ),
    **dict.fromkeys(("refusal", "sensitive", "guardrail_intervened", "content_filtered"), "content_filter"),
    **dict.fromkeys(("error", "abort", "other", "network_error", "insufficient_system_resource"), "unknown"),
}
"""Words of services for the end of a reply; any other counts as "unknown", and such a reply is not used."""
REASONING = ("reasoning_content", "reasoning")
"""Keys of reasoning beside a message's content."""

_OTHER_WORDS = "Hello"
"""Replaces all messages in `_is_refused_for_words`."""
_NOT_YET = 5
"""Retries of a call whose model the service does not know: a new fine-tuned model takes time to appear everywhere."""
_TRIED_TOKENS = 16
_CAN_BE_LEFT_OUT = ("seed", "temperature", "top_p", "response_format", "reasoning_effort")

_PLAIN_KEY = re.compile(r"[\x21-\x7e]{1,200}")


def idempotency_key(key: str) -> str:
    """`key` as a header may carry it: as it is, or hashed where it is long or not plain ASCII."""
    return key if _PLAIN_KEY.fullmatch(key) else hashlib.blake2b(key.encode(), digest_size=32).hexdigest()


@dataclass
class _Call:
    """A call in flight. worst: of one attempt. estimate: of its tokens. attempts: failed ones. renamed: its token limit
    was sent under its other name. uncertain: possible cost of failed attempts. is_new: see `OpenAIChat.complete`."""

    request: ChatRequest
    price: Price
    worst: Amount
    estimate: int
    attempts: int = 0
    renamed: bool = False
    uncertain: Amount = NOTHING
    is_new: bool = True


class OpenAIChat:
    """See `nip_ray.text.providers.interface.ChatClient`. For all tasks of one event loop."""

    def __init__(
        self, provider: OpenAIProvider, limiter: Throttle, budget: BudgetLike, *, max_in_flight: int = 64, seed: int = 0
    ) -> None:
        """max_in_flight: concurrent requests; further ones wait. seed: of the retries' jitter.

        Raises UserError when the key or the SDK is missing.
        """
        self._provider, self._limiter, self._budget = provider, limiter, budget
        self._service = OpenAIService(provider, max_in_flight, seed)
        self.where = self._service.where
        self._slots = asyncio.Semaphore(max_in_flight)
        self._renamed: set[str] = set()
        self._answered: set[tuple[str, str, int]] = set()
        self._warned: set[str] = set()
        self.prices = PriceList(provider.prices, needed=budget.in_usd)

    async def complete(self, request: ChatRequest, is_new: bool = True) -> ChatReply:
        """The reply to one call; one refused for its content has the finish reason `refused` and no content.

        is_new: the service may have just made the model and not know it everywhere. Raises UserError for a key, model
        or request that the service does not accept, BudgetExhausted, and TrainingError after `max_retries` retries.
        """
        price = self.prices.of(request.model)
        worst = worst_case(price, request.messages, request.max_tokens)
        call = _Call(
            request, price, worst, estimated_prompt_tokens(request.messages) + request.max_tokens, is_new=is_new
        )
        while True:
            outcome = self._settle(call, *await self._paid(call, request, call.worst))
            if isinstance(outcome, ChatReply):
                self._answered.add(_form(request))
                return outcome
            if await self._is_refused_for_words(call, outcome):
                who = request.agent or request.model
                self._warn(
                    f"{outcome.message}; this call of {who} counts as a reply that cannot be used",
                    f"{who} {outcome.reaction}",
                )
                return ChatReply(None, "refused", 0, 0, uncertain=call.uncertain, refusal=outcome.message)
            await self._react(call, outcome)

    async def check_models(self, names: Iterable[str]) -> None:
        """Raise UserError for a name unknown to the service, with similar ones; TrainingError if it does not answer.

        Lists may be incomplete: an unlisted name is tried by one call of a few tokens, with a warning if that is
        answered.
        """
        known = await self._listed()
        if known is None:
            return
        for name in dict.fromkeys(names):
            if name in known or await self._is_listed(name):
                continue
            near = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
            hint = f"; near it: {', '.join(near)}" if near else ""
            request = ChatRequest(f"check {name}", name, [{"role": "user", "content": _OTHER_WORDS}], _TRIED_TOKENS)
            said = None
            try:
                await self.complete(request, is_new=False)
            except Refused as error:
                said = str(error)
            if said is not None:  # raised here, without the failed call as its context
                raise UserError(
                    f"{self.where} does not list the model {name!r}, and refuses a call to it: {said}{hint}"
                )
            self._warn(
                f"{self.where} does not list the model {name!r}, but answers a call to it; the run continues", name
            )

    async def _listed(self) -> list[str] | None:
        """The models that the service lists, [] if the list cannot be read; None if it has none."""
        try:
            body = await self._get("/models")
        except (Refused, TrainingError):
            return []
        rows = body.get("data") if isinstance(body, dict) else None
        if not isinstance(rows, list):
            return None
        return [row["id"] for row in rows if isinstance(row, dict) and isinstance(row.get("id"), str)]

    async def _is_listed(self, name: str) -> bool:
        try:
            return await self._get(f"/models/{quote(name, safe='')}") is not None
        except (Refused, TrainingError):
            return False

    async def close(self) -> None:
        """Close connections."""
        await self._service.close()

    async def _paid(self, call: _Call, request: ChatRequest, worst: Amount) -> tuple[Reservation, Any]:
        """(the reservation for a request on behalf of `call`, the parsed body of a success or a Failure)."""
        try:
            reservation = await self._budget.reserve(worst)
        except BudgetExhausted as error:
            raise with_uncertain(error, call.uncertain) from None
        sent = False
        try:
            async with self._slots:
                await self._limiter.acquire(estimated_prompt_tokens(request.messages) + request.max_tokens)
                sent = True
                return reservation, await self._send(request)
        except BaseException:
            reservation.lose() if sent else reservation.release()
            raise

    async def _send(self, request: ChatRequest) -> Any:
        """The parsed body of a success, or a Failure."""
        try:
            options: Any = {"headers": {"Idempotency-Key": idempotency_key(request.key)}}
            async with asyncio.timeout(self._provider.timeout_s):
                body = self._body(request)
                response = await self._service.sdk.post(
                    "/chat/completions", cast_to=self._service.raw, body=body, options=options
                )
                return json.loads(response.content)
        except self._service.errors as error:
            return self._service.failure(error, request.model)
        except UnicodeEncodeError:
            return Failure(
                "user",
                f"a message of {request.agent or 'the chat'} holds half of a surrogate pair, which no request can hold",
            )

    async def _is_refused_for_words(self, call: _Call, failure: Failure) -> bool:
        """True if the call was refused for its content, so others may be answered. This check's cost is uncertain."""
        if failure.reaction in ("refused", "too_long") and (
            failure.reaction == "refused" or _form(call.request) in self._answered
        ):
            return True
        if failure.reaction not in ("user", "too_long") or failure.status not in MAY_BE_THE_CONTENT:
            return False
        messages = [{**message, "content": _OTHER_WORDS} for message in call.request.messages]
        if not messages or messages == list(call.request.messages):
            return False
        asked = replace(call.request, key=f"{call.request.key}/other words", messages=messages)
        worst = worst_case(call.price, messages, asked.max_tokens)
        for attempt in range(self._provider.max_retries + 1):
            reservation, found = await self._paid(call, asked, worst)
            is_free = isinstance(found, Failure) and not found.lost
            reservation.release() if is_free else reservation.lose()
            call.uncertain += NOTHING if is_free else worst
            outcome = self._read(call, found)
            if not isinstance(outcome, Failure):
                self._answered.add(_form(asked))
                return True
            if outcome.reaction not in ("retry", "pause"):
                break
            await asyncio.sleep(self._service.wait_s(outcome, asked.key, attempt))
        return False

    def _read(self, call: _Call, outcome: Any) -> ChatReply | Failure:
        """The reply in the parsed body of a success."""
        if isinstance(outcome, Failure):
            return outcome
        return _read_reply(outcome, call) or self._service.in_answer(outcome, call.request.model)

    def _warn(self, message: str, about: str) -> None:
        """Warn once per subject."""
        if about not in self._warned:
            self._warned.add(about)
            warnings.warn(message, stacklevel=3)

    def _body(self, request: ChatRequest) -> dict[str, Any]:
        limit = "max_completion_tokens" if request.model in self._renamed else "max_tokens"
        body: dict[str, Any] = {"model": request.model, "messages": request.messages, limit: request.max_tokens}
        optional: dict[str, Any] = {"temperature": request.temperature, "top_p": request.top_p, "seed": request.seed}
        if request.schema is not None:
            named = {"name": "reply", "strict": True, "schema": request.schema}
            optional["response_format"] = {"type": "json_schema", "json_schema": named}
        return {name: value for name, value in {**body, **optional, **request.extra}.items() if value is not None}

    def _settle(self, call: _Call, reservation: Reservation, outcome: Any) -> ChatReply | Failure:
        """Book an attempt."""
        reply = self._read(call, outcome)
        if not isinstance(reply, Failure):
            answer: Any = outcome
            word = str(answer["choices"][0].get("finish_reason"))
            if word.lower() not in FINISH_REASONS:
                told = (
                    f"{self.where} gives a finish reason that is not known here, {word[:40]!r}; such replies are not"
                    " used"
                )
                self._warn(told, f"finish {word}")
            spending = reply.spending(call.request.model)
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
        return reply

    async def _react(self, call: _Call, failure: Failure) -> None:
        """Prepare the next attempt, or raise the error that ends the call."""
        # the limit may be renamed already: others were in flight
        if failure.reaction == "rename_limit" and not call.renamed:
            call.renamed = True
            self._renamed.add(call.request.model)
            return
        may_come = (
            failure.reaction == "not_yet" and call.is_new and call.attempts < min(_NOT_YET, self._provider.max_retries)
        )
        if failure.reaction not in ("retry", "pause") and not may_come:
            # If the service names members of the request that can be left out, say how.
            body = self._body(call.request)
            named = [name for name in _CAN_BE_LEFT_OUT if name in body and re.search(rf"\b{name}\b", failure.said)]
            if failure.status in (400, 422) and named:
                members = ", ".join(f'"{name}": null' for name in named)
                failure = replace(
                    failure, message=f"{failure.message}; extra_body: '{{{members}}}' leaves it out of requests"
                )
            raise with_uncertain(failure.error(), call.uncertain)
        if call.attempts >= self._provider.max_retries:
            message = (
                f"a call failed {call.attempts + 1} times, last: {failure.message}; resume the run when the service is"
                " well"
            )
            raise with_uncertain(TrainingError(message), call.uncertain)
        wait_s = self._service.wait_s(failure, call.request.key, call.attempts)
        call.attempts += 1
        if failure.reaction == "pause":
            self._limiter.pause(wait_s if failure.wait_s is None else failure.wait_s)
        traces.event("retry", nip_ray__reason=failure.message, nip_ray__wait_s=wait_s)
        await asyncio.sleep(wait_s)

    async def _get(self, path: str) -> Any:
        """The body of an answer, None if the service has no such endpoint. Raises UserError or TrainingError."""

        async def get() -> Any:
            async with asyncio.timeout(self._provider.timeout_s):
                return (await self._service.sdk.get(path, cast_to=self._service.raw)).content

        try:
            return json.loads(await self._service.patiently(get, path, max_retries=2))
        except (NotThere, KeyMayNot, ValueError, RecursionError):
            return None


def _form(request: ChatRequest) -> tuple[str, str, int]:
    """Equal for calls with the same settings."""
    return request.model, request.agent, request.max_tokens


def _read_reply(body: Any, call: _Call) -> ChatReply | None:
    """The reply in a body, None if it is not a chat completion."""
    try:
        choice = body["choices"][0]
        content, thought = _texts(choice["message"].get("content"))
        finish = choice.get("finish_reason")
    except (KeyError, IndexError, TypeError, AttributeError):
        return None
    prompt, completion, cached, reasoning = _usage(body.get("usage"), bool(content))
    return ChatReply(
        content,
        FINISH_REASONS.get(str(finish).lower(), "unknown"),
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
    """Text and reasoning of a content, which some services send in parts. Raises KeyError or TypeError otherwise."""
    if content is None or isinstance(content, str):
        return content, ""
    said = "".join(part["text"] for part in content if part["type"] == "text")
    thoughts = [_texts(part["thinking"])[0] or "" for part in content if part["type"] == "thinking"]
    return said, "\n".join(thoughts)


def _usage(usage: Any, has_text: bool) -> tuple[int, int, int, int]:
    """Tokens of prompt and completion, and their cached and reasoning parts; zeros if not reported.

    Services that count reasoning apart from the completion add it only to the total. has_text: then a count of zero is
    invalid.
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
    """The count at this place, None if there is none."""
    for name in names:
        found = found.get(name) if isinstance(found, dict) else None
    return found if type(found) is int and found >= 0 else None


PROVIDER = Provider(
    chat=lambda given: OpenAIChat(
        given.settings, given.throttle, given.budget, max_in_flight=given.max_in_flight, seed=given.seed
    ),
    fine_tuning=lambda given: OpenAIJobs(given.settings),
    books_itself=True,
)
