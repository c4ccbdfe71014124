"""Settings of the language model of an agent, in every scenario of language models."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from nip_ray.settings.options import FORBID_UNKNOWN, option


@dataclass(frozen=True)
class LanguageAgentSettings:
    """The language model that speaks for one agent. Agents of one group share a model, and what it learns."""

    __pydantic_config__ = FORBID_UNKNOWN

    provider: str = option("local", "Provider of the model: a name in `providers`.")
    model: str = option(
        "default",
        "The provider's model name; local: a folder, GGUF file, `default` or `words`.",
        meaning={"path": "model"},
    )
    group: str | None = option(None, "Agents with the same group share a model (none: its own).")
    frozen: bool = option(False, "Never fine-tuned.")
    fine_tune_from_scratch: bool = option(True, "Fine-tune from the base model each time, not from the last model.")
    temperature: float | None = option(None, "Sampling temperature (none: the provider's default).", ge=0, le=2)
    top_p: float | None = option(None, "Nucleus of sampling (none: the provider's default).", gt=0, le=1)
    max_response_words: int = option(150, "Word limit of an answer, stated in the prompt.", ge=1)
    max_tokens: int | None = option(None, "Most tokens of a reply (none: 1.5 times max_response_words).", ge=1)
    max_reasoning_tokens: int = option(0, "Additional tokens for reasoning before the answer.", ge=0)
    reasoning_effort: str | None = option(
        None, "Reasoning effort, in the provider's words (openai; none: its default)."
    )
    extra_body: str = option(
        "",
        "Further JSON members of each request's body (openai); null removes one.",
    )
    chat_shape: Literal["auto", "openai", "alternating", "no_system"] = option(
        "auto",
        "Chats: named messages, alternating roles, or alternating without a system role (auto: by template).",
    )
    max_invalid_replies: int = option(20, "Invalid replies in a turn, after which its message is empty.", ge=1)

    def faults(self) -> Iterator[str]:
        """Members of requests that are not JSON, and reasoning without tokens."""
        try:
            _ = self.extra_members
        except ValueError:
            yield f'extra_body: got {self.extra_body!r:.60}, write a JSON object, such as {{"top_k": 20}}'
        if self.reasoning_effort not in (None, "none") and not self.max_reasoning_tokens:
            yield f"max_reasoning_tokens: 0, but reasoning_effort is {self.reasoning_effort}, leave room (such as 4096)"

    @property
    def reply_tokens(self) -> int:
        """The most tokens of a reply, reasoning included."""
        answer = int(1.5 * self.max_response_words) if self.max_tokens is None else self.max_tokens
        return answer + self.max_reasoning_tokens

    @property
    def extra_members(self) -> dict[str, Any]:
        """The additional members of a request's body. Raises ValueError if `extra_body` is not a JSON object."""
        extra = json.loads(self.extra_body or "{}")
        if not isinstance(extra, dict):
            raise ValueError("expected a JSON object")
        return {**({} if self.reasoning_effort is None else {"reasoning_effort": self.reasoning_effort}), **extra}
