"""Interfaces of a provider, `ChatClient` and `FineTuneBackend`; the kinds of providers; waits before a retry.

Decisions that matter here:
- every call has a key that depends on the experiment alone (run, iteration, item, round, agent, attempt): the same call
  after a crash has the same key. Replies are recorded under it before they are used (`nip_ray.text.dialogues.records`),
  and it is sent as the idempotency key, so that a paid call is neither lost nor, if the provider honours keys, paid
  twice;
- a kind is its settings (the config and abilities: `nip_ray.settings.providers.ProviderSettings`) and a `Provider` here
  (its functions). Nothing else distinguishes kinds, so a custom kind is one file;
- a client is metered (`MeteredChat`), unless it books its attempts itself;
- files of fine-tuning are JSON lines, as OpenAI defines them. `nip_ray.text.jobs` has the one function that creates a
  job exactly once.
"""

import hashlib
import importlib
import json
import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

from nip_ray.errors import UserError
from nip_ray.play.dialogue import Chat
from nip_ray.seeding import stable_seed
from nip_ray.serving.fine_tuning_job import FineTuneJob, FineTuneSpec, Method
from nip_ray.text.costs.budget import Budget, BudgetLike, Limiter, Throttle
from nip_ray.text.costs.prices import (
    NOTHING,
    Amount,
    BudgetExhausted,
    PriceList,
    Spending,
    call_cost,
    estimated_prompt_tokens,
    price_list,
    with_uncertain,
    worst_case,
)

FinishReason = Literal["stop", "length", "content_filter", "refused", "unknown"]
"""content_filter: the reply was filtered. refused: there is none; the request was refused for its content or its
length, and would be again. unknown: it ended for another reason, and is not used."""


@dataclass(frozen=True)
class ChatRequest:
    """One call. key: see above. agent: the speaker (for accounts and test doubles). max_tokens: of the reply, reasoning
    included. extra: further members of the request's body (OpenAI protocol). schema: the JSON schema of the reply
    (None: any text)."""

    key: str
    model: str
    messages: Chat
    max_tokens: int
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    agent: str = ""
    extra: Mapping[str, Any] = field(default_factory=dict)
    schema: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class ChatReply:
    """The answer to a call. content: None if the provider gave no text. cost_pusd: picodollars (1e-12 US dollars), by
    the price table. reasoning: if separate from the content. cached_tokens: of prompt_tokens. reasoning_tokens: of
    completion_tokens. model, fingerprint: what answered, if reported. refusal: the provider's words about a request
    that it refused.

    uncertain: the possible cost of earlier attempts without an answer, and of this one if the provider counts no tokens
    (both counts are then 0).
    """

    content: str | None
    finish_reason: FinishReason
    prompt_tokens: int
    completion_tokens: int
    cost_pusd: int = 0
    reasoning: str = ""
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    model: str | None = None
    fingerprint: str | None = None
    refusal: str | None = None
    uncertain: Amount = NOTHING

    def spending(self, model: str) -> Spending:
        """The spending of this call to `model`, without the uncertain part."""
        found = Spending.of_call(model, self.prompt_tokens, self.completion_tokens, self.cost_pusd)
        row = found.models[model]
        row.cached, row.reasoning = self.cached_tokens, self.reasoning_tokens
        if self.model is not None:
            row.answered_by[" ".join(filter(None, (self.model, self.fingerprint)))] = 1
        return found


class ChatClient(Protocol):
    """Answers calls, many at once, with retries.

    Raises TrainingError when it gives up, BudgetExhausted before it would overspend. A request refused for its content
    does not end a run: its reply has no content and the finish reason `refused`.

    One client serves one provider, all its models and any number of tasks of one event loop.
    """

    async def complete(self, request: ChatRequest) -> ChatReply:
        """The reply to one call."""
        ...

    async def close(self) -> None:
        """Close connections."""
        ...


@runtime_checkable
class ChecksModels(Protocol):
    """A client that can check, before anything is paid for, that its provider has a model."""

    async def check_models(self, names: Iterable[str]) -> None:
        """Raise UserError for a name that the provider does not know."""
        ...


# ----------------------------------------------------------------------------------------------------------------------
# `FineTuneBackend`: the interface of fine-tuning, and the formats of its files (JSON lines, as OpenAI defines them).
# `nip_ray.text.jobs` has the function that creates a job exactly once.


