"""`OpenAIService`: one service of the OpenAI protocol, as its chat client and its fine-tuning jobs see it: address, key, errors, patience.

Decisions that matter here:
- the SDK's own repeats are off: its default sends a creation up to three times without any key. What may be repeated is repeated here
  (`patiently`) or by who sends it, and all wait by one rule (`wait_s`);
- the key is read from the environment when the client is made, and is nowhere but in the SDK's client. Nothing of the SDK's exceptions
  is kept: their requests hold it, and services like to quote it.
"""

import asyncio
import json
import re
from collections.abc import Awaitable, Callable
from itertools import count
from typing import TYPE_CHECKING, Any, TypeVar, cast

from nip_ray.errors import TrainingError, require
from nip_ray.secrets import Redactor, secret
from nip_ray.settings.providers import OpenAIProvider
from nip_ray.text.providers.interface import FIRST_WAIT_S, Failure, backoff_s, lost, refused

if TYPE_CHECKING:
    import httpx2
    from openai import AsyncOpenAI

T = TypeVar("T")
_USER = re.compile(r"//[^/@]*@")


def base_url(provider: OpenAIProvider) -> str:
    """Where the service is: settings, else $OPENAI_BASE_URL, else OpenAI's."""
    return str(provider.address).rstrip("/")


def api_key(provider: OpenAIProvider) -> str:
    """The key. Raises UserError naming the variable when it is not set."""
    return secret(provider.api_key_variable, base_url(provider))


def openai_client(provider: OpenAIProvider, max_in_flight: int) -> "AsyncOpenAI":
    """The SDK's client for this service: no retries of its own, a connection for every call in flight."""
    openai = require("openai", "text")
    httpx2 = require("httpx2", "text")
    limits = httpx2.Limits(max_connections=max_in_flight, max_keepalive_connections=max_in_flight, keepalive_expiry=30)

    async def readable(response: "httpx2.Response") -> None:
        """A success that is not JSON is a proxy's page: the SDK's types would be made of it, or errors that say nothing."""
        if response.is_success:
            try:
                json.loads(await response.aread())
            except (ValueError, RecursionError):
                raise httpx2.DecodingError("not JSON", request=response.request) from None

    # aiohttp is there: ray[default] needs it
    http = openai.DefaultAioHttpClient(limits=limits, event_hooks={"response": [readable]})
    key, url = api_key(provider), base_url(provider)
    return openai.AsyncOpenAI(api_key=key, base_url=url, max_retries=0, timeout=provider.timeout_s, http_client=http)


class OpenAIService:
    """For one event loop. sdk: its client. where: its address, without a user's name. errors: what a request can raise."""

    def __init__(self, provider: OpenAIProvider, max_in_flight: int = 16, seed: int = 0, first_wait_s: float = FIRST_WAIT_S) -> None:
        """max_in_flight: connections. seed: of the waits' jitter. first_wait_s: see `backoff_s`.

        Raises UserError when the key or the SDK is missing.
        """
        self.provider, self.seed, self._first_wait_s = provider, seed, first_wait_s
        self.sdk = openai_client(provider, max_in_flight)
        self.where = _USER.sub("//", base_url(provider))
        self.errors = _transport_errors()
        self.raw = cast("type[httpx2.Response]", require("httpx2", "text").Response)
        self._redact = Redactor([provider.api_key_variable])

    def failure(self, error: Exception, model: str = "") -> Failure:
        """What one of `errors` means; none of it is kept. model: that the request was for, if it was for one."""
        import aiohttp
        import openai

        if isinstance(error, openai.APIStatusError):
            body = self._redact(error.response.text)  # before it is cut to length: part of a key would not be found
            variable = self.provider.api_key_variable
            return refused(error.status_code, body, error.response.headers, self.where, variable, model)
        causes = _causes(error)
        if any(isinstance(cause, require("httpx2", "text").DecodingError) for cause in causes):
            return lost(f"{self.where} sent something that is not JSON")
        if any(isinstance(cause, aiohttp.ClientConnectorError) for cause in causes):
            return Failure("retry", f"{self.where} cannot be reached")
        if any(isinstance(cause, TimeoutError) for cause in causes):
            return lost(f"{self.where} did not answer within {self.provider.timeout_s:g} s")
        return lost(f"the connection to {self.where} was lost")

    def wait_s(self, failure: Failure, key: str, attempt: int) -> float:
        """Seconds before attempt number `attempt` + 1 of the request `key`: what the service asks for, else longer each time."""
        jitter = backoff_s(self.seed, key, attempt, self._first_wait_s)
        return jitter if failure.wait_s is None else failure.wait_s + 0.1 * jitter

    async def patiently(self, call: Callable[[], Awaitable[T]], key: str) -> T:
        """The result of a request that may be repeated, and is while the failure is not ours. key: tells requests apart.

        Raises the failure's error (`Failure.error`) for a refusal, TrainingError after `max_retries` repeats.
        """
        for attempt in count():
            try:
                return await call()
            except self.errors as error:
                failure = self.failure(error)
            if failure.reaction not in ("retry", "pause"):
                raise failure.error()
            if attempt >= self.provider.max_retries:
                raise TrainingError(f"{failure.message}, {attempt + 1} times; resume the run when the service is well")
            await asyncio.sleep(self.wait_s(failure, key, attempt))
        raise AssertionError

    async def close(self) -> None:
        """Gives connections back."""
        await self.sdk.close()


def _transport_errors() -> tuple[type[Exception], ...]:
    """All that the SDK and the transports below it raise for a request that did not work."""
    names = {"openai": "OpenAIError", "httpx2": "HTTPError", "aiohttp": "ClientError"}
    found: list[Any] = [getattr(require(module, "text"), name) for module, name in names.items()]
    return (*found, TimeoutError, OSError)


def _causes(error: BaseException | None) -> list[BaseException]:
    """An exception and what led to it: the SDK and its transport give their own names to what the network said."""
    found: list[BaseException] = []
    while error is not None:
        found.append(error)
        error = error.__cause__
    return found
