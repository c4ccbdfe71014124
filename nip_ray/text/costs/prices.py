"""Costs of calls and jobs, in whole picodollars (1e-12 US dollars), and spending.

Decisions that matter here:
- a price of p dollars per million tokens is p * 10^6 picodollars per token: whole for prices with up to six decimals
  (finer ones are rounded up), so that costs are integers and sums are exact in any order;
- the worst case of a prompt is one token per byte of UTF-8: no tokenizer that falls back to bytes (those of all large
  providers, and byte models) can need more. English text needs about a quarter. Only reservations use it, never what is
  booked: near its end a budget allows fewer concurrent calls, and leaves less than one worst case unspent;
- the only discount modelled is that for cached prompts, where the table has its price: bookings may exceed the bill,
  but never fall short.
"""

import math
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from decimal import ROUND_CEILING, Decimal
from typing import Any, TypeVar

from nip_ray.errors import TrainingError, UserError
from nip_ray.play.dialogue import Chat
from nip_ray.settings.providers import PriceSettings, ProviderSettings

PUSD_PER_USD = 10**12
DEFAULT = "_default"
BYTES_PER_TOKEN = 4
"""Approximate, of English text. For estimates only."""
OVERHEAD_TOKENS = 32
"""Maximum around each message and around the reply, for chat templates."""


@dataclass(frozen=True)
class Price:
    """Picodollars per token. input: of prompts. output: of replies. training: once per epoch. cached: of cached prompt
    tokens (None: as `input`)."""

    input: int = 0
    output: int = 0
    training: int = 0
    cached: int | None = None


def price(settings: PriceSettings) -> Price:
    """Prices per token from prices per million tokens."""
    cached = None if settings.cached_input is None else _pusd_per_token(settings.cached_input)
    return Price(
        _pusd_per_token(settings.input), _pusd_per_token(settings.output), _pusd_per_token(settings.training), cached
    )


def price_of(prices: Mapping[str, PriceSettings], model: str) -> Price | None:
    """The price of `model`, None if the table has none.

    The longest entry that is a prefix of the model's name counts; for a fine-tuned model
    (`ft:BASE:ORGANISATION:SUFFIX:ID`) without one, the longest that is a prefix of its base's name; then `_default`.
    """
    names = [model, *([model.split(":")[1]] if model.startswith("ft:") else [])]
    for name in names:
        matching = [start for start in prices if start != DEFAULT and name.startswith(start)]
        if matching:
            return price(prices[max(matching, key=len)])
    return price(prices[DEFAULT]) if DEFAULT in prices else None


class PriceList:
    """The prices of one provider, looked up once per model.

    needed: a budget in dollars is set, which needs prices.
    """

    def __init__(self, prices: Mapping[str, PriceSettings], needed: bool = False) -> None:
        self._prices, self._needed = dict(prices), needed
        self._known: dict[str, Price] = {}

    def of(self, model: str) -> Price:
        """The price of `model`. An unlisted model costs nothing, with a warning the first time, or raises UserError if
        `needed`."""
        if model not in self._known:
            found = price_of(self._prices, model)
            if found is None and self._needed:
                raise UserError(
                    f"provider.prices: no price for {model!r}, and budget.usd cannot be kept without; add it (dollars"
                    f" per million tokens: input, output, training), or {DEFAULT!r} for all models that are not listed,"
                    " or set budget.tokens instead"
                )
            if found is None:
                warnings.warn(
                    f"provider.prices has no price for {model!r}: its calls are counted as free", stacklevel=3
                )
            self._known[model] = found or Price()
        return self._known[model]


def price_list(provider: ProviderSettings, needed: bool = False) -> PriceList:
    """The prices of a provider's models; all zero without a price table. needed: a budget in dollars is set."""
    return PriceList(getattr(provider, "prices", {DEFAULT: PriceSettings()}), needed)


def call_cost(price: Price, prompt_tokens: int, completion_tokens: int, cached_tokens: int = 0) -> int:
    """Picodollars of one call. cached_tokens: part of the prompt's."""
    cached = price.input if price.cached is None else price.cached
    return price.input * (prompt_tokens - cached_tokens) + cached * cached_tokens + price.output * completion_tokens


def worst_prompt_tokens(messages: Chat) -> int:
    """The most tokens of `messages`: one per byte of UTF-8, plus the chat template of each message and the reply."""
    return _bytes(messages) + OVERHEAD_TOKENS * (len(messages) + 1)


def estimated_prompt_tokens(messages: Chat) -> int:
    """Approximate tokens of `messages`, for rate limits."""
    return math.ceil(_bytes(messages) / BYTES_PER_TOKEN) + 4 * len(messages)


