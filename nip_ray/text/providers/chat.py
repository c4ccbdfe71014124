"""The two small interfaces behind which a provider stands: `ChatClient` here, `FineTuneBackend` in `nip_ray.text.providers.fine_tuning`.

Decisions that matter here:
- every call has a key that depends on the experiment alone (run, iteration, item, round, agent, attempt): the same call after a
  crash has the same key. Replies are recorded under it before they are used (`nip_ray.text.dialogues.records`), and it goes to the provider
  as the idempotency key, so that a call that was paid for is neither lost nor, where the provider honours keys, paid twice;
- money is counted in whole microdollars times a million (picodollars), so that sums are exact.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, runtime_checkable

from nip_ray.play.dialogue import Chat

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
