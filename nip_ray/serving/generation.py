"""Requests to a generating model, and its replies: the same for every engine."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from nip_ray.errors import UserError

OnText = Callable[[str], None]


class TooLong(UserError):
    """A prompt and its reply do not fit into the model's context."""


@dataclass(frozen=True)
class GenerationRequest:
    """A prompt and sampling parameters. temperature 0: the most likely token. top_p: see `nip_ray.serving.sampling`.
    stop: texts that end the reply. schema: of the reply (`nip_ray.serving.grammar`; None: any text)."""

    prompt: list[int]
    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    seed: int = 0
    stop: tuple[str, ...] = ()
    schema: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Generation:
    """A reply. tokens: as sampled, with the one that ended it. finish_reason: the model or a stop text ended it, or its
    limit did (under a schema a reply near its limit is completed early, and has this reason).

    logprobs: of each token, the natural logarithm of its probability in the sampling distribution: the model's at this
    temperature, restricted to the allowed tokens under a nucleus (top_p) or a schema. So it is 0 at temperature 0, and
    wherever only one token was allowed. They have float noise, and do not count when replies are compared.
    """

    text: str
    tokens: list[int]
    finish_reason: Literal["stop", "length"]
    prompt_tokens: int
    logprobs: list[float] = field(compare=False)

    @property
    def completion_tokens(self) -> int:
        """Tokens generated."""
        return len(self.tokens)
