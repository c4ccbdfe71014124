"""What was spent: exact sums of calls, tokens and picodollars by model, and what of it is not certain."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from nip_ray.text.chat import ChatReply
from nip_ray.text.prices import usd


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
    """A reply, and what is not certain about its bill. estimated: the provider gave no count of tokens, it is ours. uncertain: what
    attempts before this one, which got no answer, may have cost.
    """

    estimated: bool = False
    uncertain: Amount = NOTHING


@dataclass
class ModelSpending:
    """What went to one model. prompt, completion, training: tokens. pusd: picodollars of all of them."""

    calls: int = 0
    prompt: int = 0
    completion: int = 0
    training: int = 0
    pusd: int = 0


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
        self.jobs += other.jobs
        self.uncertain += other.uncertain

    def copy(self) -> "Spending":
        """An independent copy."""
        return Spending({model: replace(row) for model, row in self.models.items()}, self.jobs, self.uncertain)

    def summary(self) -> dict[str, Any]:
        """For `cost.json`: jobs, tokens, usd, uncertain_usd, and `detail` by model."""
        amount = self.amount
        detail = {
            model: {
                "calls": row.calls,
                "prompt_tokens": row.prompt,
                "completion_tokens": row.completion,
                "training_tokens": row.training,
                "usd": usd(row.pusd),
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