def utf8_length(text: str) -> int:
    """Bytes of `text` in UTF-8; lone surrogates, which have none, count as three."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def usd(pusd: int) -> float:
    """Picodollars as dollars, for reports."""
    return pusd / PUSD_PER_USD


def exact_usd(pusd: int) -> str:
    """The same for messages, with all digits, and at least two decimals."""
    whole, rest = divmod(pusd, PUSD_PER_USD)
    return f"{whole}.{f'{rest:012d}'.rstrip('0'):<02}"


def pusd(usd: float) -> int:
    """Dollars as picodollars, exact for the written decimal number: 0.1 is 10^11."""
    return int(Decimal(repr(usd)) * PUSD_PER_USD)


def _pusd_per_token(usd_per_million: float) -> int:
    return int((Decimal(repr(float(usd_per_million))) * 10**6).to_integral_value(ROUND_CEILING))


def _bytes(messages: Chat) -> int:
    return sum(utf8_length(value) for message in messages for value in message.values())


# ----------------------------------------------------------------------------------------------------------------------
# Spending: exact sums of calls, tokens and picodollars by model, and the uncertain part.


@dataclass(frozen=True)
class Amount:
    """Money and tokens. pusd: picodollars."""

    pusd: int = 0
    tokens: int = 0

    def __add__(self, other: "Amount") -> "Amount":
        return Amount(self.pusd + other.pusd, self.tokens + other.tokens)

    def __sub__(self, other: "Amount") -> "Amount":
        return Amount(self.pusd - other.pusd, self.tokens - other.tokens)


NOTHING = Amount()


def worst_case(price: Price, messages: Chat, max_tokens: int) -> Amount:
    """The most that one attempt at a call with these messages and `max_tokens` tokens of reply can cost."""
    prompt = worst_prompt_tokens(messages)
    return Amount(max(call_cost(price, prompt, max_tokens, cached) for cached in (0, prompt)), prompt + max_tokens)


@dataclass
class ModelSpending:
    """Spending on one model. prompt, completion, training: tokens; cached and reasoning are parts of the first two.
    pusd: picodollars of all. answered_by: model (with its fingerprint) as the provider names it -> number of calls it
    answered."""

    calls: int = 0
    prompt: int = 0
    completion: int = 0
    training: int = 0
    pusd: int = 0
    cached: int = 0
    reasoning: int = 0
    answered_by: Counter[str] = field(default_factory=Counter)

    def __add__(self, other: "ModelSpending") -> "ModelSpending":
        return ModelSpending(
            *(mine + theirs for mine, theirs in zip(vars(self).values(), vars(other).values(), strict=True))
        )


@dataclass
class Spending:
    """Exact sums of spending. models: by name. uncertain: maximum for attempts with no answer, maybe billed."""

    models: dict[str, ModelSpending] = field(default_factory=dict)
    jobs: int = 0
    uncertain: Amount = NOTHING

    @classmethod
    def of_call(cls, model: str, prompt_tokens: int, completion_tokens: int, cost_pusd: int) -> "Spending":
        """One call."""
        return cls({model: ModelSpending(1, prompt_tokens, completion_tokens, 0, cost_pusd)})

    @classmethod
    def of_job(cls, model: str, tokens: int, cost_pusd: int) -> "Spending":
        """One fine-tuning job. model: its start model. tokens: trained on, over all epochs."""
        return cls({model: ModelSpending(training=tokens, pusd=cost_pusd)}, jobs=1)

    @property
    def amount(self) -> Amount:
        """The certain part, over all models."""
        rows = self.models.values()
        return Amount(sum(row.pusd for row in rows), sum(row.prompt + row.completion + row.training for row in rows))

    @property
    def at_most(self) -> Amount:
        """The certain and the uncertain part."""
        return self.amount + self.uncertain

    def add(self, other: "Spending") -> None:
        """Book `other` too."""
        for model, row in other.models.items():
            self.models[model] = self.models.get(model, ModelSpending()) + row
        self.jobs += other.jobs
        self.uncertain += other.uncertain

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
        return {
            "jobs": self.jobs,
            "tokens": amount.tokens,
            "usd": usd(amount.pusd),
            "uncertain_usd": uncertain,
            "detail": detail,
        }


def sum_of(parts: Iterable[Spending]) -> Spending:
    """The sum of all of these."""
    found = Spending()
    for part in parts:
        found.add(part)
    return found


# ----------------------------------------------------------------------------------------------------------------------
# Errors between a run and a provider, beyond the two exceptions of `nip_ray.errors`.
# - an exception that ends a call may carry the possible cost of its lost attempts, so that the records of calls need
#   not guess: a refused call is known to be free, one without an answer is not;
# - exceptions have one argument, their message, so that they can be sent between Ray workers.

Error = TypeVar("Error", bound=Exception)
_UNCERTAIN = "uncertain_amount"


class BudgetExhausted(TrainingError):
    """The next call or job could cost more than what is left of `budget`. Nothing was sent for it."""


def with_uncertain(error: Error, uncertain: Amount) -> Error:
    """`error`, with the possible cost of the unanswered attempts of its call (zero: the call is known to be free)."""
    setattr(error, _UNCERTAIN, uncertain)
    return error


def uncertain_of(error: BaseException) -> Amount | None:
    """The amount noted by `with_uncertain`, None if unknown."""
    return getattr(error, _UNCERTAIN, None)
