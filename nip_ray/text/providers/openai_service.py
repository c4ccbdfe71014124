"""`OpenAIService`: a service of the OpenAI protocol for chats and fine-tuning jobs: address, key, errors, retries.

Decisions that matter here:
- the SDK's own retries are off: its default sends a creation up to three times without any key. Retries are made here
  (`patiently`) or by the caller, with the waits of `wait_s`;
- the key is read from the environment when the client is made, and kept only in the SDK's client. The SDK's exceptions
  are not kept: their requests hold the key, and services quote it.
"""

import asyncio
import json
import math
import re
import ssl
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from html import unescape
from itertools import count
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast
from urllib.parse import parse_qsl, urlsplit, urlunsplit

from nip_ray.errors import TrainingError, UserError, require
from nip_ray.secrets import Redactor, secret
from nip_ray.settings.providers import OpenAIProvider, address_fault
from nip_ray.text.providers.interface import FIRST_WAIT_S, MAX_WAIT_S, backoff_s

if TYPE_CHECKING:
    import httpx2
    from openai import AsyncOpenAI

T = TypeVar("T")
_USER = re.compile(r"//[^/@]*@")


# ----------------------------------------------------------------------------------------------------------------------
# Failures of an attempt at a service, and the reactions to them, for calls and jobs alike.
# - an answer that refuses costs nothing; no answer, or an unreadable one, may have been billed (`lost`), and so may a
#   failure of the service or of a gateway (any 5xx but 501): the reply may have been made before that;
# - an error is an error under any status: some services send it under 200;
# - waits that the service requests are kept, up to `MAX_WAIT_S`; a longer one ends the run with a message;
# - messages quote the service. An explanation is added only if its words support it: the same status has many causes;
# - the SDK's exceptions are not kept: they hold requests with their headers, and so the key.

Reaction = Literal["retry", "pause", "not_yet", "refused", "too_long", "rename_limit", "user", "fatal"]
"""retry: again after a wait. pause: the same, and everyone waits. not_yet: the same, a few times: the model may be new.
refused: the content is not wanted. too_long: the request does not fit into the model's context. rename_limit: again
with `max_completion_tokens`. user: the user must fix it. fatal: retrying is useless."""

MAX_MESSAGE = 500

NO_SUCH_PLACE = (404, 405, 501)
MAY_BE_THE_CONTENT = (400, 403, 406, 413, 422, 424, 451)
"""Statuses by which services and gateways refuse a request for its content, but also for mistakes of the user."""
_QUOTA = ("insufficient_quota", "billing_hard_limit_reached", "billing_not_active")
_POLICY = re.compile(
    r"content_policy|content.?filter|moderation|content (management )?policy|contentpolicy|usage policy|safety"
    r" system|input was flagged"
    r"|content exists risk|data.?inspection.?failed|prohibited_content|guardrail|inappropriate content",
    re.IGNORECASE,
)
_TOO_LONG = re.compile(
    r"context_length_exceeded|context[ _](length|window|size)|(prompt|input|request|message)s?( is| are|_is)? too"
    r" (long|large)"
    r"|maximum (prompt|input) length|reduce the length|too many (input |prompt )?tokens",
    re.IGNORECASE,
)
_TAG, _NOT_SHOWN = (
    re.compile(r"<[^>]*>"),
    re.compile(r"<(script|style|head)\b.*?</\1\s*>|<!--.*?-->", re.IGNORECASE | re.DOTALL),
)
_TITLE = re.compile(r"<title[^>]*>(.*?)</title", re.IGNORECASE | re.DOTALL)


@dataclass(frozen=True)
class Failure:
    """One failed attempt. message: for people, without secrets. lost: it may have been billed. wait_s: requested by the
    service. said: the service's own words, its code among them."""

    reaction: Reaction
    message: str
    lost: bool = False
    wait_s: float | None = None
    status: int | None = None
    said: str = ""

    def error(self) -> UserError | TrainingError:
        """The exception that ends the call: UserError for mistakes of the user, NotThere and Refused for refusals
        unrelated to keys, TrainingError for all else."""
        if self.reaction in ("retry", "pause", "fatal"):
            return TrainingError(self.message)
        if self.status in (None, 401):
            return UserError(self.message)
        if self.status == 403:
            return KeyMayNot(self.message)
        return (NotThere if self.status in NO_SUCH_PLACE else Refused)(self.message)