class InDoubt(Exception):
    """A creation request got no clear answer: the job may exist or appear later."""


class FineTuneBackend(Protocol):
    """A provider of fine-tuning. Every method but `submit` can safely be repeated, and retries where possible.

    Errors: UserError for mistakes of the user (key, model, method), TrainingError when the provider is unreachable.
    """

    methods: frozenset[str]
    poll_interval_s: float
    doubt_s: float

    async def check(self, model: str, method: Method) -> None:
        """Raise UserError, before any money is spent, when `model` cannot be fine-tuned by `method` here."""
        ...

    async def upload(self, name: str, data: bytes) -> str:
        """The id of a file with this content; equal content is uploaded once. data: JSON lines in the OpenAI form."""
        ...

    async def find(self, key: str) -> list[FineTuneJob]:
        """All jobs with this key, oldest first."""
        ...

    async def submit(self, spec: FineTuneSpec, file_id: str) -> FineTuneJob:
        """Create a job, by one request that is never repeated. Raises InDoubt when the outcome is unknown."""
        ...

    async def poll(self, job_id: str) -> FineTuneJob:
        """The current state of a job."""
        ...

    async def cancel(self, job_id: str) -> FineTuneJob:
        """Cancel a job; a finished one stays as it is."""
        ...

    async def close(self) -> None:
        """Close connections."""
        ...


def supervised_line(chat: Chat, completion: str) -> dict[str, Any]:
    """One supervised example: a chat and the next reply."""
    return {"messages": [*chat, {"role": "assistant", "content": completion}]}


def dpo_line(chat: Chat, preferred: str, rejected: str) -> dict[str, Any]:
    """One example of direct preference optimisation: a chat, the better and the worse continuation."""
    return {
        "input": {"messages": list(chat)},
        "preferred_output": [{"role": "assistant", "content": preferred}],
        "non_preferred_output": [{"role": "assistant", "content": rejected}],
    }


def encode(lines: Iterable[dict[str, Any]]) -> bytes:
    """JSON lines in UTF-8; equal lines give equal bytes, whatever the order of their keys."""
    return b"".join(
        json.dumps(line, sort_keys=True, ensure_ascii=False, allow_nan=False).encode() + b"\n" for line in lines
    )


def file_name(data: bytes) -> str:
    """The name under which a file with this content is uploaded, a hash."""
    return f"nip-{hashlib.sha256(data).hexdigest()[:32]}.jsonl"


# ----------------------------------------------------------------------------------------------------------------------
# Waits before a retry, for calls and jobs of any kind.

FIRST_WAIT_S, LONGEST_WAIT_S = 0.5, 30.0
MAX_WAIT_S = 3600.0
"""The longest wait that a service may request: a longer one ends the run with a message."""


def backoff_s(
    seed: int, key: str, attempt: int, first_s: float = FIRST_WAIT_S, longest_s: float = LONGEST_WAIT_S
) -> float:
    """Seconds before attempt number `attempt` + 1 of the call `key`: doubled each time, less up to half at random."""
    full = min(longest_s, first_s * 2 ** min(attempt, 30))
    return full * (1 - 0.5 * random.Random(stable_seed(seed, "retry", key, attempt)).random())


# ----------------------------------------------------------------------------------------------------------------------
# The kinds of providers, and the clients made from them. Built-in kinds are imported when first needed: their libraries
# are large, and not always installed.


@dataclass(frozen=True)
class Connection:
    """Ingredients of clients and backends.

    settings: of the provider. name: in the config. run_dir: a backend may keep files there, named after `name`. host:
    the result of `Provider.start`. seed: of the run. max_in_flight: maximum concurrent calls. budget, throttle: pay for
    calls and delay them; a client that books its attempts itself applies them, otherwise `MeteredChat` does.
    """

    settings: Any
    name: str
    run_dir: Path
    host: Any = None
    seed: int = 0
    max_in_flight: int = 64
    budget: BudgetLike = field(default_factory=Budget)
    throttle: Throttle = field(default_factory=lambda: Limiter(None, None))


