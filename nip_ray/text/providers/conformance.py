"""One call that says whether a provider keeps its promises to runs.

Decisions that matter here:

- It is asked for real: a few short replies and, where it fine-tunes, one job of one example for an epoch. With a service that costs
  fractions of a cent; the budget of the call is 200,000 tokens.
- What is asked is what runs rely on: replies that are counted and no longer than allowed, calls that are independent of each other, errors
  of our two kinds, a budget that is kept, jobs that are found by their key, by another process too, so that none is made twice.
- The faults of the first stage that has any are listed; later ones would only repeat them.
"""

import asyncio
import hashlib
import json
import os
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

from nip_ray.errors import TrainingError, UserError
from nip_ray.serving.fine_tuning_job import FINAL, FineTuneJob, FineTuneSpec, Method
from nip_ray.settings.providers import BudgetSettings, ProviderSettings
from nip_ray.text.costs.budget import Budget
from nip_ray.text.costs.prices import NOTHING, BudgetExhausted
from nip_ray.text.providers.interface import (
    ChatReply,
    ChatRequest,
    Connection,
    FineTuneBackend,
    FinishReason,
    chat_client,
    encode,
    fine_tune_backend,
    provider_of,
    supervised_line,
)

_CHAT = [{"role": "system", "content": "Answer in JSON."}, {"role": "user", "content": "Is 7 a prime number?"}]
_MAX_TOKENS, _AT_ONCE, _TOKENS = 32, 4, 200_000
_SCHEMA = {
    "type": "object",
    "properties": {"prime": {"enum": ["yes", "no"]}},
    "required": ["prime"],
    "additionalProperties": False,
}
_METHODS = frozenset(get_args(Method))


def check_provider(settings: ProviderSettings, model: str = "default", *, max_wait_s: float = 600.0) -> None:
    """Raise one UserError that lists what is wrong with the provider of these settings; return quietly when nothing is found.

    model: that is asked, and fine-tuned where the provider fine-tunes. max_wait_s: for the job. What the provider itself raises (a
    missing key, an unknown model) comes through. Not to be called inside an event loop; Ray must be running for a provider with actors.
    """
    with tempfile.TemporaryDirectory() as folder, _started(settings, Path(folder)) as host:
        connection = Connection(settings, "checked", Path(folder), host)
        if settings.has_model:
            _refuse(settings, asyncio.run(_chat_faults(connection, model)))
        if settings.can_fine_tune:
            _refuse(settings, asyncio.run(_job_faults(connection, model, max_wait_s)))
        _refuse(settings, asyncio.run(_key_faults(connection)))


def _refuse(settings: ProviderSettings, faults: list[str]) -> None:
    if faults:
        raise UserError(f"provider {getattr(settings, 'name', type(settings).__name__)!r}: " + "; ".join(dict.fromkeys(faults)))


@contextmanager
def _started(settings: ProviderSettings, folder: Path) -> Iterator[Any]:
    kind = provider_of(settings)
    host = None if kind.start is None else kind.start(settings, folder / "checked")
    try:
        yield host
    finally:
        if kind.stop is not None:
            kind.stop(host)


# --------------------------------------------------------------------------------------------------------------- calls


async def _chat_faults(connection: Connection, model: str) -> list[str]:
    """Replies, counts, limits, money."""
    budget = Budget(BudgetSettings(tokens=_TOKENS))
    request = ChatRequest("check/0", model, _CHAT, _MAX_TOKENS, temperature=0.0, seed=1, agent="verifier")
    make = provider_of(connection.settings).chat
    assert make is not None
    bare = make(replace(connection, budget=budget))
    try:
        if faults := list(_reply_faults(await bare.complete(request), request)):
            return faults
    finally:
        await bare.close()
    async with _client(connection, budget) as client:
        replies = await asyncio.gather(*(client.complete(replace(request, key=f"check/{n}")) for n in range(_AT_ONCE)))
        for reply in replies:
            faults += _reply_faults(reply, request)
        booked = budget.spending.amount.tokens + budget.spending.uncertain.tokens
        if not faults and booked < sum(reply.prompt_tokens + reply.completion_tokens for reply in replies):
            faults.append("the tokens of its replies are not booked in the budget")
        if connection.settings.holds_schemas:
            faults += _schema_faults(await client.complete(replace(request, key="check/json", max_tokens=64, schema=_SCHEMA)))
        short = await client.complete(replace(request, key="check/short", max_tokens=1))
        faults += _reply_faults(short, replace(request, max_tokens=1))
        await _cancelled(client.complete(replace(request, key="check/cancelled", max_tokens=256)))
        if budget.reserved != NOTHING:
            faults.append("money stays reserved when its calls are over")
    async with _client(connection, spent := Budget(BudgetSettings(tokens=1))) as client:
        if not isinstance(await _raised(client.complete(request)), BudgetExhausted) or spent.spending.amount != NOTHING:
            faults.append("a call was made that the budget had no room for")
    async with _client(connection, Budget()) as client:
        raised = await _raised(client.complete(replace(request, key="check/no-model", model="no-such-model-of-anyone")))
        if raised is not None and not isinstance(raised, UserError | TrainingError):
            faults.append(f"an unknown model raised {type(raised).__name__}; raise UserError or TrainingError")
    return faults


@asynccontextmanager
async def _client(connection: Connection, budget: Budget) -> AsyncIterator[Any]:
    client = chat_client(replace(connection, budget=budget))
    try:
        yield client
    finally:
        await client.close()


