"""A check that a provider meets the requirements of runs, in one call.

Decisions that matter here:

- It makes real requests: a few short replies and, if it fine-tunes, one job of one example for an epoch. With a service
  that costs fractions of a cent; the budget of the check is 200,000 tokens.
- It checks what runs rely on: replies that are counted and within the limit, independent calls, errors of our two
  kinds, budgets, and jobs that are found by key, also by another process, so that none is made twice.
- The faults of the first stage that has any are listed; later ones would only repeat them.
"""

import asyncio
import hashlib
import os
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

from nip_ray.errors import TrainingError, UserError
from nip_ray.serving.fine_tuning_job import FINAL, FineTuneSpec, Method
from nip_ray.settings.providers import BudgetSettings, ProviderSettings
from nip_ray.text.costs.budget import Budget
from nip_ray.text.costs.prices import NOTHING, BudgetExhausted
from nip_ray.text.providers.interface import (
    ChatReply,
    ChatRequest,
    Connection,
    FinishReason,
    chat_client,
    encode,
    fine_tune_backend,
    provider_of,
    supervised_line,
)

_CHAT = [{"role": "system", "content": "Answer in JSON."}, {"role": "user", "content": "Is 7 a prime number?"}]
_MAX_TOKENS, _AT_ONCE, _TOKENS = 32, 4, 200_000
_ANSWERS = ('{"prime":"yes"}', '{"prime":"no"}')
_SCHEMA = {
    "type": "object",
    "properties": {"prime": {"enum": ["yes", "no"]}},
    "required": ["prime"],
    "additionalProperties": False,
}
_REASONS, _METHODS = get_args(FinishReason), get_args(Method)


def check_provider(settings: ProviderSettings, model: str = "default", *, max_wait_s: float = 600.0) -> None:
    """Raise one UserError that lists the faults of the provider with these settings, if any.

    model: queried, and fine-tuned if the provider fine-tunes. max_wait_s: for the job. The provider's own errors (a
    missing key, an unknown model) pass through. Do not call it inside an event loop; Ray must be running for a provider
    with actors.
    """
    kind = provider_of(settings)
    with tempfile.TemporaryDirectory() as folder:
        host = None if kind.start is None else kind.start(settings, Path(folder) / "checked")
        connection = Connection(settings, "checked", Path(folder), host)
        stages = [_chat_faults(connection, model)] if settings.has_model else []
        stages += [_job_faults(connection, model, max_wait_s)] if settings.can_fine_tune else []
        try:
            for stage in [*stages, _key_faults(connection)]:
                if faults := asyncio.run(_listed(stage)):
                    raise UserError(
                        f"provider {getattr(settings, 'name', type(settings).__name__)!r}: " + "; ".join(faults)
                    )
        finally:
            if kind.stop is not None:
                kind.stop(host)


async def _chat_faults(connection: Connection, model: str) -> AsyncIterator[str]:
    """Replies, counts, limits, money."""
    budget, one_token = Budget(BudgetSettings(tokens=_TOKENS)), Budget(BudgetSettings(tokens=1))
    request = ChatRequest("check/0", model, _CHAT, _MAX_TOKENS, temperature=0.0, seed=1, agent="verifier")
    async with _opened(provider_of(connection.settings).chat, connection, budget) as bare:
        if fault := _reply_fault(await bare.complete(request), request):
            yield fault
            return
    async with _opened(chat_client, connection, budget) as client:
        replies = await asyncio.gather(*(client.complete(replace(request, key=f"check/{n}")) for n in range(_AT_ONCE)))
        faults = [fault for reply in replies if (fault := _reply_fault(reply, request))]
        if not faults and budget.spending.at_most.tokens < sum(
            reply.prompt_tokens + reply.completion_tokens for reply in replies
        ):
            faults.append("the tokens of its replies are not booked in the budget")
        asked = [replace(request, key="check/short", max_tokens=1)]
        asked += (
            [replace(request, key="check/json", max_tokens=64, schema=_SCHEMA)]
            if connection.settings.holds_schemas
            else []
        )
        for fault in filter(None, [*faults, *[_reply_fault(await client.complete(one), one) for one in asked]]):
            yield fault
        cancelled = asyncio.ensure_future(client.complete(replace(request, key="check/cancelled", max_tokens=256)))
        await asyncio.sleep(0)
        cancelled.cancel()
        await asyncio.gather(cancelled, return_exceptions=True)
        if budget.reserved != NOTHING:
            yield "money stays reserved when its calls are over"
    async with _opened(chat_client, connection, one_token) as client:
        if (
            not isinstance(await _raised(client.complete(request)), BudgetExhausted)
            or one_token.spending.amount != NOTHING
        ):
            yield "a call was made that the budget had no room for"
    async with _opened(chat_client, connection, Budget()) as client:
        raised = await _raised(client.complete(replace(request, key="check/no-model", model="no-such-model-of-anyone")))
        if raised is not None and not isinstance(raised, UserError | TrainingError):
            yield f"an unknown model raised {type(raised).__name__}; raise UserError or TrainingError"