class KeyMayNot(UserError):
    """The key lacks permission for this request."""


class Refused(UserError):
    """The service refuses this: a 4xx unrelated to keys."""


class NotThere(Refused):
    """The service has no such endpoint or object."""


def lost(message: str) -> Failure:
    """No answer, or an unreadable one."""
    return Failure("retry", message, lost=True)


def refused(status: int, body: Any, headers: Mapping[str, str], where: str, variable: str, model: str) -> Failure:
    """An answer with an error status. where: the service's address. variable: the source of the key. model: of the
    request (None: not about a model). body: the error, without secrets."""
    error = _error(body)
    codes = [str(error[name]) for name in ("code", "type", "status") if error.get(name)]
    text = _printable(str(error.get("message") or " ".join(codes) or "no reason given"))
    words, answered = " ".join([*codes, text]), f"{where} answered {status}: {text}"

    def failed(reaction: Reaction, message: str = answered) -> Failure:
        return Failure(reaction, message, status=status, said=words)

    if status == 402 or any(code in _QUOTA for code in codes):
        return failed("fatal", f"the credit at {where} is used up ({text}); resume the run when it is topped up")
    if status in (408, 409, 425, 429) or (status >= 500 and status != 501):
        wait = retry_after_s(headers, time.time())
        if wait is not None and wait > MAX_WAIT_S:
            message = f"{answered}, and asks to wait {wait:.0f} seconds; resume the run then"
            return Failure("fatal", message, wait_s=wait, status=status, said=words)
        return Failure(
            "pause" if status == 429 else "retry", answered, status == 408 or status >= 500, wait, status, words
        )
    if status == 451 or (status in MAY_BE_THE_CONTENT and _POLICY.search(words)):
        return failed("refused")
    if status == 400 and "max_completion_tokens" in text:
        return failed("rename_limit")
    if status == 413 or (status in MAY_BE_THE_CONTENT and _TOO_LONG.search(words)):
        return failed("too_long")
    if status in (401, 403):
        wrong = "does not know the key" if status == 401 else "does not allow this with the key"
        return failed("user", f"{where} {wrong} in ${variable} ({text})")
    if status == 404 and model and ("model" in words.lower() or model in words):
        return failed("not_yet", f"{where} has no model {model!r} ({text})")
    if status in NO_SUCH_PLACE and model:
        return failed(
            "user", f"{answered}; check base_url (of most services it ends in /v1) and the model's name ({model!r})"
        )
    return failed("user")


def is_about_words(said: str) -> bool:
    """True if a refusal in these words is about the request's content or length."""
    return bool(_POLICY.search(said) or _TOO_LONG.search(said))


def told_in_answer(body: Any, where: str, variable: str, model: str) -> Failure:
    """The failure in an answer under status 200 without a result: the error in it, or unreadable content."""
    error = _error(body) if isinstance(body, dict) and body.get("error") else {}
    if not error:
        return lost(f"{where} sent an unexpected answer")
    codes = [str(error.get(name)) for name in ("code", "status", "status_code")]
    status = next((int(code) for code in codes if re.fullmatch("[45][0-9][0-9]", code)), 0)
    if status:
        return refused(status, body, {}, where, variable, model)
    text = _printable(str(error.get("message") or json.dumps(error)))
    words = " ".join([*codes, text])
    message = f"{where} answered with an error: {text}"
    return Failure("refused" if _POLICY.search(words) else "retry", message, lost=not _POLICY.search(words), said=words)


def retry_after_s(headers: Mapping[str, str], now: float) -> float | None:
    """Seconds to wait by `retry-after-ms` or `retry-after` (seconds or a date), else None. now: seconds since 1970."""
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


def _printable(text: str) -> str:
    """`text` for a terminal and one line: no control characters, of bounded length."""
    return "".join(character if character.isprintable() else " " for character in text[:MAX_MESSAGE])


