"""Which kinds of providers there are, and the clients that are made of them, metered.

Decisions that matter here:
- a kind is its settings (what a config holds, and what the kind can do: `nip_ray.settings.providers.ProviderSettings`) and a `Provider`
  here (how it is put to work). Nothing else tells kinds apart, so a kind of one's own is one file;
- a client is metered (`MeteredChat`), unless it says that it books its attempts itself;
- those that ship are imported when they are first needed: their libraries are large, and not everybody has all of them.
"""

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from nip_ray.errors import UserError
from nip_ray.text.costs.budget import Budget, BudgetLike, Limiter, Throttle
from nip_ray.text.costs.prices import (
    NOTHING,
    PriceList,
    Spending,
    call_cost,
    estimated_prompt_tokens,
    price_list,
    with_uncertain,
    worst_case,
)
from nip_ray.text.providers.interface import ChatClient, ChatReply, ChatRequest, FineTuneBackend


@dataclass(frozen=True)
class Connection:
    """What clients and backends are made of.

    settings: of the provider. name: in the config. run_dir: a backend may keep files there, called after `name`. host: what
    `Provider.start` returned. seed: of the run. max_in_flight: calls at once, at most. budget, throttle: what
    calls are paid from and wait for; a client that books its attempts itself keeps to them, for all others `MeteredChat` does.
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
    """How a kind of provider is put to work. Each function raises UserError for a missing key or library.

    chat: makes a client (none: `ProviderSettings.has_model` is false). fine_tuning: makes a backend (none: it does not fine-tune).
    start, stop: of actors that all processes of a run share, from settings and the run folder. actors: those of what `start` returned that
    are watched for hangs (`nip_ray.serving.hangs`), by what messages call them. books_itself: the client keeps to budget and limits by
    itself.
    """

    chat: Callable[[Connection], ChatClient] | None
    fine_tuning: Callable[[Connection], FineTuneBackend] | None = None
    start: Callable[[Any, Path], Any] | None = None
    stop: Callable[[Any], None] | None = None
    actors: Callable[[Any], Mapping[str, Any]] | None = None
    books_itself: bool = False


PROVIDERS: dict[str, Provider] = {}
"""Kinds that plugins add, by the name in a config. Those that ship are the modules beside this one, which have a `PROVIDER`."""


def provider_of(settings: Any) -> Provider:
    """The kind of provider that has these settings."""
    if settings.name in PROVIDERS:
        return PROVIDERS[settings.name]
    return importlib.import_module(f"nip_ray.text.providers.{settings.name}").PROVIDER


def chat_client(connection: Connection) -> ChatClient:
    """A client that keeps to budget and limits. Raises UserError for a missing key or library."""
    kind, settings = provider_of(connection.settings), connection.settings
    if kind.chat is None:
        raise UserError(f"providers.{connection.name}: {settings.name} answers no calls; choose another provider")
    client = kind.chat(connection)
    if kind.books_itself:
        return client
    throttle = None if settings.limits is None else connection.throttle
    return MeteredChat(client, connection.budget, price_list(settings, connection.budget.in_usd), throttle)


def fine_tune_backend(connection: Connection) -> FineTuneBackend:
    """Who fine-tunes. Raises UserError for a missing key or library, or a kind that does not."""
    kind = provider_of(connection.settings)
    if kind.fine_tuning is None:
        raise UserError(f"providers.{connection.name}: {connection.settings.name} does not fine-tune; freeze its agents")
    return kind.fine_tuning(connection)


# ---------------------------------------------------------------------------------------------------------------------
# `MeteredChat`: a client with its calls counted, priced and limited, so that the client itself knows nothing of money.
#
# - what a call can cost at most is set aside before it, and what it cost is booked after it;
# - a call that failed may have been billed, unless calls are free or the failure is the user's to mend (UserError): its worst case is
#   booked as uncertain. A client that repeats attempts which may have been billed has to book each itself, as `OpenAIChat` does.


class MeteredChat:
    """Wraps a client. `cost_pusd` of its replies is filled in by the prices."""

    def __init__(self, client: ChatClient, budget: BudgetLike, prices: PriceList, throttle: Throttle | None = None) -> None:
        """budget: what calls are paid from. throttle: what they wait for (none: nothing)."""
        self._client, self._budget, self._prices, self._throttle = client, budget, prices, throttle

    async def complete(self, request: ChatRequest) -> ChatReply:
        """See `ChatClient.complete`. Raises BudgetExhausted before a call that could cost more than is left."""
        price = self._prices.of(request.model)
        worst = worst_case(price, request)
        estimate = estimated_prompt_tokens(request.messages) + request.max_tokens
        reserved, sent = await self._budget.reserve(worst), False
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
        reply = replace(reply, cost_pusd=call_cost(price, reply.prompt_tokens, reply.completion_tokens))
        if self._throttle is not None:
            self._throttle.correct(estimate, reply.prompt_tokens + reply.completion_tokens)
        reserved.settle(Spending.of_reply(request.model, reply))
        return reply

    async def close(self) -> None:
        """See `ChatClient.close`."""
        await self._client.close()