def _reply_faults(reply: Any, request: ChatRequest) -> Iterator[str]:
    if not isinstance(reply, ChatReply):
        yield f"`complete` returned {type(reply).__name__}, not a ChatReply"
        return
    if not (isinstance(reply.content, str) or reply.content is None) or not isinstance(reply.reasoning, str):
        yield "the content of a reply must be text or None, its reasoning text"
    if reply.finish_reason not in get_args(FinishReason):
        yield f"finish_reason {reply.finish_reason!r} is none of {', '.join(get_args(FinishReason))}"
    counts = (reply.prompt_tokens, reply.completion_tokens)
    if not all(type(count) is int and count >= 0 for count in counts):
        yield f"token counts must be integers, not negative (got {counts})"
    elif reply.content and not all(counts):
        yield "a reply with content must count the tokens of prompt and reply, or no budget can be kept"
    elif reply.completion_tokens > request.max_tokens:
        yield f"a reply has {reply.completion_tokens} tokens, but max_tokens was {request.max_tokens}"


def _schema_faults(reply: ChatReply) -> Iterator[str]:
    try:
        found = json.loads(reply.content or "")
    except ValueError:
        found = None
    if not (isinstance(found, dict) and set(found) == {"prime"} and found["prime"] in ("yes", "no")):
        yield f"holds_schemas is True, but a reply does not keep to the schema: {reply.content!r:.80}"


# ---------------------------------------------------------------------------------------------------------------- jobs


async def _job_faults(connection: Connection, model: str, max_wait_s: float) -> list[str]:
    """One job, from its file to its model."""
    async with _backend(connection) as backend:
        faults = list(_backend_faults(backend))
        if faults:
            return faults
        await backend.check(model, "supervised")
        unknown: Any = "no-such-method"
        if not isinstance(await _raised(backend.check(model, unknown)), UserError):
            faults.append("`check` must raise UserError for a method that it does not have")
        data = encode([supervised_line(_CHAT, '{"prime": "yes"}')])
        file_id = await backend.upload("check", data)
        if await backend.upload("check again", data) != file_id:
            faults.append("the same content uploaded twice has two ids")
        key = hashlib.sha256(os.urandom(16)).hexdigest()  # a fresh one: the provider may keep jobs of earlier checks
        if await backend.find(key):
            faults.append("`find` finds a job that was never made")
        spec = FineTuneSpec(key, "supervised", model, "check", 1, len(data), num_epochs=1, batch_size=1)
        job = await backend.submit(spec, file_id)
        faults += _found_faults(job, await backend.find(key), "")
    async with _backend(connection) as backend:
        faults += _found_faults(job, await backend.find(key), "by another client, as after a crash, ")
        if faults:
            return faults
        job = await _ended(backend, job, max_wait_s)
        if job.status != "succeeded" or not job.model:
            return [f"the job ended as {job.status!r} with the model {job.model!r} ({job.error})"]
        if job.trained_tokens is not None and (type(job.trained_tokens) is not int or job.trained_tokens < 0):
            faults.append(f"trained_tokens must be an integer, not negative, or None (got {job.trained_tokens!r})")
        if (await backend.cancel(job.id)).status != "succeeded":
            faults.append("`cancel` changes a job that is over")
        if connection.settings.has_model:
            async with _client(connection, Budget()) as client:
                request = ChatRequest("check/new", job.model, _CHAT, _MAX_TOKENS)
                faults += _reply_faults(await client.complete(request), request)
    return faults


@asynccontextmanager
async def _backend(connection: Connection) -> AsyncIterator[FineTuneBackend]:
    backend = fine_tune_backend(connection)
    try:
        yield backend
    finally:
        await backend.close()


def _backend_faults(backend: Any) -> Iterator[str]:
    if not backend.methods or not backend.methods <= _METHODS:
        yield f"`methods` must be some of {', '.join(sorted(_METHODS))}"
    for name in ("poll_interval_s", "doubt_s"):
        if not isinstance(getattr(backend, name, None), int | float) or getattr(backend, name) < 0:
            yield f"`{name}` must be a number of seconds"


def _found_faults(job: FineTuneJob, found: list[FineTuneJob], how: str) -> Iterator[str]:
    if [one.id for one in found] != [job.id] or any(one.key != job.key for one in found):
        yield f"{how}`find` does not find the one job with a key, so that it would be made twice"


async def _ended(backend: FineTuneBackend, job: FineTuneJob, max_wait_s: float) -> FineTuneJob:
    try:
        async with asyncio.timeout(max_wait_s):
            while job.status not in FINAL:
                await asyncio.sleep(backend.poll_interval_s)
                job = await backend.poll(job.id)
    except TimeoutError:
        raise TrainingError(f"the job {job.id} is not over after {max_wait_s:g} s ({job.status}); raise max_wait_s") from None
    return job


# ---------------------------------------------------------------------------------------------------------------- keys


async def _key_faults(connection: Connection) -> list[str]:
    """Without its key nothing is made, and the message names the variable."""
    variable = getattr(connection.settings, "api_key_variable", None)
    if variable is None:
        return []
    makers: list[Callable[[Connection], Any]] = [chat_client, *([fine_tune_backend] if connection.settings.can_fine_tune else [])]
    kept, faults = os.environ.pop(variable, None), []
    try:
        for make in makers:
            try:
                await make(connection).close()
                faults.append(f"without ${variable} a client is made all the same; read it with nip_ray.secrets.secret")
            except UserError as error:
                if variable not in str(error):
                    faults.append(f"the error for a missing key does not name {variable}")
    finally:
        if kept is not None:
            os.environ[variable] = kept
    return faults


async def _raised(call: Any) -> BaseException | None:
    try:
        await call
    except Exception as error:
        return error
    return None


async def _cancelled(call: Any) -> None:
    """Begin a call and take it back."""
    task = asyncio.ensure_future(call)
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