async def _job_faults(connection: Connection, model: str, max_wait_s: float) -> AsyncIterator[str]:
    """One job, from its file to its model."""
    unmade, refuses_unknown = (
        "`find` does not find the one job with a key, so that it would be made twice",
        "no-such-method",
    )
    async with _opened(fine_tune_backend, connection) as backend:
        if not backend.methods or not backend.methods <= {*_METHODS}:
            yield f"`methods` must be some of {', '.join(sorted(_METHODS))}"
            return
        for name in ("poll_interval_s", "doubt_s"):
            if not (isinstance(value := getattr(backend, name, None), int | float) and value >= 0):
                yield f"`{name}` must be a number of seconds"
                return
        await backend.check(model, "supervised")
        if not isinstance(await _raised(backend.check(model, refuses_unknown)), UserError):
            yield "`check` must raise UserError for a method that it does not have"
        data = encode([supervised_line(_CHAT, '{"prime": "yes"}')])
        file_id = await backend.upload("check", data)
        if await backend.upload("check again", data) != file_id:
            yield "the same content uploaded twice has two ids"
        key = hashlib.sha256(os.urandom(16)).hexdigest()  # fresh: the provider may keep jobs of earlier checks
        if await backend.find(key):
            yield "`find` finds a job that was never made"
        job = await backend.submit(
            FineTuneSpec(key, "supervised", model, "check", 1, len(data), num_epochs=1, batch_size=1), file_id
        )
        only = [(job.id, job.key)]
        if [(one.id, one.key) for one in await backend.find(key)] != only:
            yield unmade
    async with _opened(fine_tune_backend, connection) as backend:
        if [(one.id, one.key) for one in await backend.find(key)] != only:
            yield f"by another client, as after a crash, {unmade}"
            return
        try:
            async with asyncio.timeout(max_wait_s):
                while job.status not in FINAL:
                    await asyncio.sleep(backend.poll_interval_s)
                    job = await backend.poll(job.id)
        except TimeoutError:
            raise TrainingError(
                f"the job {job.id} is not over after {max_wait_s:g} s ({job.status}); raise max_wait_s"
            ) from None
        tokens = job.trained_tokens
        if job.status != "succeeded" or not job.model:
            yield f"the job ended as {job.status!r} with the model {job.model!r} ({job.error})"
        elif tokens is not None and not (type(tokens) is int and tokens >= 0):
            yield f"trained_tokens must be an integer, not negative, or None (got {tokens!r})"
        elif (await backend.cancel(job.id)).status != "succeeded":
            yield "`cancel` changes a job that is over"
        elif connection.settings.has_model:
            async with _opened(chat_client, connection, Budget()) as client:
                request = ChatRequest("check/new", str(job.model), _CHAT, _MAX_TOKENS)
                if fault := _reply_fault(await client.complete(request), request):
                    yield fault


async def _key_faults(connection: Connection) -> AsyncIterator[str]:
    """Without its key nothing is created, and the message names the variable."""
    variable = getattr(connection.settings, "api_key_variable", None)
    if variable is None:
        return
    kept = os.environ.pop(variable, None)
    try:
        for make in (chat_client, fine_tune_backend) if connection.settings.can_fine_tune else (chat_client,):
            try:
                await make(connection).close()
                yield f"without ${variable} a client is made all the same; read it with nip_ray.secrets.secret"
            except UserError as error:
                if variable not in str(error):
                    yield f"the error for a missing key does not name {variable}"
    finally:
        if kept is not None:
            os.environ[variable] = kept


def _reply_fault(reply: Any, request: ChatRequest) -> str | None:
    """The first fault of a reply."""
    if not isinstance(reply, ChatReply):
        return f"`complete` returned {type(reply).__name__}, not a ChatReply"
    counts = prompt, completion = reply.prompt_tokens, reply.completion_tokens
    if not (isinstance(reply.content, str | None) and isinstance(reply.reasoning, str)):
        return "the content of a reply must be text or None, its reasoning text"
    if reply.finish_reason not in _REASONS:
        return f"finish_reason {reply.finish_reason!r} is none of {', '.join(_REASONS)}"
    if not all(type(count) is int and count >= 0 for count in counts):
        return f"token counts must be integers, not negative (got {prompt!r} and {completion!r})"
    if reply.content and not all(counts):
        return "a reply with content must count the tokens of prompt and reply, or no budget can be kept"
    if completion > request.max_tokens:
        return f"a reply has {completion} tokens, but max_tokens was {request.max_tokens}"
    if request.schema is not None and "".join((reply.content or "").split()) not in _ANSWERS:
        return f"holds_schemas is True, but a reply does not keep to the schema: {reply.content!r:.80}"
    return None


@asynccontextmanager
async def _opened(make: Any, connection: Connection, budget: Budget | None = None) -> AsyncIterator[Any]:
    made = make(connection if budget is None else replace(connection, budget=budget))
    try:
        yield made
    finally:
        await made.close()


async def _raised(call: Any) -> BaseException | None:
    try:
        await call
    except Exception as error:
        return error
    return None


async def _listed(faults: AsyncIterator[str]) -> list[str]:
    return list(dict.fromkeys([fault async for fault in faults]))