def _error(body: Any) -> dict[str, Any]:
    """The error object of an answer: OpenAI's `{"error": {...}}`, or other services' equivalents, with a `message`."""
    if isinstance(body, bytes | str):
        try:
            body = json.loads(body)
        except (ValueError, RecursionError):
            return {"message": _page_text(body.decode("utf-8", "replace") if isinstance(body, bytes) else body)}
    if isinstance(body, list) and body:  # Gemini's
        body = body[0]
    inner = (body.get("error") or body) if isinstance(body, dict) else body
    if not isinstance(inner, dict):
        return {"message": inner if isinstance(inner, str) else ""}
    message = next(
        (inner[name] for name in ("message", "detail", "error_description", "errors", "msg") if inner.get(name)), ""
    )
    return {**inner, "message": _flat(message)}


def _flat(message: Any) -> str:
    """A message as one text; FastAPI lists the fault of each part of a request."""
    if isinstance(message, str):
        return message
    if isinstance(message, list):
        return "; ".join(map(_flat, message))
    if isinstance(message, dict):
        text = next((message[name] for name in ("message", "msg", "detail", "error") if message.get(name)), None)
        if text is not None:
            place = ".".join(map(str, message["loc"])) + ": " if isinstance(message.get("loc"), list) else ""
            return place + _flat(text)
    return json.dumps(message, default=str)


def _page_text(page: str) -> str:
    """Text of a gateway's HTML page: its title, and the beginning of its text."""
    if "<" not in page:
        return page
    title = _TITLE.search(page)
    words = [title[1] if title else "", _TAG.sub(" ", _NOT_SHOWN.sub(" ", page))]
    return unescape(": ".join(filter(None, (" ".join(part.split()) for part in words))))


# ----------------------------------------------------------------------------------------------------------------------
# The service.


def base_url(provider: OpenAIProvider) -> str:
    """The service's address: settings, else $OPENAI_BASE_URL, else OpenAI's. Raises UserError for an invalid one."""
    address = str(provider.address).strip()
    if fault := address_fault(address):
        raise UserError(f"{'base_url' if provider.base_url else f'${provider.base_url_variable}'}: {fault}")
    return address.rstrip("/")


def api_key(provider: OpenAIProvider) -> str:
    """The key. Raises UserError naming the variable if it is not set, or cannot be sent."""
    return secret(provider.api_key_variable, _where(base_url(provider)))


def _where(address: str) -> str:
    """An address for people: without a user's name, and without a query, which may hold a key."""
    return _USER.sub("//", address.partition("?")[0])


def http_library() -> ModuleType:
    """The HTTP library of the SDK: httpx2 from openai 3 on, httpx before."""
    openai = require("openai", "text")
    return require("httpx2" if int(openai.__version__.partition(".")[0]) > 2 else "httpx", "text")


def openai_client(provider: OpenAIProvider, max_in_flight: int) -> "AsyncOpenAI":
    """The SDK's client for this service: without retries, with a connection for every call in flight."""
    openai = require("openai", "text")
    httpx = http_library()
    limits = httpx.Limits(max_connections=max_in_flight, max_keepalive_connections=max_in_flight, keepalive_expiry=30)

    async def readable(response: "httpx2.Response") -> None:
        """Raise an error if a success is not JSON but a proxy's page, which the SDK would parse into its types."""
        if response.is_success:
            try:
                json.loads(await response.aread())
            except (ValueError, RecursionError):
                raise httpx.DecodingError("not JSON", request=response.request) from None

    http = openai.DefaultAioHttpClient(limits=limits, event_hooks={"response": [readable]})
    key, url = api_key(provider), urlsplit(base_url(provider))
    options: Any = {"default_query": dict(parse_qsl(url.query))} if url.query else {}
    address = urlunsplit((url.scheme, url.netloc, url.path, "", "")).rstrip("/")
    return openai.AsyncOpenAI(
        api_key=key, base_url=address, max_retries=0, timeout=provider.timeout_s, http_client=http, **options
    )


