"""The provider `openai`: any service that speaks the OpenAI protocol. Its chat client, over the unmodified `openai` SDK, and its jobs.

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
import warnings
from collections import defaultdict
from collections.abc import AsyncIterable, Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import quote

from nip_ray.errors import TrainingError, UserError
from nip_ray.serving.fine_tuning_job import FineTuneJob, FineTuneSpec, JobStatus, Method
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
from nip_ray.text.jobs import Busy
from nip_ray.text.providers.interface import FIRST_WAIT_S, MAX_WAIT_S, ChatReply, ChatRequest, FinishReason, InDoubt, Provider, file_name
from nip_ray.text.providers.openai_service import Failure, KeyMayNot, NotThere, OpenAIService, Refused, lost
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
        price = self.prices.of(request.model)
        worst = worst_case(price, request.messages, request.max_tokens)
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
        if reply.reaction == "refused":
            return ChatReply(None, "content_filter", 0, 0, uncertain=call.uncertain)
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


def _read_reply(body: Any, call: _Call) -> ChatReply | None:
    """The reply in a body, None when it is no chat completion."""
    try:
        choice = body["choices"][0]
        content, thought = _texts(choice["message"].get("content"))
        finish = choice.get("finish_reason")
    except (KeyError, IndexError, TypeError, AttributeError):
        return None
    prompt, completion, cached, reasoning = _usage(body.get("usage"), bool(content))
    return ChatReply(
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


# ---------------------------------------------------------------------------------------------------------------------
# `OpenAIJobs`: fine-tuning jobs of any service that speaks the OpenAI protocol.
#
# - what may be repeated is repeated (`OpenAIService.patiently`), creations never: that may make, and charge for, two jobs;
# - a job carries its key twice: as metadata, by which it is listed, and at the end of its suffix, for services that drop metadata. The
#   answer to a listing is filtered here as well, since some services ignore the filter;
# - a file is named by the SHA-256 of its content, so that the same content is found instead of uploaded again;
# - an answer 4xx to a creation means that nothing was made; no answer, or 5xx, that nobody knows.

T = TypeVar("T")

_KEY = "nip_key"  # in a job's metadata
_MARK = 16  # digits of the key at the end of a suffix
_NO_FILE = "file-that-does-not-exist"
_FOR_THE_METHOD = re.compile(r"\b(?:method|dpo|preference)", re.IGNORECASE)
_STATUS: dict[str, JobStatus] = {
    "validating_files": "pending",
    "queued": "pending",
    "pending": "pending",
    "created": "pending",
    "started": "pending",
    "notrunning": "pending",
    "validating": "pending",
    "validated": "pending",
    "running": "running",
    "paused": "running",
    "succeeded": "succeeded",
    "completed": "succeeded",
    "success": "succeeded",
    "failed": "failed",
    "failed_validation": "failed",
    "error": "failed",
    "user_error": "failed",
    "expired": "failed",
    "cancelled": "cancelled",
    "canceled": "cancelled",
}
_STOPPING = ("cancelling", "canceling", "cancel_requested", "cancellation_requested", "pausing", "resuming")
"""Status of jobs that run."""


class OpenAIJobs:
    """A `FineTuneBackend` over the `openai` SDK; one for each event loop.

    first_wait_s: see `OpenAIService`. Raises UserError when the extra or the key is missing.
    """

    methods = frozenset({"supervised", "dpo"})

    def __init__(self, provider: OpenAIProvider, first_wait_s: float = FIRST_WAIT_S) -> None:
        self.poll_interval_s, self.doubt_s = provider.poll_interval_s, provider.doubt_s
        self._provider = provider
        self._service = OpenAIService(provider, first_wait_s=first_wait_s)
        self._client, self._where = self._service.sdk, self._service.where
        self._uploading: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def check(self, model: str, method: Method) -> None:
        """See `FineTuneBackend`. A service that looks at a job's file before its method tells only later, when the first job is asked for,
        that it refuses the method; nothing is charged for that job.
        """
        if not self._provider.fine_tuning:
            raise UserError("providers: this one has `fine_tuning: false`; freeze its agents, or give them another provider")
        if method not in self.methods:
            raise UserError(f"this provider fine-tunes by {' and '.join(sorted(self.methods))} (got {method!r})")
        await self._check_model(model)
        try:
            await self._patiently(lambda: self._client.get("/fine_tuning/jobs?limit=1", cast_to=object))
        except NotThere:
            raise UserError(
                f"{self._where} has no fine-tuning jobs; set `fine_tuning: false` for it and freeze its agents, "
                "or let them be spoken for by a provider that has, such as `local`"
            ) from None
        if method != "supervised":  # which every service has
            await self._probe(model, method)

    async def _probe(self, model: str, method: Method) -> None:
        """Ask for a job on a file that does not exist. No job can come of it, but the refusal may say that it is for the method."""
        jobs, asked = self._client.fine_tuning.jobs, {"type": method}
        try:
            job = await self._patiently(
                lambda: jobs.create(model=model, training_file=_NO_FILE, method=asked)  # pyright: ignore[reportArgumentType]
            )
        except Refused as error:
            if _FOR_THE_METHOD.search(str(error)):
                raise UserError(f"{error}; {method} is not to be had for {model!r} there, choose another provider or algorithm") from None
            return
        await self.cancel(job.id)  # a service that looks at files later

    async def upload(self, name: str, data: bytes) -> str:
        """See `FineTuneBackend`. `name` is what people call the content; at the service it is named by its hash (`file_name`)."""
        del name
        async with self._uploading[file_name(data)]:
            file_id = await self._find_file(data)
            for attempt in range(self._provider.max_retries + 1):
                file_id = file_id or await self._upload_once(data, attempt)
                if file_id is not None:
                    return file_id
                file_id = await self._find_file(data, within_s=self.doubt_s)
        raise TrainingError(f"{self._where} takes no files; when it works again, resume the run")

    async def find(self, key: str) -> list[FineTuneJob]:
        """See `FineTuneBackend`. Where the filter finds nothing all jobs are looked through: the service may not keep metadata."""
        mine = await self._list(key, metadata={_KEY: key}) or await self._list(key)
        mine.sort(key=lambda job: (getattr(job, "created_at", None) or 0, job.id))
        return [_as_job(job, key) for job in mine]

    async def submit(self, spec: FineTuneSpec, file_id: str) -> FineTuneJob:
        """See `FineTuneBackend`. Raises Busy when the service asks to come back later, UserError when it refuses."""
        job: Any = None
        refusal: Exception | None = None
        try:
            job = await self._client.fine_tuning.jobs.create(
                model=spec.model,
                training_file=file_id,
                method=method_of(spec),  # pyright: ignore[reportArgumentType]
                suffix=f"{spec.suffix}-{spec.key[:_MARK]}",
                seed=spec.seed % 2**31,
                metadata={_KEY: spec.key},
                extra_headers={"Idempotency-Key": spec.key},
            )
        except self._service.errors as error:
            refusal = self._refused(self._service.failure(error), spec)
        if refusal is not None:
            raise refusal
        if not getattr(job, "id", None):
            raise InDoubt("the answer to a creation names no job")
        return _as_job(job, spec.key)

    async def poll(self, job_id: str) -> FineTuneJob:
        """See `FineTuneBackend`."""
        try:
            job = await self._patiently(lambda: self._client.fine_tuning.jobs.retrieve(job_id))
        except NotThere:
            raise TrainingError(f"{self._where} knows no fine-tuning job {job_id} any more") from None
        return _as_job(job)

    async def cancel(self, job_id: str) -> FineTuneJob:
        """See `FineTuneBackend`."""
        try:
            job = await self._patiently(lambda: self._client.fine_tuning.jobs.cancel(job_id))
        except Refused:  # over already
            return await self.poll(job_id)
        return _as_job(job)

    async def close(self) -> None:
        """See `FineTuneBackend`."""
        await self._service.close()

    async def _list(self, key: str, **filters: Any) -> list[Any]:
        try:
            jobs = await self._patiently(lambda: _all(self._client.fine_tuning.jobs.list(limit=100, **filters)))
        except Refused:
            if not filters:
                raise
            return []  # a service that does not know the filter
        return [job for job in jobs if _has_key(job, key)]

    async def _check_model(self, model: str) -> None:
        try:
            await self._patiently(lambda: self._client.models.retrieve(model))
        except NotThere:
            names = [entry.id for entry in await self._patiently(lambda: _all(self._client.models.list()))]
            if model not in names:
                some = ", ".join(sorted(names)[:5]) or "none"
                raise UserError(f"{self._where} has no model {model!r} (it has {some}{', ...' if names[5:] else ''})") from None

    async def _find_file(self, data: bytes, within_s: float = 0.0) -> str | None:
        """The id of a file with this content; asks again and again until `within_s` have passed."""
        for share in (0.0, 0.1, 0.3, 0.6) if within_s else (0.0,):
            await asyncio.sleep(share * within_s)
            for file in await self._patiently(lambda: _all(self._client.files.list(purpose="fine-tune"))):
                is_same = file.filename == file_name(data) and getattr(file, "bytes", len(data)) == len(data)
                if is_same and getattr(file, "status", None) != "error":
                    return file.id
        return None

    async def _upload_once(self, data: bytes, attempt: int) -> str | None:
        """The id of the file made; None in doubt, after the wait for the next attempt."""
        try:
            return (await self._client.files.create(file=(file_name(data), data), purpose="fine-tune")).id
        except self._service.errors as error:
            failure = self._service.failure(error)
        if failure.reaction not in ("retry", "pause"):
            raise failure.error()
        await asyncio.sleep(self._service.wait_s(failure, file_name(data), attempt))
        return None

    async def _patiently(self, call: Callable[[], Awaitable[T]]) -> T:
        return await self._service.patiently(call, "jobs")

    def _refused(self, failure: Failure, spec: FineTuneSpec) -> Exception:
        """What an error in answer to a creation means."""
        status = failure.status
        if status is None or status in (408, 409, 425) or status >= 500:
            return InDoubt(failure.message)
        if status == 429 and (failure.reaction == "pause" or failure.wait_s is not None):
            return Busy(failure.message, None if failure.wait_s is None else min(failure.wait_s, MAX_WAIT_S))
        if status in (400, 404, 405, 422):
            return UserError(f"{spec.model!r} is not fine-tuned by {spec.method}, nothing was charged: {failure.message}")
        return UserError(failure.message)


def method_of(spec: FineTuneSpec) -> dict[str, Any]:
    """The `method` of a creation; what is None is left to the service. What `tuning_keys` names has no place in this protocol."""
    chosen = {
        "n_epochs": spec.num_epochs,
        "batch_size": spec.batch_size,
        "learning_rate_multiplier": spec.learning_rate_multiplier,
        "beta": spec.beta if spec.method == "dpo" else None,
    }
    return {"type": spec.method, spec.method: {"hyperparameters": {name: value for name, value in chosen.items() if value is not None}}}


async def _all(pages: AsyncIterable[Any]) -> list[Any]:
    """Everything that is listed, of all pages; a service that ignores the cursor sends the first page for ever."""
    found: dict[str, Any] = {}
    async for entry in pages:
        if entry.id in found:
            break
        found[entry.id] = entry
    return list(found.values())


def _has_key(job: Any, key: str) -> bool:
    metadata = getattr(job, "metadata", None) or {}
    if _KEY in metadata:
        return metadata[_KEY] == key
    suffix = getattr(job, "user_provided_suffix", None) or getattr(job, "suffix", None) or ""
    return suffix.endswith(key[:_MARK])


def _as_job(job: Any, key: str = "") -> FineTuneJob:
    """A model that has no name, and tokens that are no positive count, are none."""
    error, word = getattr(job, "error", None), str(getattr(job, "status", None))
    is_known = word.lower() in (*_STATUS, *_STOPPING)
    if not is_known:
        warnings.warn(f"fine-tuning job {job.id} is {word!r}, which is no status that is known here; it is waited for", stacklevel=2)
    model, tokens = getattr(job, "fine_tuned_model", None), getattr(job, "trained_tokens", None)
    return FineTuneJob(
        id=job.id,
        key=key or (getattr(job, "metadata", None) or {}).get(_KEY, ""),
        status=_STATUS.get(word.lower(), "running"),
        model=model if isinstance(model, str) and model else None,
        trained_tokens=tokens if type(tokens) is int and tokens > 0 else None,
        error=getattr(error, "message", None) or getattr(error, "code", None),
        unknown=None if is_known else word,
    )


PROVIDER = Provider(
    chat=lambda given: OpenAIChat(given.settings, given.throttle, given.budget, max_in_flight=given.max_in_flight, seed=given.seed),
    fine_tuning=lambda given: OpenAIJobs(given.settings),
    books_itself=True,
)