@dataclass(frozen=True)
class Provider:
    """The functions of a kind of provider. Each raises UserError for a missing key or library.

    chat: makes a client (None: `ProviderSettings.has_model` is false). fine_tuning: makes a backend (None: it does not
    fine-tune). start, stop: of actors that all processes of a run share, from settings and the run folder. actors: name
    in messages -> those of the result of `start` that are watched for hangs (`nip_ray.cluster.liveness`). books_itself:
    the client applies budget and limits itself.
    """

    chat: Callable[[Connection], ChatClient] | None
    fine_tuning: Callable[[Connection], FineTuneBackend] | None = None
    start: Callable[[Any, Path], Any] | None = None
    stop: Callable[[Any], None] | None = None
    actors: Callable[[Any], Mapping[str, Any]] | None = None
    books_itself: bool = False


PROVIDERS: dict[str, Provider] = {}
"""Kinds that plugins add, by the name in a config. Built-in ones are the modules beside this one with a `PROVIDER`."""


def provider_of(settings: Any) -> Provider:
    """The kind of provider with these settings."""
    if settings.name in PROVIDERS:
        return PROVIDERS[settings.name]
    return importlib.import_module(f"nip_ray.text.providers.{settings.name}").PROVIDER


def chat_client(connection: Connection) -> ChatClient:
    """A client within budget and limits. Raises UserError for a missing key or library."""
    kind, settings = provider_of(connection.settings), connection.settings
    if kind.chat is None:
        raise UserError(f"providers.{connection.name}: {settings.name} answers no calls; choose another provider")
    client = kind.chat(connection)
    if kind.books_itself:
        return client
    throttle = None if settings.limits is None else connection.throttle
    return MeteredChat(client, connection.budget, price_list(settings, connection.budget.in_usd), throttle)


def fine_tune_backend(connection: Connection) -> FineTuneBackend:
    """A backend that fine-tunes. Raises UserError for a missing key or library, or a kind that does not."""
    kind = provider_of(connection.settings)
    if kind.fine_tuning is None:
        raise UserError(
            f"providers.{connection.name}: {connection.settings.name} does not fine-tune; freeze its agents"
        )
    return kind.fine_tuning(connection)


# ----------------------------------------------------------------------------------------------------------------------
# `MeteredChat`: counts, prices and limits a client's calls, so that the client itself need not know of money.
# - the maximum cost of a call is set aside before it, and its actual cost is booked after it;
# - a failed call may have been billed, unless calls are free or the mistake is the user's (UserError): its worst case
#   is booked as uncertain. A client that retries attempts which may have been billed has to book each itself, as
#   `OpenAIChat` does.


class MeteredChat:
    """Wraps a client. Fills in `cost_pusd` of its replies by the prices."""

    def __init__(
        self, client: ChatClient, budget: BudgetLike, prices: PriceList, throttle: Throttle | None = None
    ) -> None:
        """budget: pays for calls. throttle: delays them (None: no limit)."""
        self._client, self._budget, self._prices, self._throttle = client, budget, prices, throttle

    async def complete(self, request: ChatRequest) -> ChatReply:
        """See `ChatClient.complete`. Raises BudgetExhausted before a call that could cost more than what is left."""
        price = self._prices.of(request.model)
        worst = worst_case(price, request.messages, request.max_tokens)
        estimate = estimated_prompt_tokens(request.messages) + request.max_tokens
        sent = False
        try:
            reserved = await self._budget.reserve(worst)
        except BudgetExhausted as error:
            raise with_uncertain(error, NOTHING) from None
        try:
            if self._throttle is not None:
                await self._throttle.acquire(estimate)
            sent = True
            reply = await self._client.complete(request)
        except UserError as error:
            reserved.release()
            raise with_uncertain(error, NOTHING) from None
        except BaseException:
            reserved.lose() if sent and worst.pusd else reserved.release()
            raise
        cost = call_cost(price, reply.prompt_tokens, reply.completion_tokens, reply.cached_tokens)
        reply = replace(reply, cost_pusd=cost)
        if self._throttle is not None:
            self._throttle.correct(estimate, reply.prompt_tokens + reply.completion_tokens)
        spending = reply.spending(request.model)
        spending.uncertain += reply.uncertain
        reserved.settle(spending)
        return reply

    async def close(self) -> None:
        """See `ChatClient.close`."""
        await self._client.close()
