"""The two small interfaces behind which a provider stands, `ChatClient` and `FineTuneBackend`, and how long to wait before a repeat.

Decisions that matter here:
- every call has a key that depends on the experiment alone (run, iteration, item, round, agent, attempt): the same call after a
  crash has the same key. Replies are recorded under it before they are used (`nip_ray.text.dialogues.records`), and it goes to the provider
  as the idempotency key, so that a call that was paid for is neither lost nor, where the provider honours keys, paid twice;
- files of fine-tuning are JSON lines, as OpenAI defines them. `nip_ray.text.jobs` has the one function that makes a job exactly once.
"""

import hashlib
import json
import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, runtime_checkable

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
# How long to wait before something is tried again, for calls and jobs of any kind.

FIRST_WAIT_S, LONGEST_WAIT_S = 0.5, 30.0
MAX_WAIT_S = 3600.0
"""The longest that a service may ask for: a longer wait ends the run with a message."""


def backoff_s(seed: int, key: str, attempt: int, first_s: float = FIRST_WAIT_S, longest_s: float = LONGEST_WAIT_S) -> float:
    """Seconds before attempt number `attempt` + 1 of the call `key`: doubled each time, shortened by up to half at random."""
    full = min(longest_s, first_s * 2 ** min(attempt, 30))
    return full * (1 - 0.5 * random.Random(stable_seed(seed, "retry", key, attempt)).random())
