"""What was spent: exact sums of calls, tokens and picodollars by model, and what of it is not certain."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from nip_ray.text.costs.prices import usd
from nip_ray.text.providers.chat import ChatReply


@dataclass(frozen=True)
class Amount:
    """Money and tokens. pusd: picodollars."""

    pusd: int = 0
    tokens: int = 0

    def __add__(self, other: "Amount") -> "Amount":
        return Amount(self.pusd + other.pusd, self.tokens + other.tokens)

    def __sub__(self, other: "Amount") -> "Amount":
        return Amount(self.pusd - other.pusd, self.tokens - other.tokens)

    def __mul__(self, times: int) -> "Amount":
        return Amount(self.pusd * times, self.tokens * times)

    def covers(self, other: "Amount") -> bool:
        """Whether both parts are at least those of `other`."""
        return self.pusd >= other.pusd and self.tokens >= other.tokens


NOTHING = Amount()


@dataclass(frozen=True)
class MeteredReply(ChatReply):
    """A reply, and what the provider says of it. cached_tokens: of its prompt_tokens. reasoning_tokens: of its completion_tokens.
    model, fingerprint: what answered, where that is told.

    uncertain: what attempts before this one, which got no answer, may have cost; and what this one may have, where the provider counts
    no tokens (both counts are then 0).
    """

    cached_tokens: int = 0
    reasoning_tokens: int = 0
    model: str | None = None
    fingerprint: str | None = None
    uncertain: Amount = NOTHING


@dataclass
class ModelSpending:
    """What went to one model. prompt, completion, training: tokens; cached and reasoning are parts of the first two. pusd: picodollars of
    all of them. answered_by: how many calls each model (with its fingerprint) answered, as the provider names them.
    """

    calls: int = 0
    prompt: int = 0
    completion: int = 0
    training: int = 0
    pusd: int = 0
    cached: int = 0
    reasoning: int = 0
    answered_by: Counter[str] = field(default_factory=Counter)


@dataclass
class Spending:
    """What was spent. models: by name. uncertain: of attempts that got no answer and may have been billed; at most. Sums are exact."""

    models: dict[str, ModelSpending] = field(default_factory=dict)
    jobs: int = 0
    uncertain: Amount = NOTHING

    @classmethod
    def of_call(cls, model: str, prompt_tokens: int, completion_tokens: int, cost_pusd: int) -> "Spending":
        """One call."""
        return cls({model: ModelSpending(1, prompt_tokens, completion_tokens, 0, cost_pusd)})

    @classmethod
    def of_reply(cls, model: str, reply: ChatReply) -> "Spending":
        """The call to `model` that this answers; what is uncertain about it is not in it."""
        found = cls.of_call(model, reply.prompt_tokens, reply.completion_tokens, reply.cost_pusd)
        if isinstance(reply, MeteredReply):
            row = found.models[model]
            row.cached, row.reasoning = reply.cached_tokens, reply.reasoning_tokens
            if reply.model is not None:
                row.answered_by[" ".join(filter(None, (reply.model, reply.fingerprint)))] = 1
        return found

    @classmethod
    def of_job(cls, model: str, tokens: int, cost_pusd: int) -> "Spending":
        """One fine-tuning job. model: what it started from. tokens: trained on, over all epochs."""
        return cls({model: ModelSpending(training=tokens, pusd=cost_pusd)}, jobs=1)

    @property
    def amount(self) -> Amount:
        """What is certain, over all models."""
        rows = self.models.values()
        return Amount(sum(row.pusd for row in rows), sum(row.prompt + row.completion + row.training for row in rows))

    @property
    def at_most(self) -> Amount:
        """What may have been spent: with what is uncertain."""
        return self.amount + self.uncertain

    def add(self, other: "Spending") -> None:
        """Book `other` too."""
        for model, row in other.models.items():
            mine = self.models.setdefault(model, ModelSpending())
            mine.calls += row.calls
            mine.prompt += row.prompt
            mine.completion += row.completion
            mine.training += row.training
            mine.pusd += row.pusd
            mine.cached += row.cached
            mine.reasoning += row.reasoning
            mine.answered_by.update(row.answered_by)
        self.jobs += other.jobs
        self.uncertain += other.uncertain

    def copy(self) -> "Spending":
        """An independent copy."""
        return sum_of([self])

    def summary(self) -> dict[str, Any]:
        """For `cost.json`: jobs, tokens, usd, uncertain_usd, and `detail` by model."""
        amount = self.amount
        detail = {
            model: {
                "calls": row.calls,
                "prompt_tokens": row.prompt,
                "cached_prompt_tokens": row.cached,
                "completion_tokens": row.completion,
                "reasoning_tokens": row.reasoning,
                "training_tokens": row.training,
                "usd": usd(row.pusd),
                "answered_by": dict(sorted(row.answered_by.items())),
            }
            for model, row in sorted(self.models.items())
        }
        uncertain = usd(self.uncertain.pusd)
        return {"jobs": self.jobs, "tokens": amount.tokens, "usd": usd(amount.pusd), "uncertain_usd": uncertain, "detail": detail}


def sum_of(parts: Iterable[Spending]) -> Spending:
    """All of these together."""
    found = Spending()
    for part in parts:
        found.add(part)
    return found
