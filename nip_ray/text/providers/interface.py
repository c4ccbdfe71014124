"""The two small interfaces behind which a provider stands, `ChatClient` and `FineTuneBackend`, and what an attempt at a service failed by.

Decisions that matter here:
- every call has a key that depends on the experiment alone (run, iteration, item, round, agent, attempt): the same call after a
  crash has the same key. Replies are recorded under it before they are used (`nip_ray.text.dialogues.records`), and it goes to the provider
  as the idempotency key, so that a call that was paid for is neither lost nor, where the provider honours keys, paid twice;
- files of fine-tuning are JSON lines, as OpenAI defines them. `nip_ray.text.jobs` has the one function that makes a job exactly once.
"""

import hashlib
import json
import math
import random
import re
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import Any, Literal, Protocol, runtime_checkable

from nip_ray.errors import TrainingError, UserError
from nip_ray.play.dialogue import Chat
from nip_ray.seeding import stable_seed
from nip_ray.serving.fine_tuning_job import FineTuneJob, FineTuneSpec, Method

FinishReason = Literal["stop", "length", "content_filter", "unknown"]


@dataclass(frozen=True)
class ChatRequest:
    """One call. key: see above. agent: who speaks (for accounts and test doubles). max_tokens: the most tokens of the reply, reasoning
    included. extra: further members of the request's body (OpenAI protocol). schema: the JSON schema that the reply is held to (none: any
    text).
    """

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
    """What came back. content: None where the provider gave no text. cost_pusd: picodollars (1e-12 US dollars), by the price table.
    reasoning: that the provider told apart from the content.
    """

    content: str | None
    finish_reason: FinishReason
    prompt_tokens: int
    completion_tokens: int
    cost_pusd: int = 0
    reasoning: str = ""


class ChatClient(Protocol):
    """Answers calls, many at once, and retries what may be retried.

    Raises TrainingError when it gives up, BudgetExhausted before it would overspend.

    One client serves one provider, all its models and any number of tasks of one event loop.
    """

    async def complete(self, request: ChatRequest) -> ChatReply:
        """The reply to one call."""
        ...

    async def close(self) -> None:
        """Gives connections back."""
        ...


@runtime_checkable
class ChecksModels(Protocol):
    """A client that can say, before anything is paid for, whether its provider has a model."""

    async def check_models(self, names: Iterable[str]) -> None:
        """Raises UserError for a name that the provider does not know."""
        ...


# ---------------------------------------------------------------------------------------------------------------------
# `FineTuneBackend`: what a provider of fine-tuning must be able to do, and the forms of its files (JSON lines, as OpenAI defines them).
#
# `nip_ray.text.jobs` builds on it the one function that makes a job exactly once.


class InDoubt(Exception):
    """Creating a job got no clear answer: it may exist or come to exist."""


class FineTuneBackend(Protocol):
    """A provider of fine-tuning. Every method but `submit` may be called again without harm, and retries what may be retried.

    Errors: UserError for what the user must mend (key, model, method), TrainingError when the provider stays away.
    """

    methods: frozenset[str]
    poll_interval_s: float
    doubt_s: float

    async def check(self, model: str, method: Method) -> None:
        """Raise UserError, before any money is spent, when `model` cannot be fine-tuned by `method` here."""
        ...

    async def upload(self, name: str, data: bytes) -> str:
        """The id of a file with this content; the same content is uploaded once. data: JSON lines in the OpenAI form."""
        ...

    async def find(self, key: str) -> list[FineTuneJob]:
        """All jobs with this key, the oldest first."""
        ...

    async def submit(self, spec: FineTuneSpec, file_id: str) -> FineTuneJob:
        """Create a job, by one request that is never repeated. Raises InDoubt when its fate is unknown."""
        ...

    async def poll(self, job_id: str) -> FineTuneJob:
        """How a job stands."""
        ...

    async def cancel(self, job_id: str) -> FineTuneJob:
        """Cancel a job; one that is over stays as it is."""
        ...

    async def close(self) -> None:
        """Gives connections back."""
        ...


def supervised_line(chat: Chat, completion: str) -> dict[str, Any]:
    """One example of supervised learning: what was said, and what to say next."""
    return {"messages": [*chat, {"role": "assistant", "content": completion}]}


def dpo_line(chat: Chat, preferred: str, rejected: str) -> dict[str, Any]:
    """One example of direct preference optimisation: what was said, the better and the worse continuation."""
    return {
        "input": {"messages": list(chat)},
        "preferred_output": [{"role": "assistant", "content": preferred}],
        "non_preferred_output": [{"role": "assistant", "content": rejected}],
    }


def encode(lines: Iterable[dict[str, Any]]) -> bytes:
    """JSON lines in UTF-8; equal lines give equal bytes, whatever the order of their keys."""
    return b"".join(json.dumps(line, sort_keys=True, ensure_ascii=False, allow_nan=False).encode() + b"\n" for line in lines)


def file_name(data: bytes) -> str:
    """The name under which a file with this content is uploaded."""
    return f"nip-{hashlib.sha256(data).hexdigest()[:32]}.jsonl"


# ---------------------------------------------------------------------------------------------------------------------
# What an attempt at a service failed by, and what is to be done: a table of reactions and the waits, for calls and jobs of any kind.
#
# - an answer of the service that says no costs nothing; no answer, or one that cannot be read, may have been billed (`lost`), and so
#   may a failure of the service or of a gateway before it (any 5xx but 501): the reply may have been made before that;
# - waits that the service asks for are kept, up to `MAX_WAIT_S`; a longer one ends the run with a message;
# - nothing of the SDK's exceptions is kept: they hold requests with their headers, and so the key.

Reaction = Literal["retry", "pause", "refused", "rename_limit", "user", "fatal"]
"""retry: again after a wait. pause: the same, and everyone waits. refused: the content is not wanted. rename_limit: again with
`max_completion_tokens`. user: the user must mend it. fatal: no use in trying again."""

MAX_WAIT_S = 3600.0
FIRST_WAIT_S, LONGEST_WAIT_S = 0.5, 30.0
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


def backoff_s(seed: int, key: str, attempt: int, first_s: float = FIRST_WAIT_S, longest_s: float = LONGEST_WAIT_S) -> float:
    """Seconds before attempt number `attempt` + 1 of the call `key`: doubled each time, shortened by up to half at random."""
    full = min(longest_s, first_s * 2 ** min(attempt, 30))
    return full * (1 - 0.5 * random.Random(stable_seed(seed, "retry", key, attempt)).random())


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