class OpenAIService:
    """A service, for one event loop. sdk: its client. where: its address, for people. errors: that requests raise."""

    def __init__(
        self, provider: OpenAIProvider, max_in_flight: int = 16, seed: int = 0, first_wait_s: float = FIRST_WAIT_S
    ) -> None:
        """max_in_flight: connections. seed: of the waits' jitter. first_wait_s: see `backoff_s`.

        Raises UserError when the key or the SDK is missing, or key or address cannot be sent.
        """
        self.provider, self.seed, self._first_wait_s = provider, seed, first_wait_s
        self.sdk = openai_client(provider, max_in_flight)
        self.where = _where(base_url(provider))
        self._httpx = http_library()
        aiohttp, openai = require("aiohttp", "text"), require("openai", "text")
        found: list[Any] = [openai.OpenAIError, self._httpx.HTTPError, aiohttp.ClientError]
        # all exceptions of a failed request
        self.errors: tuple[type[Exception], ...] = (*found, TimeoutError, OSError)
        self.raw = cast("type[httpx2.Response]", self._httpx.Response)
        self._redact = Redactor([provider.api_key_variable])

    def failure(self, error: Exception, model: str = "") -> Failure:
        """The failure behind one of `errors`, which is not kept. model: of the request, if any."""
        import aiohttp
        import openai

        if isinstance(error, openai.APIStatusError):
            body = self._redact(error.response.text)  # before it is cut to length: part of a key would not be found
            variable = self.provider.api_key_variable
            return refused(error.status_code, body, error.response.headers, self.where, variable, model)
        causes: list[BaseException] = [error]
        # the SDK and its transport have their own names for network errors
        while (cause := causes[-1].__cause__) is not None:
            causes.append(cause)
        if any(isinstance(cause, self._httpx.DecodingError) for cause in causes):
            return lost(f"{self.where} sent something that is not JSON")
        for cause in causes:
            if isinstance(cause, aiohttp.ClientConnectorCertificateError | ssl.SSLCertVerificationError):
                said = _printable(str(getattr(cause, "certificate_error", cause)))
                trusted = "set SSL_CERT_FILE to a file with the certificate of the authority that signed it"
                return Failure(
                    "user", f"the certificate of {self.where} is not trusted ({said}); {trusted}, or fix base_url"
                )
        if any(isinstance(cause, aiohttp.ClientConnectorSSLError) for cause in causes):
            return Failure(
                "user",
                f"{self.where} does not speak TLS, or not as this machine does; is base_url to begin with http://?",
            )
        if any(isinstance(cause, aiohttp.ClientConnectorError) for cause in causes):
            return Failure("retry", f"{self.where} cannot be reached")
        if any(isinstance(cause, TimeoutError) for cause in causes):
            return lost(f"{self.where} did not answer within {self.provider.timeout_s:g} s")
        return lost(f"the connection to {self.where} was lost ({type(causes[-1]).__name__})")

    def in_answer(self, body: Any, model: str = "") -> Failure:
        """The failure in an answer under status 200 without a result. model: as in `failure`."""
        text = self._redact(json.dumps(body, default=str))
        return told_in_answer(json.loads(text), self.where, self.provider.api_key_variable, model)

    def wait_s(self, failure: Failure, key: str, attempt: int) -> float:
        """Seconds before attempt number `attempt` + 1 of the request `key`: as the service requests, else growing."""
        jitter = backoff_s(self.seed, key, attempt, self._first_wait_s)
        return jitter if failure.wait_s is None else failure.wait_s + 0.1 * jitter

    async def patiently(self, call: Callable[[], Awaitable[T]], key: str = "jobs", max_retries: int | None = None) -> T:
        """The result of a repeatable request, with retries unless the mistake is ours. key: identifies the request.
        max_retries: None for the provider's.

        Raises the failure's error (`Failure.error`) for a refusal, TrainingError after `max_retries` retries.
        """
        most = self.provider.max_retries if max_retries is None else min(max_retries, self.provider.max_retries)
        for attempt in count():
            try:
                return await call()
            except self.errors as error:
                failure = self.failure(error)
            if failure.reaction not in ("retry", "pause"):
                raise failure.error()
            if attempt >= most:
                raise TrainingError(f"{failure.message}, {attempt + 1} times; resume the run when the service is well")
            await asyncio.sleep(self.wait_s(failure, key, attempt))
        raise AssertionError

    async def close(self) -> None:
        """Close connections."""
        await self.sdk.close()
