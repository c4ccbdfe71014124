"""`OpenAIService`: one service of the OpenAI protocol, as its chat client and its fine-tuning jobs see it: address, key, errors, patience.

Decisions that matter here:
- the SDK's own repeats are off: its default sends a creation up to three times without any key. What may be repeated is repeated here
  (`patiently`) or by who sends it, and all wait by one rule (`wait_s`);
- the key is read from the environment when the client is made, and is nowhere but in the SDK's client. Nothing of the SDK's exceptions
  is kept: their requests hold it, and services like to quote it.
"""

import asyncio
import json
import math
import re
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from itertools import count
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast

from nip_ray.errors import TrainingError, UserError, require
from nip_ray.secrets import Redactor, secret
from nip_ray.settings.providers import OpenAIProvider
from nip_ray.text.providers.interface import FIRST_WAIT_S, MAX_WAIT_S, backoff_s

if TYPE_CHECKING:
    import httpx2
    from openai import AsyncOpenAI

T = TypeVar("T")
_USER = re.compile(r"//[^/@]*@")


# ---------------------------------------------------------------------------------------------------------------------
# What an attempt at a service failed by, and what is to be done: a table of reactions, for calls and jobs alike.
#
# - an answer of the service that says no costs nothing; no answer, or one that cannot be read, may have been billed (`lost`), and so
#   may a failure of the service or of a gateway before it (any 5xx but 501): the reply may have been made before that;
# - waits that the service asks for are kept, up to `MAX_WAIT_S`; a longer one ends the run with a message;
# - nothing of the SDK's exceptions is kept: they hold requests with their headers, and so the key.

Reaction = Literal["retry", "pause", "refused", "rename_limit", "user", "fatal"]
"""retry: again after a wait. pause: the same, and everyone waits. refused: the content is not wanted. rename_limit: again with
`max_completion_tokens`. user: the user must mend it. fatal: no use in trying again."""

MAX_MESSAGE = 500

NO_SUCH_PLACE = (404, 405, 501)
_QUOTA = ("insufficient_quota", "billing_hard_limit_reached", "billing_not_active")
_POLICY_CODES = ("content_policy_violation", "content_filter", "moderation_blocked")
_POLICY = re.compile(r"content (management )?policy|usage policy|safety system|input was flagged", re.IGNORECASE)


@dataclass(frozen=True)
class Failure:
    """One failed attempt. message: for people, without secrets. lost: it may have been billed. wait_s: what the service asks for."""

    reaction: Reaction
    message: str
    lost: bool = False
    wait_s: float | None = None
    status: int | None = None

    def error(self) -> UserError | TrainingError:
        """The exception that ends the call: UserError for what the user must mend, NotThere and Refused for refusals that are no matter
        of keys, TrainingError for all else.
        """
        if self.reaction in ("retry", "pause", "fatal"):
            return TrainingError(self.message)
        if self.status == 401:
            return UserError(self.message)
        if self.status == 403:
            return KeyMayNot(self.message)
        return (NotThere if self.status in NO_SUCH_PLACE else Refused)(self.message)


class KeyMayNot(UserError):
    """The key may not do this, and may do other things."""


class Refused(UserError):
    """The service will not do this: a 4xx that is no matter of keys."""


class NotThere(Refused):
    """The service has no such place or thing."""


def lost(message: str) -> Failure:
    """No answer, or none that can be read."""
    return Failure("retry", message, lost=True)


def refused(status: int, body: Any, headers: Mapping[str, str], where: str, variable: str, model: str) -> Failure:
    """An answer with an error status. where: the service's address. variable: where the key comes from. body: the error as it came,
    but for secrets.
    """
    error = _error(body)
    code, text = str(error.get("code") or error.get("type") or ""), _printable(str(error.get("message") or "no reason given"))
    said = f"{where} answered {status}: {text}"
    if status == 402 or code in _QUOTA or error.get("type") in _QUOTA:
        return Failure("fatal", f"the credit at {where} is used up ({text}); resume the run when it is topped up", status=status)
    if status in (408, 409, 425, 429) or (status >= 500 and status != 501):
        return _again(status, said, headers)
    if status in (400, 403, 422) and (code in _POLICY_CODES or _POLICY.search(text)):
        return Failure("refused", said, status=status)
    if status == 400 and "max_completion_tokens" in text:
        return Failure("rename_limit", said, status=status)
    if status in (401, 403):
        wrong = "does not know the key" if status == 401 else "does not allow this with the key"
        return Failure("user", f"{where} {wrong} in ${variable} ({text})", status=status)
    if status == 404 and model:
        return Failure("user", f"{where} has no model {model!r} ({text})", status=status)
    return Failure("user", said, status=status)


def retry_after_s(headers: Mapping[str, str], now: float) -> float | None:
    """What `retry-after-ms` or `retry-after` (seconds or a date) ask for, None without them. now: seconds since 1970."""
    for name, unit in (("retry-after-ms", 1e-3), ("retry-after", 1.0)):
        try:
            seconds = float(headers[name]) * unit
        except (KeyError, ValueError):
            continue
        if math.isfinite(seconds):
            return max(0.0, seconds)
    try:
        return max(0.0, parsedate_to_datetime(headers["retry-after"]).timestamp() - now)
    except (KeyError, ValueError, TypeError, OverflowError):
        return None


def _again(status: int, said: str, headers: Mapping[str, str]) -> Failure:
    wait = retry_after_s(headers, time.time())
    if wait is not None and wait > MAX_WAIT_S:
        return Failure("fatal", f"{said}, and asks to wait {wait:.0f} seconds; resume the run then", wait_s=wait, status=status)
    return Failure("pause" if status == 429 else "retry", said, status == 408 or status >= 500, wait, status)


def _printable(text: str) -> str:
    """`text` for a terminal and one line: no control characters, of bounded length."""
    return "".join(character if character.isprintable() else " " for character in text[:MAX_MESSAGE])


def _error(body: Any) -> dict[str, Any]:
    """The error object of an answer: `{"error": {...}}`, or something else that is made one."""
    if isinstance(body, bytes | str):
        try:
            body = json.loads(body)
        except (ValueError, RecursionError):
            body = {"message": (body.decode("utf-8", "replace") if isinstance(body, bytes) else body)}
    inner = body.get("error", body) if isinstance(body, dict) else body
    return inner if isinstance(inner, dict) else {"message": str(inner)}


# ---------------------------------------------------------------------------------------------------------------------
# The service.


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
